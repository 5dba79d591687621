"""The network is cut between processes of a cluster: no thread has two sandboxes that can be written to, what can be
reached goes on, and after healing all is as if nothing had been."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from faults.cluster.cluster_caller import ClusterCaller, calling_cluster
from faults.cluster.cluster_invariants import ended
from faults.cluster.networked_cluster import HEADERS, NetworkedWorld
from faults.cluster.test_cluster_pauses import (
    check_given_up,
    check_refused_for_now,
    given_up,
    is_lost,
    started_anew,
    thread_with_file,
    used_for,
)
from faults.world import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.extended]

CUT_S: Final = 12.0  # longer than a lease
LONG_S: Final = 21.0


@pytest.fixture(scope="module")
def world(image_cache: Path) -> Iterator[NetworkedWorld]:
    world = NetworkedWorld(image_cache)
    try:
        world.start()
        yield world
    finally:
        world.close()


@pytest.fixture
async def caller(world: NetworkedWorld) -> AsyncIterator[ClusterCaller]:
    async with calling_cluster(world.urls, new_socket=world.network.new_socket, headers=HEADERS) as caller:
        await world.recovered(caller)
        yield caller
        await world.recovered(caller)
        for session in await caller.sessions():
            await ended(caller, session["session_id"])
        await world.settled(caller)


async def known_to_all(caller: ClusterCaller, thread_id: str) -> dict[str, Any]:
    """A thread's session that was used through every coordinator."""
    session = await thread_with_file(caller, thread_id)
    for number in range(len(caller.urls)):
        assert await caller.through(number).output(session["session_id"], "cat thread.txt") == thread_id
    return session


async def epochs(caller: ClusterCaller) -> dict[str, int]:
    return {worker["id"]: worker["epoch"] for worker in (await caller.cluster())["workers"]}


async def test_a_worker_without_redis_goes_on_by_the_coordinators(world: NetworkedWorld, caller: ClusterCaller) -> None:
    session, before = await known_to_all(caller, "renewed"), await epochs(caller)
    with world.network.cut([world.places[session["worker"]]], [world.places["redis"]]):
        await used_for(caller, session["session_id"], CUT_S)
        assert (await caller.show(session["session_id"])).good()["state"] == "running"
    assert await epochs(caller) == before


async def test_a_worker_that_one_coordinator_cannot_reach_loses_nothing(
    world: NetworkedWorld, caller: ClusterCaller
) -> None:
    session, before = await known_to_all(caller, "half"), await epochs(caller)
    with world.network.cut([world.places[session["worker"]]], [world.places["c1"]]):
        refused = asyncio.ensure_future(caller.through(0).exec(session["session_id"], "true"))
        await used_for(caller.through(1), session["session_id"], CUT_S)
        assert (await caller.through(1).show(session["session_id"])).good()["state"] == "running"
        assert (await refused).status in (502, 503)
    assert await epochs(caller) == before
    assert await caller.through(0).output(session["session_id"], "cat thread.txt") == "half"


async def test_a_coordinator_without_redis_serves_what_runs_and_makes_nothing(
    world: NetworkedWorld, caller: ClusterCaller
) -> None:
    session = await known_to_all(caller, "apart")
    cut_off, other = caller.through(0), caller.through(1)
    with world.network.cut([world.places["c1"]], [world.places["redis"]]):
        await asyncio.gather(
            used_for(cut_off, session["session_id"], CUT_S), used_for(other, session["session_id"], CUT_S)
        )
        check_refused_for_now(await cut_off.create(thread_id="nowhere"))
        made = (await other.create(thread_id="elsewhere")).good()
        assert await other.output(made["session_id"], "echo hello") == "hello\n"
    assert await cut_off.output(session["session_id"], "cat thread.txt") == "apart"


