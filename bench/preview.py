"""Measures what a preview costs: a request, compared with a direct one, and the throughput of one stream.

    sudo python bench/preview.py [--state-dir DIR] [--requests N] [--mib N] [--save FILE]

It starts a server of its own with one sandbox, and in it a server that answers at once. "Direct" is a client on a
socket that was made in the sandbox's network namespace, without Warren in between; "preview" is the same client over
`warren serve`, by host. The two take turns, so that both see the same machine. The result is what one run prints.
"""

import argparse
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from warren.sandboxes.network.namespaces import _run_inside

SERVER = Path(__file__).parents[1] / "tests" / "preview_server.py"
PORT = 3000
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--images", type=Path, default=Path(__file__).parents[1] / "build/test-state/images")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=4096)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    state = args.state_dir or Path(tempfile.mkdtemp(prefix="wb-"))
    if args.images.is_dir() and not (state / "images").exists():
        (state / "images").symlink_to(args.images)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "warren.cli.main", "serve", "--state-dir", str(state), "--port", str(port)]
    argv += ["--pool-size", "1", "--cpus", "2", "--on-stop", "destroy", "--log-level", "warning"]
    environ = {**os.environ, "WARREN_AUTH": "false", "WARREN_CONFIG": "/dev/null"}
    server = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL)
    try:
        results = measure(port, state, args.requests, args.mib, server.pid)
    finally:
        server.terminate()
        server.wait()
        if args.state_dir is None:
            shutil.rmtree(state, ignore_errors=True)
    for name, value in results.items():
        print(f"{name:44} {value:10.2f}")
    if args.save:
        args.save.write_text(json.dumps(results, indent=2) + "\n")


def measure(port: int, state: Path, requests: int, mib: int, server: int) -> dict[str, float]:
    session, pid = make_session(port, state)
    host = f"{PORT}-{session.removeprefix('ses_')}.localhost:{port}"

    def direct() -> socket.socket:
        made: list[socket.socket] = []

        def work() -> None:
            with open(f"/proc/{pid}/ns/net", "rb") as namespace:
                made.append(_run_inside(namespace.fileno(), socket.socket))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        made[0].connect(("127.0.0.1", PORT))
        return made[0]

    def preview() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port))

    ways = {"direct": direct, "preview": preview}
    kept = {name: connect() for name, connect in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in (*ways, "direct, new connection", "preview, new connection")}
    for number in range(requests):
        for name, connect in ways.items():
            times[name].append(timed(kept[name], host))
            if number % 4 == 0:
                began = time.perf_counter()
                with connect() as fresh:
                    timed(fresh, host)
                    times[f"{name}, new connection"].append(time.perf_counter() - began)
    results = {f"{name}, p50 ms": statistics.median(each) * 1000 for name, each in times.items()}
    for suffix in ("", ", new connection"):
        above = results[f"preview{suffix}, p50 ms"] - results[f"direct{suffix}, p50 ms"]
        results[f"preview above direct{suffix}, p50 ms"] = above
    used = cpu_s(server)
    for _ in range(requests):
        timed(kept["preview"], host)
    results["processor time of the server, ms a request"] = (cpu_s(server) - used) / requests * 1000
    used = cpu_s(server)
    for name, connect in ways.items():
        rates = []
        for _ in range(3):
            with connect() as sock:
                rates.append(stream(sock, host, mib))
        results[f"{name}, one stream, best MiB/s"] = max(rates)
        results[f"{name}, one stream, median MiB/s"] = statistics.median(rates)
    results["processor time of the server, s a GiB"] = (cpu_s(server) - used) / (3 * mib / 1024)
    return results


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(sock: socket.socket, host: str) -> float:
    began = time.perf_counter()
    sock.sendall(f"GET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer or len(answer.partition(b"\r\n\r\n")[2]) < length_of(answer):
        answer += sock.recv(65536)
    return time.perf_counter() - began


def length_of(answer: bytes) -> int:
    head = answer.partition(b"\r\n\r\n")[0].lower()
    return int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])


def stream(sock: socket.socket, host: str, mib: int) -> float:
    sock.sendall(f"GET /bytes?{mib * MIB} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    buffer = memoryview(bytearray(MIB))
    left, began = mib * MIB, time.perf_counter()
    while left > 0:
        left -= sock.recv_into(buffer)
    return mib / (time.perf_counter() - began)


def make_session(port: int, state: Path) -> tuple[str, int]:
    for _ in range(600):
        try:
            if call(port, "GET", "/ready")[0] == 200:
                break
        except OSError:
            pass
        time.sleep(0.1)
    found = json.loads(call(port, "POST", "/api/sessions", b"{}")[1])
    at = f"/api/sessions/{found['session_id']}"
    call(port, "PUT", f"{at}/files/content?path=server.py", SERVER.read_bytes())
    call(port, "POST", f"{at}/processes", json.dumps({"command": f"python3 server.py {PORT}"}).encode())
    assert call(port, "GET", f"{at}/ports?wait_for={PORT}")[0] == 200
    record = json.loads((state / "sandboxes" / found["sandbox_id"] / "record.json").read_text())
    return found["session_id"], record["pid"]


def call(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


if __name__ == "__main__":
    main()
