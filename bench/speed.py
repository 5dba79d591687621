"""Measures how fast sandboxes and sessions are made, used and ended, beside another checkout of Warren, in turns.

    sudo .venv/bin/python bench/speed.py                          this checkout
    sudo .venv/bin/python bench/speed.py --against DIRECTORY      beside another one, whose C parts are built too
    sudo .venv/bin/python bench/speed.py --quick one_by_one pool  few requests, and only these parts

Parts: one_by_one, rates, many (without a server); pool, burst, learned, commands, bulk (over HTTP, each with a fresh
state directory). Each round measures every part for both checkouts; figures are medians of the rounds. --quick does
less of everything than the table says. The client shares the cores with the server. Absolute times depend on the
machine, and on what else it does: compare the columns.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop
from bursts import burst
from service_server import IMAGES, ROOT, serving

from warren.measure.http_client import Client, cleanup, create, exec_message
from warren.measure.requests import cleanups, commands, creates, first_output, time_requests

Figures = dict[str, float]
_THINK_S = 0.1  # pause between two creates, in which the pool refills
_AT_ONCE = 50


@dataclass(frozen=True)
class Row:
    """A row of the table. `key` names a figure of what the parts return. A rate should be high, everything else low."""

    key: str
    what: str
    unit: str
    target: float | None = None

    @property
    def is_rate(self) -> bool:
        return self.unit in ("/s", "%")

    def shows(self, value: float) -> str:
        return f"{value:.0f} {self.unit}" if value >= 100 else f"{value:.3g} {self.unit}".rstrip()

    def met(self, value: float) -> bool | None:
        if self.target is None:
            return None
        return value >= self.target if self.is_rate else value <= self.target


ROWS = (
    Row("back to back", "cold create to first command, back to back", "ms", 12),
    Row("after quiet", "    after 0.2 s of quiet", "ms", 22),
    Row("creates", "creates, 4 at once", "/s", 150),
    Row("destroy", "destroy", "ms", 4),
    Row("destroys", "destroys", "/s", 300),
    Row("few", "creates, 4 at once, at 100 live", "/s"),
    Row("many", "    at 1,000 live", "/s"),
    Row("kept", "    of the rate at 100", "%", 80),
    Row("destroys, many", "    destroying them", "/s"),
    Row("from pool", "create from the pool over HTTP", "ms", 2),
    Row("first output", "create to first output, one by one", "ms", 4.5),
    Row("exec", "exec of true over HTTP, argv", "ms", 1.7),
    Row("burst 20, last", "100 at once to first output, pool of 20, all done", "s", 0.45),
    Row("burst 20, p50", "    p50", "s"),
    Row("burst 100, last", "100 at once to first output, 100 ready, all done", "s", 0.25),
    Row("burst 100, p50", "    p50", "s"),
    Row("learned, last", "100 at once for the second time, default pool, all done", "s"),
    Row("learned, p50", "    p50", "s"),
    Row("learned, ready", "    ready before them", ""),
    Row("commands", "commands over 50 sessions", "/s", 1200),
    Row("bulk", "1,000 creates, 50 at once, over HTTP", "/s", 110),
    Row("good", "    of them good", "%", 100),
    Row("memory", "idle sessions, memory each", "MiB", 0.8),
    Row("ends", "    ending them", "/s"),
)


# -- without a server


def in_child(part: str, count: int, source: Path) -> Figures:
    state = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    (state / "images").symlink_to(IMAGES)
    argv = [sys.executable, str(ROOT / "bench" / "speed_sandboxes.py"), str(state), part, str(count)]
    try:
        done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(source)}, stdout=subprocess.PIPE, check=True)
        return dict(json.loads(done.stdout))
    finally:
        shutil.rmtree(state, ignore_errors=True)


# -- over HTTP


async def pool_part(source: Path, quick: bool) -> Figures:
    times = 15 if quick else 100
    with serving("--pool-size", "5", "--pool-max", "5", PYTHONPATH=str(source)) as server:
        async with server.clients(1) as [client]:
            await server.wait_for_pool(client, 5)
            taken, first = list[float](), list[float]()
            for _ in range(times):
                start = time.perf_counter()
                session_id = await create(client)
                taken.append(time.perf_counter() - start)
                await cleanup(client, session_id)
                await asyncio.sleep(_THINK_S)
            for _ in range(times):
                seconds, session_id = await first_output(client)
                first.append(_good(seconds))
                await cleanup(client, session_id)
                await asyncio.sleep(_THINK_S)
            line = exec_message(await create(client), ["true"])
            await time_requests(client, line, 50)
            ran = await time_requests(client, line, 5 * times)
    return {"from pool": _ms(taken), "first output": _ms(first), "exec": _ms(ran)}


async def burst_part(source: Path, quick: bool) -> Figures:
    count, found = 30 if quick else 100, Figures()
    for name, size in (("burst 20", count // 5), ("burst 100", count)):
        with serving("--pool-size", str(size), "--pool-max", str(size), PYTHONPATH=str(source)) as server:
            async with server.clients(count) as clients:
                await server.wait_for_pool(clients[0], size)
                taken = [_good(seconds) for seconds in await burst(clients)]
        found |= {f"{name}, last": max(taken), f"{name}, p50": statistics.median(taken)}
    return found


async def learned_part(source: Path, quick: bool) -> Figures:
    """Measures the second of two bursts, some seconds apart: the pool decides how many sandboxes it finds ready."""
    with serving(PYTHONPATH=str(source)) as server:
        async with server.clients(30 if quick else 100) as clients:
            await server.wait_for_pool(clients[0], 5)
            await burst(clients)
            ready, now = -1, 0
            while now > ready:
                ready = now
                await asyncio.sleep(2.0)
                now = await server.pool(clients[0])
            taken = [_good(seconds) for seconds in await burst(clients)]
    return {"learned, last": max(taken), "learned, p50": statistics.median(taken), "learned, ready": now}


async def commands_part(source: Path, quick: bool) -> Figures:
    with serving("--pool-size", "20", "--pool-max", "20", PYTHONPATH=str(source)) as server:
        async with server.clients(_AT_ONCE) as clients:
            await server.wait_for_pool(clients[0], 20)
            made = await asyncio.gather(*(create(client) for client in clients))
            await server.wait_for_pool(clients[0], 20)
            await commands(clients, made, 0.5)
            rate, _ = await commands(clients, made, 1.0 if quick else 5.0)
    return {"commands": rate}


async def bulk_part(source: Path, quick: bool) -> Figures:
    total = 100 if quick else 1000
    with serving("--pool-size", "20", "--pool-max", "20", PYTHONPATH=str(source)) as server:
        async with server.clients(_AT_ONCE) as clients:
            await server.wait_for_pool(clients[0], 20)
            await _warm_up(clients[0])
            await server.wait_for_pool(clients[0], 20)
            _settle()
            before = _available_mb()
            outcome, made = await creates(clients, total)
            await server.wait_for_pool(clients[0], 20)
            _settle()
            fall = before - _available_mb()
            ended = await cleanups(clients, made)
    good = len(made) / total * 100
    return {"bulk": outcome.rate, "good": good, "memory": fall / max(1, len(made)), "ends": ended.rate}


async def _warm_up(client: Client) -> None:
    await cleanup(client, await create(client))


def _good(seconds: float | None) -> float:
    if seconds is None:
        raise RuntimeError("a session of the burst failed")
    return seconds


def _ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1000


def _settle() -> None:
    """Drops the caches, which are not part of what a session costs, and waits for the memory to settle."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
    time.sleep(1)


