"""Measures what the SDK costs: compared with a bare http.client request, in local mode, and when it is imported.

    sudo .venv/bin/python bench/sdk.py              some seconds
    sudo .venv/bin/python bench/sdk.py --quick      small counts, to see whether it works

All clients run the same command (true, as an argument list) in one sandbox of one server, in turns, so that a slow
moment of the machine affects all of them. The overhead is the median of the differences within a turn. Each row ends
with its target and whether this run met it; a missed target is not an error.
"""

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from sandboxes import Table
from service_server import IMAGES, serving

from warren import AsyncSandboxClient, SandboxClient

TRUE = ["true"]
_WARM = 100


def in_ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


async def main(words: list[str]) -> int:
    turns = 50 if "--quick" in words else 1500
    table = Table()
    print(
        f"\n{os.cpu_count()} cores, {os.uname().machine}, Linux {os.uname().release}, Python {sys.version.split()[0]}"
    )
    print("\nover HTTP")
    with serving("--pool-size", "2") as server:
        await over_http(table, f"http://127.0.0.1:{server.port}", turns)
    print("\nlocal mode")
    with local_state():
        await in_process(table, turns)
    print("\nimport")
    imports(table, 3 if "--quick" in words else 15)
    print(f"\n{table.missed} targets missed")
    return 0


async def over_http(table: Table, url: str, turns: int) -> None:
    async with AsyncSandboxClient(url) as native:
        blocking = SandboxClient.attach(native.session_id, url)
        bare = bare_request(url, native.session_id)
        kinds: dict[str, Callable[[], Awaitable[object]]] = {
            "bare": as_coroutine(bare),
            "blocking": as_coroutine(lambda: blocking.execute(TRUE)),
            "asyncio": lambda: native.execute(TRUE),
        }
        taken = await in_turns(kinds, turns)
        blocking.close()
    table.add("execute, bare http.client request, p50", in_ms(statistics.median(taken["bare"])))
    for name, client in (("blocking", "SandboxClient"), ("asyncio", "AsyncSandboxClient")):
        table.add(f"execute, {client}, p50", in_ms(statistics.median(taken[name])))
        over = statistics.median(ours - base for ours, base in zip(taken[name], taken["bare"], strict=True))
        table.add(f"{client} over the bare request, median", in_ms(over), "<= 0.5 ms", over <= 0.0005)


def as_coroutine(call: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def wait() -> object:
        return call()

    return wait


def bare_request(url: str, session_id: str) -> Callable[[], object]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    body = json.dumps({"command": TRUE, "timeout_s": 120.0})

    def send() -> object:
        connection.request("POST", f"/api/sessions/{session_id}/exec", body, {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())

    return send


async def in_turns(kinds: dict[str, Callable[[], Awaitable[object]]], turns: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    names = list(kinds)
    for turn in range(_WARM + turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            await kinds[name]()
            if turn >= _WARM:
                taken[name].append(time.perf_counter() - start)
    return taken


async def in_process(table: Table, turns: int) -> None:
    async with AsyncSandboxClient(mode="local") as native:
        with SandboxClient(mode="local", session_id=native.session_id) as blocking:
            kinds: dict[str, Callable[[], Awaitable[object]]] = {
                "blocking": as_coroutine(lambda: blocking.execute(TRUE)),
                "asyncio": lambda: native.execute(TRUE),
            }
            taken = await in_turns(kinds, turns)
    for name, client in (("blocking", "SandboxClient"), ("asyncio", "AsyncSandboxClient")):
        p50 = statistics.median(taken[name])
        table.add(f"execute, {client}, local mode, p50", in_ms(p50), "<= 1.5 ms", p50 <= 0.0015)


@contextlib.contextmanager
def local_state() -> Iterator[None]:
    state = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    (state / "images").symlink_to(IMAGES)
    os.environ.update(WARREN_STATE_DIR=str(state), WARREN_CONFIG="/dev/null", WARREN_POOL_SIZE="1")
    try:
        yield
    finally:
        shutil.rmtree(state, ignore_errors=True)


def imports(table: Table, times: int) -> None:
    nothing = run_process("pass", times)
    for what, target in (
        ("import warren", 0.150),
        ("from warren import SandboxClient", 0.150),
        ("from warren import AsyncSandboxClient", None),
    ):
        took = run_process(what, times) - nothing
        shown = f"<= {target * 1000:.0f} ms" if target else ""
        table.add(
            f"{what}, beyond an empty program", f"{took * 1000:.0f} ms", shown, took <= target if target else None
        )


def run_process(code: str, times: int) -> float:
    """Returns the median time of a fresh process that runs `code`."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
