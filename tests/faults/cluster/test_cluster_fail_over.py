"""Redis' primary dies under busy clients, and another server takes over: what is lost is told, nothing is doubled."""

import asyncio
import random
from pathlib import Path

import pytest
from faults.cluster.cluster_caller import ClusterCaller, calling_cluster
from faults.cluster.cluster_clients import ClusterClient, ClusterLedger
from faults.cluster.cluster_world import ClusterWorld
from faults.cluster.redis_groups import AsCluster, RedisGroup, WithSentinels
from faults.cluster.test_cluster_random_faults import one_fault, set_quota

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.extended]

_CLIENTS, _ROUNDS = 6, 4


async def fail_over(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    assert isinstance(world.redis, RedisGroup)
    await asyncio.to_thread(world.redis.kill_primary)
    await asyncio.sleep(chance.uniform(0, 2))
    await asyncio.to_thread(world.redis.heal)
    return set()


@pytest.mark.parametrize("kind", [WithSentinels, AsCluster])
async def test_fail_overs_of_redis_under_load_break_no_promise(
    image_cache: Path, kind: type[WithSentinels | AsCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(5)
    world, ledger = ClusterWorld(image_cache, redis=kind), ClusterLedger()
    clients = [ClusterClient(number, random.Random(chance.random()), ledger) for number in range(_CLIENTS)]
    try:
        world.start()
        async with calling_cluster(world.urls, random.Random(chance.random())) as caller:
            assert await set_quota(caller)
            for _ in range(_ROUNDS):
                await one_fault(world, caller, clients, ledger, fail_over, chance)
    except BaseException as exc:
        with capsys.disabled():
            print(*world.words_about(str(exc)), *world.last_words(), sep="\n")
        raise
    finally:
        await asyncio.to_thread(world.close)
