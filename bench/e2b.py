"""Measures the official E2B SDK against Warren's own API, and how much of its time is the SDK's own.

    sudo .venv/bin/python bench/e2b.py              about a minute
    sudo .venv/bin/python bench/e2b.py --quick      small counts, to see whether it works

Three clients use one server, in turns, so that a slow moment of the machine affects all of them: a bare http.client
with Warren's own API, a bare http.client with the very requests that the SDK sends, and the SDK (Python, newest of
`make e2b-sdks`) in a process of its own, which takes the time by itself. The difference between the SDK and the bare
requests is the SDK's own time; that between these and Warren's API is the cost of the wire. All sandboxes are of the
environment `e2b`, from the pool. Each row ends with its target and whether this run met it; a missed target is not an
error.
"""

import http.client
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from service_server import ROOT, serving
from table import Table, percentile

Measured = dict[str, list[float]]
_WARM = 5
_REFILL_S = 0.5  # pause between two creates, in which the pool refills
_SDK = """
import sys, time
from e2b import Sandbox
kept = Sandbox.create(timeout=3600)
for line in sys.stdin:
    begun = time.perf_counter()
    made = Sandbox.create() if line == "create\\n" else kept.commands.run("true")
    print(time.perf_counter() - begun, flush=True)
    if line == "create\\n":
        made.kill()
        print("killed", flush=True)
kept.kill()
"""


def main(words: list[str]) -> int:
    quick = "--quick" in words
    table = Table()
    version = newest_sdk().parents[1].name
    print(f"\n{os.cpu_count()} cores, {os.uname().machine}, Linux {os.uname().release}, Python SDK e2b {version}")
    with serving("--pool-size", "0") as server, sdk_process(server.port) as sdk:
        own, wire = OwnApi(server.port), E2bWire(server.port)
        ways = {"own": own.create, "wire": wire.create, "sdk": sdk.create}
        report(table, "create", in_turns(ways, 10 if quick else 40, _REFILL_S))
        ways = {"plain": own.run_plain, "own": own.run, "wire": wire.run, "sdk": sdk.run}
        report(table, 'run "true"', in_turns(ways, 30 if quick else 400, 0.0))
    print(f"\n{table.missed} targets missed")
    return 0


def report(table: Table, what: str, taken: Measured) -> None:
    names = {"plain": "Warren's API, no shell", "own": "Warren's API", "wire": "the SDK's requests, bare", "sdk": "SDK"}
    print()
    for way, name in names.items():
        if way not in taken:
            continue
        table.add(f"{what}, {name}, p50", in_ms(statistics.median(taken[way])))
        table.add(f"{what}, {name}, p95", in_ms(percentile(taken[way], 95)))
    above = difference(taken, "wire", "own")
    table.add(f"{what}, the wire above Warren's API, median", in_ms(above), "<= 10 ms", above <= 0.010)
    table.add(f"{what}, the SDK's own part, median", in_ms(difference(taken, "sdk", "wire")))


def difference(taken: Measured, more: str, less: str) -> float:
    return statistics.median(one - other for one, other in zip(taken[more], taken[less], strict=True))


def in_ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def in_turns(ways: dict[str, Callable[[], float]], turns: int, pause_s: float) -> Measured:
    taken: Measured = {name: [] for name in ways}
    names = list(ways)
    for turn in range(_WARM + turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds = ways[name]()
            if turn >= _WARM:
                taken[name].append(seconds)
            time.sleep(pause_s)
    return taken


class Bare:
    """One connection, kept alive. `ask` returns the body of the response."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, {"Content-Type": "application/json", **named})
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:300]!r}")
        return data


class OwnApi(Bare):
    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._kept = self._create()

    def create(self) -> float:
        begun = time.perf_counter()
        session = self._create()
        taken = time.perf_counter() - begun
        self.ask("DELETE", f"/api/sessions/{session}")
        return taken

    def run_plain(self) -> float:
        return self._run("true")

    def run(self) -> float:
        """Runs the command line that the SDK sends."""
        return self._run("/bin/bash", "-l", "-c", "true")

    def _run(self, *command: str) -> float:
        body = json.dumps({"command": command}).encode()
        begun = time.perf_counter()
        answer = json.loads(self.ask("POST", f"/api/sessions/{self._kept}/exec", body))
        taken = time.perf_counter() - begun
        assert answer["exit_code"] == 0, answer
        return taken

    def _create(self) -> str:
        body = json.dumps({"environment": "e2b"}).encode()
        return str(json.loads(self.ask("POST", "/api/sessions", body))["session_id"])


class E2bWire(Bare):
    def __init__(self, port: int) -> None:
        super().__init__(port)
        made = self._create()
        self._of_sandbox = {
            "E2b_Sandbox_Id": made["sandboxID"],
            "E2b_Sandbox_Port": "49983",
            "X_Access_Token": made["envdAccessToken"],
            "Content_Type": "application/connect+json",
            "Connect_Protocol_Version": "1",
            "Connect_Timeout_Ms": "60000",
        }

    def create(self) -> float:
        begun = time.perf_counter()
        made = self._create()
        taken = time.perf_counter() - begun
        self.ask("DELETE", f"/sandboxes/{made['sandboxID']}", X_API_Key="e2b_00")
        return taken

    def run(self) -> float:
        process = {"cmd": "/bin/bash", "args": ["-l", "-c", "true"], "envs": {}}
        message = json.dumps({"process": process, "stdin": False}).encode()
        begun = time.perf_counter()
        answer = self.ask(
            "POST", "/process.Process/Start", struct.pack("!BI", 0, len(message)) + message, **self._of_sandbox
        )
        taken = time.perf_counter() - begun
        assert b'"exited":true' in answer.replace(b" ", b""), answer
        return taken

    def _create(self) -> dict[str, str]:
        body = {"templateID": "base", "timeout": 300, "metadata": {}, "envVars": {}}
        made: dict[str, str] = json.loads(
            self.ask("POST", "/v2/sandboxes", json.dumps(body).encode(), X_API_Key="e2b_00")
        )
        return made


class SdkProcess:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def create(self) -> float:
        taken = self._do("create")
        assert self._stdout.readline() == "killed\n"
        return taken

    def run(self) -> float:
        return self._do("run")

    def _do(self, what: str) -> float:
        print(what, file=self._stdin, flush=True)
        return float(self._stdout.readline())


@contextmanager
def sdk_process(port: int) -> Iterator[SdkProcess]:
    url = f"http://127.0.0.1:{port}"
    environ = {"PATH": os.environ["PATH"], "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": "e2b_00"}
    argv = [str(newest_sdk()), "-c", _SDK]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, env=environ, text=True, **pipes) as process:
        yield SdkProcess(process)


def newest_sdk() -> Path:
    found = (ROOT / "build" / "e2b-sdks").glob("2.*/bin/python")
    return max(found, key=lambda path: [int(part) for part in path.parents[1].name.split(".")])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
