"""Measures what state that lasts costs: pause, resume, snapshots, restores, forks, volumes, beside Docker and a copy.

    sudo .venv/bin/python bench/state.py            everything
    sudo .venv/bin/python bench/state.py --quick    fewer of each, and 100 paused sessions instead of 1,000

One run: a server of its own, asked over HTTP by one client, and a Docker engine if one runs here. Every sandbox whose
disk is saved has 100 MiB of data on it. Figures are medians, in brackets the best: on a busy machine that is nearer to
what a quiet one does. `docker` is what comes closest: pause, unpause with a
first command, commit, and run from the committed image, of a container with the same data in its own layer. `copy` is
`cp --sparse=always` of a file with as much data. Absolute times depend on the machine: compare the columns.
"""

import argparse
import asyncio
import secrets
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop
from service_server import IMAGES, Server, serving
from table import Table

from warren.measure.http_client import Client

DATA_MB: Final = 100
_FILL: Final = f"head -c {DATA_MB}M /dev/urandom > /workspace/data && sync"
_ENVIRONMENT: Final = "base"


class Figure(float):
    """The median of some measurements, which knows the best of them."""

    best: float

    @classmethod
    def of(cls, values: list[float]) -> "Figure":
        figure = cls(statistics.median(values))
        figure.best = min(values)
        return figure