async def test_a_worker_that_nobody_reaches_is_given_up_and_clears_away_its_sandbox(
    world: NetworkedWorld, caller: ClusterCaller
) -> None:
    old = await known_to_all(caller, "alone")
    everybody = set(world.places.values())
    with world.network.cut([world.places[old["worker"]]], everybody):
        await given_up(caller, old)
        new = await started_anew(caller, old)
    await world.recovered(caller)
    await until(lambda: one_sandbox(world, "alone"), "the old sandbox is gone")
    await check_given_up(world, caller, old["session_id"])
    assert await caller.output(new["session_id"], "cat thread.txt") == "alone"


async def one_sandbox(world: NetworkedWorld, thread_id: str) -> bool:
    return world.threads()[thread_id] == 1


async def test_without_redis_everything_that_runs_goes_on(world: NetworkedWorld, caller: ClusterCaller) -> None:
    sessions = [await known_to_all(caller, f"on-{number}") for number in range(3)]
    others = [place for name, place in world.places.items() if name != "redis"]
    with world.network.cut([world.places["redis"]], others):
        await asyncio.gather(*(used_for(caller, session["session_id"], LONG_S) for session in sessions))
        for number in range(len(caller.urls)):
            check_refused_for_now(await caller.through(number).create())
    await world.recovered(caller)
    for session in sessions:
        assert await caller.output(session["session_id"], "cat thread.txt") == session["thread_id"]


async def test_two_halves_never_write_to_two_sandboxes_of_one_thread(
    world: NetworkedWorld, caller: ClusterCaller
) -> None:
    old = await known_to_all(caller, "halves")
    mine = [world.places[old["worker"]], world.places["c1"]]
    theirs = [place for place in world.places.values() if place not in mine]
    over = asyncio.Event()
    with world.network.cut(mine, theirs):
        writing = asyncio.ensure_future(written(caller.through(0), old["session_id"], over))
        await given_up(caller.through(1), old)
        parted = time.monotonic()
        new = await started_anew(caller.through(1), old)
        await used_for(caller.through(1), new["session_id"], 3)
        over.set()
        begun = await writing
    assert begun, "nothing was written before the worker was fenced"
    assert max(begun) < parted
    await world.recovered(caller)
    await until(lambda: one_sandbox(world, "halves"), "the old sandbox is gone")
    await check_given_up(world, caller, old["session_id"])
    assert await caller.output(new["session_id"], "cat thread.txt") == "halves"


async def test_a_coordinator_that_is_started_into_a_partition_gives_up_nobody(
    world: NetworkedWorld, caller: ClusterCaller
) -> None:
    """The worker goes on, because the one coordinator that it knows has lost Redis too."""
    session = await known_to_all(caller, "unheard-of")
    worker, late = session["worker"], world.coordinators[1]
    assert await asyncio.to_thread(late.stop) == 0

    async def knows_one() -> bool:
        return len(world.known_coordinators(worker)) == 1

    await until(knows_one, "the worker has heard that the other coordinator is gone")
    mine = [world.places[worker], world.places["c1"]]
    theirs = [place for place in world.places.values() if place not in mine]
    with world.network.cut(mine, theirs):
        late.start(wait=False)
        await asyncio.gather(
            used_for(caller.through(0), session["session_id"], LONG_S), asyncio.to_thread(late.wait_until_ready)
        )
        assert (await caller.through(1).show(session["session_id"])).status == 503
        assert not await is_lost(caller.through(1), session["session_id"])
        assert (await caller.through(1).create(thread_id="unheard-of", replace_lost=True)).status == 503
    await world.recovered(caller)
    assert await caller.output(session["session_id"], "cat thread.txt") == "unheard-of"


async def written(caller: ClusterCaller, session_id: str, over: asyncio.Event) -> list[float]:
    """When each command that was done began."""
    begun = []
    while not over.is_set():
        now = time.monotonic()
        if (await caller.exec(session_id, "echo x >> written.txt")).ok:
            begun.append(now)
        await asyncio.sleep(0.05)
    return begun
