"""Measures what a hostile tenant takes from its neighbour on one server.

    sudo .venv/bin/python bench/neighbours.py                             a minute quiet and a minute beside each
    sudo .venv/bin/python bench/neighbours.py --seconds 10 --only questions cells
    sudo .venv/bin/python bench/neighbours.py --quick                     5 s each, to see that everything works

The neighbour runs commands, looks names up, connects to names that nobody has asked for in a while, and reads a
preview, all the time. Every hostility is something that a tenant can do with a key and its sandboxes. Its sandboxes
have a tenth of a core each, so that what is measured is what the tenants share, and not the machine's processors.
Server, sandboxes and everything outside are in network namespaces of their own; no packet leaves the machine.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import this_run  # noqa: E402
from network_world import ADDRESSES, API_KEY, SILENT, NetworkWorld, PlacedServer  # noqa: E402
from service_server import memory_mb  # noqa: E402
from table import Table, percentile  # noqa: E402

from warren.measure.http_client import Client, RequestFailed, exec_message, message  # noqa: E402

WEB, ECHO_PORT, PREVIEW_PORT = ADDRESSES[0], 7000, 3000
NAMES = [f"n{number}.neighbour.example" for number in range(1000)]  # each is asked for after it has been forgotten
WORST = 3.0
PAUSE_S = 0.02
RAMP_S = 3.0
MIB = 1 << 20

_ECHO = f"""
import asyncio
class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)
async def main():
    server = await asyncio.get_running_loop().create_server(Echo, "{WEB}", {ECHO_PORT}, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""

_NEIGHBOUR = f"""
import itertools, json, random, socket, sys, time
names, until = {NAMES!r}, time.monotonic() + float(sys.argv[1])
took, failed = {{"look-up": [], "connect": []}}, []
begun = random.randrange(len(names))
for number in itertools.count(begun):
    if time.monotonic() > until:
        break
    try:
        start = time.perf_counter()
        address = socket.gethostbyname(names[number % len(names)])
        found = time.perf_counter()
        with socket.create_connection((address, {ECHO_PORT}), 30) as sock:
            sock.sendall(b"x")
            if not sock.recv(1):
                raise OSError("closed")
        took["look-up"].append(round((found - start) * 1000, 3))
        took["connect"].append(round((time.perf_counter() - found) * 1000, 3))
    except OSError as exc:
        failed.append(f"connect: {{exc}}")
    time.sleep({PAUSE_S})
print(json.dumps([took, failed]))
"""

_SILENT_NAMES = f"""
import socket, threading
def ask(number):
    while True:
        try:
            socket.create_connection((f"n{{number}}{SILENT}", {ECHO_PORT}), 30).recv(1)
        except OSError:
            pass
for number in range(70):
    threading.Thread(target=ask, args=(number,), daemon=True).start()
threading.Event().wait()
"""

_QUESTIONS = """
import socket, struct, threading
query = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + b"\\1a\\7example\\0" + struct.pack(">2H", 1, 1)
def over_tcp():
    while True:
        try:
            with socket.create_connection(("127.0.0.1", 53), 10) as sock:
                sock.sendall((len(query).to_bytes(2, "big") + query) * 16)
                while sock.recv(4096):
                    pass
        except OSError:
            pass
threading.Thread(target=over_tcp, daemon=True).start()
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    try:
        sock.sendto(query, ("127.0.0.1", 53))
    except OSError:
        pass
"""

_HOARD = f"""
import socket, time
kept = []
while True:
    try:
        kept.append(socket.create_connection(("web.example", {ECHO_PORT}), 30))
    except OSError:
        time.sleep(0.1)
    if len(kept) >= 950:
        time.sleep(600)
"""

# Shakes hands, begins a message that has no end, and reads nothing.
_UNFINISHED = f"""
import base64, hashlib, socket, threading
def talk(sock):
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += sock.recv(4096)
    key = head[head.lower().index(b"sec-websocket-key: ") + 19:].split(b"\\r\\n")[0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    sock.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
                 b"Sec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
    sock.sendall(b"\\x82\\x7f" + (1 << 40).to_bytes(8, "big"))
    while True:
        sock.sendall(bytes(65536))
listener = socket.create_server(("127.0.0.1", {PREVIEW_PORT}), backlog=256)
while True:
    threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()
"""

_BEGUN = b"\x82\xff" + (16 * MIB).to_bytes(8, "big") + bytes(4) + bytes(15 * MIB)

_FRAMES = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
for fd in range(3, 1024):
    try: os.write(fd, b'r\\0\\0\\0\\2{}')
    except OSError: continue
    while True: os.write(fd, b'r\\0\\0\\0\\2{}' * 4096)
"""


class Tenant:
    """A tenant of the server: its sessions, and connections with its key."""

    def __init__(self, world: NetworkWorld, server: PlacedServer, key: str) -> None:
        self._world, self._server, self.key = world, server, key
        self.sessions: list[str] = []

    async def new_socket(self) -> socket.socket:
        return await asyncio.to_thread(self._new_socket)

    def _new_socket(self) -> socket.socket:
        with self._world.inside():
            sock = socket.create_connection((self._world.inner.address, self._server.port))
        sock.setblocking(False)
        return sock

    async def connect(self) -> Client:
        sock = await self.new_socket()
        _, client = await asyncio.get_running_loop().create_connection(lambda: Client(self.key), sock=sock)
        return client

    async def call(self, method: str, path: str, body: object = None) -> Any:
        client = await self.connect()
        try:
            return await client.call(method, path, body)
        finally:
            client.close()

    async def new_session(self, allow: list[str], cpus: float = 0.1) -> str:
        wanted = {"network": {"allow": allow}, "limits": {"cpus": cpus}}
        self.sessions.append((await self.call("POST", "/api/sessions", wanted))["session_id"])
        return self.sessions[-1]

    async def start(self, session: str, code: str) -> None:
        await self.call("POST", f"/api/sessions/{session}/processes", {"command": ["python3", "-c", code]})

    async def start_everywhere(self, count: int, allow: list[str], code: str) -> None:
        for _ in range(count):
            await self.start(await self.new_session(allow), code)

    async def end(self) -> None:
        while self.sessions:
            await self.call("DELETE", f"/api/sessions/{self.sessions.pop()}")


# -- the neighbour


@dataclass
class Figures:
    took_ms: dict[str, list[float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


async def measure(neighbour: Tenant, seconds: float) -> Figures:
    """Returns how long everything took that the neighbour did in these seconds."""
    [session] = neighbour.sessions
    found = Figures()
    run = {"command": ["python3", "-c", _NEIGHBOUR, str(seconds)], "timeout_s": seconds + 120}
    inside = asyncio.create_task(neighbour.call("POST", f"/api/sessions/{session}/exec", run))
    preview = message("GET", f"/api/sessions/{session}/ports/{PREVIEW_PORT}/echo")
    requests = {"exec": exec_message(session, ["true"]), "preview": preview}
    await asyncio.gather(*(_repeat(neighbour, name, each, seconds, found) for name, each in requests.items()))
    result = await inside
    if result["exit_code"] != 0:
        raise SystemExit(result["stderr"])
    took, failed = json.loads(result["stdout"])
    found.took_ms |= took
    found.failed += failed
    return found


async def _repeat(neighbour: Tenant, name: str, request: bytes, seconds: float, found: Figures) -> None:
    client, until = await neighbour.connect(), time.perf_counter() + seconds
    took = found.took_ms.setdefault(name, [])
    while (start := time.perf_counter()) < until:
        try:
            (await client.send(request)).json()
            took.append((time.perf_counter() - start) * 1000)
        except RequestFailed as exc:
            found.failed.append(f"{name}: {exc}")
            client.close()
            client = await neighbour.connect()
        await asyncio.sleep(PAUSE_S)
    client.close()


# -- hostilities: each goes on until its task is cancelled


async def rules(tenant: Tenant) -> None:
    """Sets 2,000 rules of international names, always other ones, six times at once again and again."""
    paths = [f"/api/sessions/{await tenant.new_session([])}/network" for _ in range(6)]
    await asyncio.gather(*(_set_rules(tenant, path, number) for number, path in enumerate(paths)))


async def _set_rules(tenant: Tenant, path: str, number: int) -> None:
    client = await tenant.connect()
    for turn in itertools.count():
        names = [f"n{number}-{turn}-{each}.{'ä' * 30}.{'漢' * 10}.example:443" for each in range(2000)]
        (await client.send(message("PUT", path, {"allow": names[:1000], "deny": names[1000:]}))).json()


async def computing(tenant: Tenant) -> None:
    """Six sandboxes compute: what the processors alone cost, to compare the others with."""
    await tenant.start_everywhere(6, [], "while True: pass")


async def silent_names(tenant: Tenant) -> None:
    """420 connections to names whose server is silent."""
    await tenant.start_everywhere(6, [f"*{SILENT}"], _SILENT_NAMES)


async def questions(tenant: Tenant) -> None:
    """DNS questions without end, over UDP and TCP, with 1,000 rules, from six sandboxes."""
    await tenant.start_everywhere(6, [f"*.b{number}.example" for number in range(1000)], _QUESTIONS)


async def connections(tenant: Tenant) -> None:
    """950 silent connections from each of ten sandboxes."""
    await tenant.start_everywhere(10, ["web.example"], _HOARD)


async def websockets(tenant: Tenant) -> None:
    """110 WebSockets of a preview, with a message that has no end in both directions and that nobody reads."""
    session = await tenant.new_session([])
    await tenant.start(session, _UNFINISHED)
    await tenant.call("GET", f"/api/sessions/{session}/ports?wait_for={PREVIEW_PORT}")
    head = (
        f"GET /api/sessions/{session}/ports/{PREVIEW_PORT}/ HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {tenant.key}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    await asyncio.gather(*(_begin_message(tenant, head.encode()) for _ in range(110)))


async def _begin_message(tenant: Tenant, head: bytes) -> None:
    loop = asyncio.get_running_loop()
    with await tenant.new_socket() as sock:
        await loop.sock_sendall(sock, head)
        await loop.sock_recv(sock, 4096)
        await loop.sock_sendall(sock, _BEGUN)


async def cells(tenant: Tenant) -> None:
    """Four cells that write frames without end, each again after its time-out of 5 s."""
    sessions = [await tenant.new_session([], cpus=0.25) for _ in range(4)]
    await asyncio.gather(*(_run_cells(tenant, session) for session in sessions))


async def _run_cells(tenant: Tenant, session: str) -> None:
    while True:
        with contextlib.suppress(RequestFailed):
            await tenant.call("POST", f"/api/sessions/{session}/code", {"code": _FRAMES, "timeout_s": 5})


HOSTILITIES: dict[str, Callable[[Tenant], Awaitable[None]]] = {
    each.__name__: each for each in (computing, rules, silent_names, questions, connections, websockets, cells)
}


@contextlib.asynccontextmanager
async def going_on(hostility: Callable[[Tenant], Awaitable[None]], tenant: Tenant) -> AsyncIterator[None]:
    async def work() -> None:
        await hostility(tenant)
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    try:
        await asyncio.wait([task], timeout=RAMP_S)
        yield
        if task.done():
            await task
    finally:
        task.cancel()
        await asyncio.wait([task])
        await tenant.end()


# -- the machine


def egress_pid(server: int) -> int:
    for entry in Path(f"/proc/{server}/task").glob("*/children"):
        for child in entry.read_text().split():
            if b"warren.sandboxes.egress" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise SystemExit("the server has no egress process")


def memory_of(server: PlacedServer) -> list[float]:
    return [memory_mb(server.pid), memory_mb(egress_pid(server.pid))]


async def new_tenant(world: NetworkWorld, server: PlacedServer, name: str) -> Tenant:
    admin = Tenant(world, server, API_KEY)
    await admin.call("PUT", f"/api/admin/tenants/{name}", {"quota": {}, "policy": {}})
    made = await admin.call("POST", "/api/admin/keys", {"name": "bench", "tenant": name})
    return Tenant(world, server, made["key"])


async def start_neighbour(tenant: Tenant) -> None:
    session = await tenant.new_session(["*.neighbour.example"], cpus=1.0)
    server = (ROOT / "tests" / "preview_server.py").read_text()
    await tenant.start(session, server.replace("sys.argv[1]", f"{PREVIEW_PORT}"))
    await tenant.call("GET", f"/api/sessions/{session}/ports?wait_for={PREVIEW_PORT}")
    await measure(tenant, 2.0)


async def compare(
    table: Table, name: str, server: PlacedServer, neighbour: Tenant, hostile: Tenant, seconds: float
) -> None:
    print(f"{name}: {HOSTILITIES[name].__doc__}", flush=True)
    memory = [memory_of(server)]
    quiet = await measure(neighbour, seconds)
    async with going_on(HOSTILITIES[name], hostile):
        during = asyncio.create_task(_highest(server))
        beside = await measure(neighbour, seconds)
        during.cancel()
        memory.append(await during)
    await asyncio.sleep(RAMP_S)
    memory.append(memory_of(server))
    for what in ("exec", "connect", "look-up", "preview"):
        before, after = quiet.took_ms[what], beside.took_ms[what]
        p50, p99 = ([percentile(each, percent) for each in (before, after)] for percent in (50, 99))
        ratio = p99[1] / p99[0]
        words = f"  {what}, p50 {p50[0]:.1f} -> {p50[1]:.1f} ms; p99 x{ratio:.1f}"
        table.add(words, f"{p99[0]:.1f} -> {p99[1]:.1f} ms", f"<= x{WORST:.0f}", ratio <= WORST)
    table.add("  failed", f"{len(beside.failed)}", "0", not beside.failed)
    for reason in sorted(set(beside.failed))[:3]:
        print(f"    {reason}")
    for number, what in enumerate(("server", "egress")):
        figure = " -> ".join(f"{each[number]:.0f}" for each in memory)
        table.add(f"  memory of the {what}: before, highest during, after", f"{figure} MiB")


async def _highest(server: PlacedServer) -> list[float]:
    """Returns the highest memory of server and egress until the task is cancelled."""
    highest = [0.0, 0.0]
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            highest = [max(pair) for pair in zip(highest, memory_of(server), strict=True)]
            await asyncio.sleep(0.5)
    return highest


async def run(names: list[str], seconds: float, world: NetworkWorld, server: PlacedServer) -> int:
    table = Table()
    neighbour, hostile = [await new_tenant(world, server, name) for name in ("neighbour", "hostile")]
    await start_neighbour(neighbour)
    for name in names:
        await compare(table, name, server, neighbour, hostile, seconds)
    return table.missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each is measured, quiet and beside it")
    parser.add_argument("--quick", action="store_true", help="5 s each")
    parser.add_argument("--only", nargs="*", choices=list(HOSTILITIES), default=list(HOSTILITIES))
    arguments = parser.parse_args()
    this_run.join()
    state = this_run.new_state_dir(ROOT / "build" / "test-state")
    with tempfile.TemporaryDirectory() as folder, NetworkWorld(Path(folder)) as world:
        world.names |= {name: [WEB] for name in (*NAMES, "web.example")}
        echo = world.run_outside(sys.executable, "-c", _ECHO, stdout=subprocess.PIPE)
        server = PlacedServer(world, state, "--pool-size", "0", "--on-stop", "destroy", "--stop-grace", "1s")
        try:
            assert echo.stdout is not None
            echo.stdout.readline()
            server.start()
            seconds = 5.0 if arguments.quick else arguments.seconds
            missed = asyncio.run(run(arguments.only, seconds, world, server))
        finally:
            server.stop()
            echo.kill()
            echo.wait()
            shutil.rmtree(state, ignore_errors=True)
    this_run.end()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