async def timed(work: Awaitable[Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = await work
    return (time.perf_counter() - start) * 1000, found


class Caller:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def create(self, **wishes: Any) -> str:
        return str(
            (await self.client.call("POST", "/api/sessions", {"environment": _ENVIRONMENT, **wishes}))["session_id"]
        )

    async def post(self, session: str, what: str, body: object = None) -> Any:
        return await self.client.call("POST", f"/api/sessions/{session}/{what}", {} if body is None else body)

    async def run(self, session: str, command: str | list[str]) -> Any:
        done = await self.post(session, "exec", {"command": command})
        if done["exit_code"]:
            raise SystemExit(f"{command} ended with {done['exit_code']}: {done['stderr']}")
        return done

    async def end(self, *sessions: str) -> None:
        for session in sessions:
            await self.client.call("DELETE", f"/api/sessions/{session}")


async def measure_pause(caller: Caller, times: int) -> dict[str, float]:
    session = await caller.create()
    await caller.run(session, ["true"])
    paused, resumed = list[float](), list[float]()
    for _ in range(times):
        paused.append((await timed(caller.post(session, "pause")))[0])
        await asyncio.sleep(0.05)
        resumed.append((await timed(caller.run(session, ["true"])))[0])
    await caller.end(session)
    return {"pause": Figure.of(paused), "resume": Figure.of(resumed)}


async def measure_snapshots(caller: Caller, times: int) -> dict[str, float]:
    session = await caller.create()
    await caller.run(session, _FILL)
    whole, stopped, restored, made = list[float](), list[float](), list[float](), list[str]()
    for _ in range(times):
        ms, snapshot = await timed(caller.post(session, "snapshots"))
        whole.append(ms)
        stopped.append(float(snapshot["stopped_ms"]))
        made.append(snapshot["snapshot_id"])
    for snapshot_id in made:
        ms, copy = await timed(caller.create(snapshot=snapshot_id))
        restored.append(ms)
        await caller.run(copy, ["test", "-s", "/workspace/data"])
        await caller.end(copy)
    forked = list[float]()
    for _ in range(max(2, times // 4)):
        ms, answer = await timed(caller.post(session, "fork", {"count": 10}))
        forked.append(ms)
        await caller.end(*(each["session_id"] for each in answer["sessions"]))
    for snapshot_id in made:
        await caller.client.send(_delete(f"/api/snapshots/{snapshot_id}"))
    await caller.end(session)
    return {
        "snapshot": Figure.of(whole),
        "stopped": Figure.of(stopped),
        "restore": Figure.of(restored),
        "fork": Figure.of(forked),
    }


def _delete(path: str) -> bytes:
    return f"DELETE {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode()


async def measure_volumes(caller: Caller, times: int) -> dict[str, float]:
    name = f"bench-{secrets.token_hex(4)}"
    await caller.client.call("POST", "/api/volumes", {"name": name, "size_mb": 64})
    session = await caller.create()
    attached = list[float]()
    for number in range(times):
        mount = {"name": name, "path": f"/workspace/v{number}"}
        attached.append((await timed(caller.post(session, "volumes", mount)))[0])
        await caller.client.send(_delete(f"/api/sessions/{session}/volumes?path=/workspace/v{number}"))
    await caller.end(session)
    await caller.client.send(_delete(f"/api/volumes/{name}"))
    return {"attach": Figure.of(attached)}


async def measure_paused(server: Server, caller: Caller, count: int) -> dict[str, float]:
    """Returns the memory that each of many paused sessions keeps, and what they cost of a core."""
    before = _available_mb()
    made = [await caller.create() for _ in range(count)]
    for session in made:
        await caller.post(session, "pause")
    await asyncio.sleep(2.0)
    taken, start, begun = before - _available_mb(), server.cpu_s(), time.monotonic()
    await asyncio.sleep(5.0)
    busy = (server.cpu_s() - start) / (time.monotonic() - begun) * 100
    await caller.end(*made)
    return {"paused memory": taken / count, "server": busy}


def _available_mb() -> float:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) / 1024


# -- beside it


def measure_copy(times: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        source = Path(place) / "source"
        subprocess.run(["truncate", "-s", "1G", str(source)], check=True)
        subprocess.run(
            ["dd", "if=/dev/urandom", f"of={source}", "bs=1M", f"count={DATA_MB}", "conv=notrunc", "status=none"],
            check=True,
        )
        taken = [_run_ms("cp", "--sparse=always", str(source), f"{place}/copy{number}") for number in range(times)]
    return {"snapshot": statistics.median(taken), "stopped": statistics.median(taken)}


def measure_docker(times: int) -> dict[str, float]:
    """Returns nothing where no engine runs."""
    if shutil.which("docker") is None or subprocess.run(["docker", "version"], capture_output=True).returncode:
        print("  (no Docker engine runs here: its column is empty)")
        return {}
    name = f"warren-bench-{secrets.token_hex(4)}"
    found: dict[str, list[float]] = {key: [] for key in ("pause", "resume", "snapshot", "restore")}
    with _docker_image(name):
        try:
            run = ["docker", "run", "--detach", "--network", "none"]
            _run_ms(*run, "--name", name, name, "sleep", "600")
            _run_ms("docker", "exec", name, "sh", "-c", f"head -c {DATA_MB}M /dev/urandom > /data")
            for number in range(times):
                found["pause"].append(_run_ms("docker", "pause", name))
                found["resume"].append(_run_ms("docker", "unpause", name) + _run_ms("docker", "exec", name, "true"))
                copy = f"{name}-{number}"
                found["snapshot"].append(_run_ms("docker", "commit", name, copy))
                found["restore"].append(_run_ms(*run, "--name", copy, copy, "sleep", "600"))
                _run_ms("docker", "rm", "--force", copy)
                _run_ms("docker", "image", "rm", "--force", copy)
        finally:
            subprocess.run(["docker", "rm", "--force", name], capture_output=True)
    medians = {key: statistics.median(values) for key, values in found.items()}
    return {**medians, "stopped": medians["snapshot"]}  # commit pauses the container for as long as it takes


@contextmanager
def _docker_image(name: str) -> Iterator[None]:
    with subprocess.Popen(["tar", "-C", str(IMAGES / "base" / "rootfs"), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(["docker", "import", "-", name], stdin=tar.stdout, capture_output=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["docker", "image", "rm", "--force", name], capture_output=True)


def _run_ms(*argv: str) -> float:
    start = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True)
    return (time.perf_counter() - start) * 1000


ROWS: Final = (
    ("pause", "pause", "ms", 2.0),
    ("resume", "resume by a command, to its end", "ms", 30.0),
    ("stopped", f"a snapshot with {DATA_MB} MiB used: the sandbox stands still", "ms", 50.0),
    ("snapshot", "    the whole", "ms", None),
    ("restore", "a session from that snapshot", "ms", 50.0),
    ("fork", "10 forks with the same data, at once", "ms", 500.0),
    ("attach", "a volume attached to a running session", "ms", 10.0),
    ("paused memory", "a paused session, memory", "MiB", None),
    ("server", "the server while they are paused, of a core", "%", None),
)


async def main(quick: bool) -> int:
    times, paused = (4, 100) if quick else (20, 1000)
    found: dict[str, float] = {}
    with serving("--pool-size", "5", "--pool-max", "5", "--max-sandboxes", "2000") as server:
        async with server.clients(1) as [client]:
            await server.wait_for_pool(client, 5)
            caller = Caller(client)
            parts: tuple[Callable[[Caller, int], Awaitable[dict[str, float]]], ...] = (
                measure_pause,
                measure_snapshots,
                measure_volumes,
            )
            for part in parts:
                found |= await part(caller, times)
            found |= await measure_paused(server, caller, paused)
    beside = {"docker": measure_docker(min(times, 8)), "copy": measure_copy(times)}
    table = Table()
    for key, what, unit, target in ROWS:
        others = ", ".join(f"{name} {values[key]:.1f}" for name, values in beside.items() if key in values)
        met = None if target is None else found[key] <= target
        best = f" ({found[key].best:.1f})" if isinstance(found[key], Figure) else ""
        table.add(f"{what}{f' ({others})' if others else ''}", f"{found[key]:.2f}{best} {unit}", f"{target or ''}", met)
    return 1 if table.missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        raise SystemExit(runner.run(main(parser.parse_args().quick)))