def _available_mb() -> float:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) / 1024


# -- all of it

# counts of a full and of a quick run
ALONE: dict[str, tuple[int, int]] = {"one_by_one": (30, 6), "rates": (100, 16), "many": (1000, 250)}
SERVED: dict[str, Callable[[Path, bool], Awaitable[Figures]]] = {
    "pool": pool_part,
    "burst": burst_part,
    "learned": learned_part,
    "commands": commands_part,
    "bulk": bulk_part,
}


async def measure(part: str, source: Path, quick: bool) -> Figures:
    if part in ALONE:
        return await asyncio.to_thread(in_child, part, ALONE[part][quick], source)
    return await SERVED[part](source, quick)


async def run(parts: list[str], against: Path | None, rounds: int, quick: bool, as_json: bool) -> int:
    sources = {**({"that": against / "src"} if against else {}), "this": ROOT / "src"}
    for source in sources.values():
        if not (source / "warren" / "bin" / "warren-launch").exists():
            print(f"{source.parent} is not built: run make -C agent and make -C launcher there", file=sys.stderr)
            return 2
    found: dict[str, dict[str, list[float]]] = {name: {} for name in sources}
    for number in range(rounds):
        for part in parts:
            for name, source in sources.items():
                print(f"round {number + 1} of {rounds}: {part}, {name}", file=sys.stderr, flush=True)
                for key, value in (await measure(part, source, quick)).items():
                    found[name].setdefault(key, []).append(value)
    medians = {name: {key: statistics.median(values) for key, values in each.items()} for name, each in found.items()}
    print(json.dumps(medians, indent=2) if as_json else "\n".join(table(medians)))
    return 0


def table(medians: dict[str, Figures]) -> list[str]:
    old, new = medians.get("that"), medians["this"]
    lines = [f"{os.cpu_count()} cores, {os.uname().machine}, Linux {os.uname().release}"]
    lines.append(f"{'':<56}{'that':>12}{'this':>12}{'':>8}  target")
    for row in ROWS:
        if row.key not in new:
            continue
        that = row.shows(old[row.key]) if old else ""
        ratio = f"x{new[row.key] / old[row.key]:.2f}" if old and old[row.key] else ""
        sign, met = ">=" if row.is_rate else "<=", row.met(new[row.key])
        target = "" if met is None else f"{sign} {row.target:g} {row.unit}: {'yes' if met else 'NO'}"
        lines.append(f"{row.what:<56}{that:>12}{row.shows(new[row.key]):>12}{ratio:>8}  {target}")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="only these parts")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    known = [*ALONE, *SERVED]
    if unknown := set(given.parts) - set(known):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    chosen = [part for part in known if not given.parts or part in given.parts]
    against = given.against.absolute() if given.against else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(run(chosen, against, given.rounds, given.quick, given.as_json)))
