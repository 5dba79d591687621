"""The part of bench/speed.py that makes sandboxes without a server. It runs with the sources of one checkout.

    PYTHONPATH=CHECKOUT/src python bench/speed_sandboxes.py STATE_DIR PART COUNT    prints {figure: value} as JSON

It uses only what checkouts have in common: settings, the provider made from them, and the provider's interface.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop

from warren.app.wiring import build_provider
from warren.config.settings import read_settings
from warren.model.operations import Command
from warren.model.spec import Limits, SandboxSpec

TRUE = Command(argv=("true",))
SPEC = SandboxSpec(image="base")
QUIET_S = 0.2

Figures = dict[str, float]


async def timed(work: Awaitable[Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = await work
    return time.perf_counter() - start, found


async def create_and_run(provider: Any) -> Any:
    sandbox = await provider.create(SPEC)
    await sandbox.exec(TRUE)
    return sandbox


async def one_by_one(provider: Any, count: int) -> Figures:
    await provider.destroy((await create_and_run(provider)).id)
    created, quiet, ended = list[float](), list[float](), list[float]()
    for taken, pause_s, times in ((created, 0.0, count), (quiet, QUIET_S, count // 2)):
        for _ in range(times):
            await asyncio.sleep(pause_s)
            seconds, sandbox = await timed(create_and_run(provider))
            taken.append(seconds)
            ended.append((await timed(provider.destroy(sandbox.id)))[0])
    return {
        "back to back": statistics.median(created) * 1000,
        "after quiet": statistics.median(quiet) * 1000,
        "destroy": statistics.median(ended) * 1000,
    }


async def at_once(provider: Any, count: int, slots: int) -> tuple[float, list[Any]]:
    """Creates sandboxes at once. Returns creates per second, and the sandboxes."""
    free = asyncio.Semaphore(slots)

    async def one() -> Any:
        async with free:
            return await provider.create(SPEC)

    seconds, made = await timed(asyncio.gather(*(one() for _ in range(count))))
    return count / seconds, made


async def destroy_all(provider: Any, made: Sequence[Any]) -> float:
    seconds, _ = await timed(asyncio.gather(*(provider.destroy(sandbox.id) for sandbox in made)))
    return len(made) / seconds


async def rates(provider: Any, count: int) -> Figures:
    await provider.destroy((await create_and_run(provider)).id)
    created, made = await at_once(provider, count, 4)
    return {"creates": created, "destroys": await destroy_all(provider, made)}


async def many(provider: Any, count: int) -> Figures:
    """Returns creates per second with few and with many sandboxes alive, over 100 creates at each end."""
    _, made = await at_once(provider, 100, 4)
    few, more = await at_once(provider, 100, 4)
    made += more
    made += (await at_once(provider, max(0, count - len(made)), 4))[1]
    late, more = await at_once(provider, 100, 4)
    made += more
    return {"few": few, "many": late, "kept": late / few * 100, "destroys, many": await destroy_all(provider, made)}


async def wide(provider: Any, count: int) -> Figures:
    """As many creates at once as the provider does, after all that makes them was started. Also what they cost this
    process, and how long a command in another sandbox takes meanwhile."""
    lasting = await provider.create(SandboxSpec(image="base", limits=Limits(cpus=2)))  # less would hold it back
    await destroy_all(provider, (await at_once(provider, 64, 64))[1])
    await asyncio.sleep(1.0)  # the kernel ends namespaces later
    quiet = sorted([(await timed(lasting.exec(TRUE)))[0] for _ in range(count)])
    before = time.process_time()
    made_of_it = asyncio.ensure_future(at_once(provider, count, 64))
    beside = list[float]()
    while not made_of_it.done():
        beside.append((await timed(lasting.exec(TRUE)))[0])
    created, made = made_of_it.result()
    used = time.process_time() - before
    runs = [await sandbox.exec(TRUE) for sandbox in made]
    return {
        "creates": created,
        "good": sum(run.exit_code == 0 for run in runs) / count * 100,
        "exec p99": _p99(quiet) * 1000,
        "exec p99 beside": _p99(sorted(beside)) * 1000,
        "cpu": used / count * 1000,
        "destroys": await destroy_all(provider, made),
    }


def _p99(values: Sequence[float]) -> float:
    return values[min(len(values) - 1, len(values) * 99 // 100)]


PARTS: dict[str, Callable[[Any, int], Awaitable[Figures]]] = {
    "one_by_one": one_by_one,
    "rates": rates,
    "many": many,
    "wide": wide,
}


def _provider() -> Any:
    """As a server of this checkout has it; MAKERS says how many processes make its sandboxes."""
    try:
        from warren.app.wiring import makers_of
    except ImportError:  # a checkout from before there were any
        return build_provider(read_settings(), "oci")
    settings = read_settings()
    return build_provider(settings, "oci", makers=int(os.environ.get("MAKERS", makers_of(settings))))


async def main(state_dir: str, part: str, count: int) -> None:
    os.environ.update(WARREN_STATE_DIR=state_dir, WARREN_CONFIG="/dev/null")
    provider = _provider()
    try:
        found = await PARTS[part](provider, count)
    finally:
        for sandbox_id in await provider.list_ids():
            await provider.destroy(sandbox_id)
        await provider.close()
    print(json.dumps(found))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
