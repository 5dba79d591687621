"""Measures what it costs to read the metrics of all sessions of a server, with fake and with real sandboxes.

    sudo .venv/bin/python bench/session_metrics.py                        200 and 1,000 fakes, 50 sandboxes
    sudo .venv/bin/python bench/session_metrics.py --count 200 --read 20  200 real sandboxes, each read 20 times

The processor time is that of this process, threads and kernel included. A round is what the server does every ten
seconds; the share is what it takes of a core then. `held` is the most that it does before other tasks have a turn.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop
from table import Table

import warren
from warren.images.store.store import ImageStore
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.kernel.clock import SystemClock
from warren.model.session import Session
from warren.model.spec import Limits, SandboxSpec
from warren.sandboxes.providers.oci import OciProvider
from warren.sessions.metrics import READ_S, SHARE, MetricsMeter
from warren.testing.fake_provider import FakeProvider

ROOT = Path(__file__).parents[1]
BIN = Path(warren.__file__).parent / "bin"
IMAGES = ROOT / "build" / "test-state" / "images"


def a_session(sandbox: Sandbox, clock: SystemClock) -> Session:
    now = clock.now()
    return Session(
        id=f"ses_{sandbox.id}",
        tenant="bench",
        environment="base",
        epoch=clock.epoch,
        created_at=clock.wall(),
        started=now,
        used=now,
        sandbox_id=sandbox.id,
        limits=Limits(),
    )


async def measure(table: Table, what: str, sandboxes: list[Sandbox], rounds: int, per_session: int) -> None:
    """Measures the rounds. `per_session` is the number of sessions that the printed share is for."""
    clock = SystemClock()
    by_id = {sandbox.id: sandbox for sandbox in sandboxes}

    async def find(session: Session) -> Sandbox:
        return by_id[session.sandbox_id]

    meter = MetricsMeter(clock, find)
    for sandbox in sandboxes:
        meter.follow(a_session(sandbox, clock))
    await meter.read_all()
    wall, used = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        await meter.read_all()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    each = used / rounds / len(sandboxes)
    share = each * per_session / READ_S
    held = await busiest_turn(meter.read_all())
    table.add(f"{what}: a round", f"{wall / rounds * 1000:.1f} ms")
    table.add(f"{what}: processor time a session", f"{each * 1e6:.0f} us")
    table.add(f"{what}: share of a core with {per_session} sessions", f"{share:.2%}", f"<= {SHARE:.0%}", share <= SHARE)
    table.add(f"{what}: held", f"{held * 1000:.1f} ms", "<= 50 ms", held <= 0.05)


async def busiest_turn(work: Coroutine[Any, Any, None]) -> float:
    """Returns the most processor time that the work took on the loop before others had their turn."""
    task, longest = asyncio.create_task(work), 0.0
    while not task.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
    await task
    return longest


async def fakes(table: Table, count: int, rounds: int) -> None:
    provider = FakeProvider()
    sandboxes = [await provider.create(SandboxSpec()) for _ in range(count)]
    await measure(table, f"{count} fakes", sandboxes, rounds, count)


async def host_sandboxes(table: Table, count: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="wb-") as name:
        state = Path(name)
        (state / "images").symlink_to(IMAGES)
        provider: Provider = OciProvider(state, ImageStore(state), BIN)
        made: list[Sandbox] = []
        try:
            for _ in range(count):
                made.append(await provider.create(SandboxSpec(image="host")))
            await measure(table, f"{count} sandboxes", made, rounds, 1000)
        finally:
            for sandbox in made:
                await provider.destroy(sandbox.id)
            await provider.close()


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="sandboxes of the host")
    parser.add_argument("--read", type=int, default=20, help="rounds of each part")
    options = parser.parse_args()
    table = Table()
    for count in (200, 1000):
        await fakes(table, count, options.read)
    await host_sandboxes(table, options.count, options.read)
    return 1 if table.missed else 0


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main()))
