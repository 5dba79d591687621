"""Many sessions at once through two coordinators: all are made, and they are spread evenly over the workers."""

import asyncio
from collections import Counter
from typing import Any, Final

import pytest
from faults.cluster.cluster_caller import ClusterCaller, calling_cluster
from faults.cluster.cluster_world import ClusterWorld
from faults.cluster.conftest import NewWorld

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.extended]

AT_ONCE: Final = 50
UNEVEN: Final = 0.2  # so far from an equal share a worker may be


@pytest.mark.parametrize(("provider", "count"), [("fake", 1000), ("oci", 300)])
async def test_all_are_made_and_no_worker_has_much_more_than_its_share(
    new_world: NewWorld, provider: str, count: int
) -> None:
    world: ClusterWorld = new_world(provider=provider)
    async with calling_cluster(world.urls) as caller:
        made = await all_made(caller, count)
        share = count / len(world.workers)
        held = Counter(session["worker"] for session in made)
        assert set(held) == set(world.workers)
        assert all(abs(number - share) <= UNEVEN * share for number in held.values()), held
        await at_most(AT_ONCE, [caller.delete(session["session_id"]) for session in made])
    await asyncio.to_thread(world.cluster.stop)


async def all_made(caller: ClusterCaller, count: int) -> list[dict[str, Any]]:
    answers = await at_most(AT_ONCE, [caller.create() for _ in range(count)])
    refused = Counter(f"{one.status}: {one.body.get('detail')}" for one in answers if not one.ok)
    assert not refused
    return [answer.body for answer in answers]


async def at_most(number: int, work: list[Any]) -> list[Any]:
    """All of it, so many at a time."""
    room = asyncio.Semaphore(number)

    async def one(doing: Any) -> Any:
        async with room:
            return await doing

    return await asyncio.gather(*map(one, work))
