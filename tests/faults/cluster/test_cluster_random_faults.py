"""Faults at random moments in a busy cluster; the invariants hold after each of them.

A seed gives which faults come, in which order and for how long; what the cluster is doing then differs each time. The
environment may give another seed (`random`: any), another number of faults, and what they are to be called (`kill`:
only kills of processes), as `make endurance` does.
"""

import asyncio
import os
import random
import secrets
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from faults.cluster.cluster_caller import ClusterCaller, calling_cluster
from faults.cluster.cluster_clients import ClusterClient, ClusterLedger
from faults.cluster.cluster_invariants import check_cluster
from faults.cluster.cluster_world import SURE_S, ClusterWorld, stopped
from faults.host_view import child_of
from faults.world import until

SEED: Final = os.environ.get("ENDURANCE_SEED") or "20241115"
COUNT: Final = int(os.environ.get("ENDURANCE_COUNT") or 12)
CLIENTS: Final = 6
QUOTA: Final = 12  # less than the clients would hold together
KINDS: Final = os.environ.get("ENDURANCE_KINDS") or ""
LONGEST_PAUSE_S: Final = 12.0

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300 + 60 * COUNT), pytest.mark.extended]

Fault = Callable[[ClusterWorld, ClusterCaller, ClusterLedger, random.Random], Awaitable[set[str]]]
"""Gives the names of the workers whose sessions may have been given up over it."""


async def kill_worker(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    return await _ended(world, chance, signal.SIGKILL)


async def roll_worker(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    return await _ended(world, chance, signal.SIGTERM)


async def _ended(world: ClusterWorld, chance: random.Random, number: int) -> set[str]:
    name, worker = chance.choice(list(world.workers.items()))
    began = asyncio.get_running_loop().time()
    worker.send(number)
    await world.restart(worker)
    return {name} if asyncio.get_running_loop().time() - began > SURE_S else set()


async def pause_worker(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    name, worker = chance.choice(list(world.workers.items()))
    began = asyncio.get_running_loop().time()
    with stopped(worker.pid):
        await asyncio.sleep(chance.uniform(1, LONGEST_PAUSE_S))
    return {name} if asyncio.get_running_loop().time() - began > SURE_S else set()


async def give_up_worker(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    """It is dead until its sessions are lost."""
    name, worker = chance.choice(list(world.workers.items()))
    worker.kill()

    async def given_up() -> bool:
        answer = await caller.ask("GET", "/api/sessions", params={"limit": "1000", "state": "running"})
        return answer.ok and not any(session["worker"] == name for session in answer.body["sessions"])

    await until(given_up, f"the sessions of {name} are lost", 40)
    await world.restart(worker)
    return {name}


async def kill_maker(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    return await _child_killed(world, chance, "warren.app.maker")


async def kill_egress(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    return await _child_killed(world, chance, "warren.sandboxes.egress")


async def _child_killed(world: ClusterWorld, chance: random.Random, module: str) -> set[str]:
    """A worker starts another one when it has work for it, and none of its sessions is lost over it."""

    async def is_killed() -> bool:
        found = [pid for worker in world.workers.values() if (pid := child_of(worker.pid, module))]
        if found:
            os.kill(chance.choice(found), signal.SIGKILL)
        return bool(found)

    await until(is_killed, f"a worker has a process {module}")
    return set()


async def kill_coordinator(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    return await _coordinator_ended(world, chance, signal.SIGKILL)


async def roll_coordinator(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    return await _coordinator_ended(world, chance, signal.SIGTERM)


async def _coordinator_ended(world: ClusterWorld, chance: random.Random, number: int) -> set[str]:
    coordinator = chance.choice(world.coordinators)
    coordinator.send(number)
    await world.restart(coordinator)
    return set()


async def pause_coordinator(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    with stopped(chance.choice(world.coordinators).pid):
        await asyncio.sleep(chance.uniform(1, LONGEST_PAUSE_S))
    return set()


async def kill_redis(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    world.redis.kill()
    await asyncio.sleep(chance.uniform(0, 3))
    world.restart_redis()
    return set()


async def pause_redis(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    with stopped(world.redis.pid):
        await asyncio.sleep(chance.uniform(1, LONGEST_PAUSE_S))
    return set()


async def flush_redis(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    world.redis.ask("FLUSHALL")
    await _without_data(caller, ledger)
    return set()


async def empty_redis(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, chance: random.Random
) -> set[str]:
    world.redis.kill()
    await asyncio.sleep(chance.uniform(0, 3))
    world.restart_redis(with_data=False)
    await _without_data(caller, ledger)
    return set()


async def _without_data(caller: ClusterCaller, ledger: ClusterLedger) -> None:
    """What an operator has set is set again."""
    ledger.data_lost = True

    async def is_set() -> bool:
        return await set_quota(caller)

    await until(is_set, "the quota is set again")


async def set_quota(caller: ClusterCaller) -> bool:
    return (await caller.ask("PUT", "/api/admin/tenants/default", json={"quota": {"sessions": QUOTA}})).ok


FAULTS: Final[dict[Fault, int]] = {
    kill_worker: 9,
    roll_worker: 5,
    pause_worker: 5,
    give_up_worker: 2,
    kill_maker: 5,
    kill_egress: 4,
    kill_coordinator: 8,
    roll_coordinator: 5,
    pause_coordinator: 4,
    kill_redis: 7,
    pause_redis: 4,
    flush_redis: 2,
    empty_redis: 2,
}


async def test_random_faults_break_no_promise(image_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = secrets.randbelow(1_000_000) if SEED == "random" else int(SEED)
    with capsys.disabled():
        print(f"\nseed {seed}, {COUNT} faults")
    chance = random.Random(seed)
    order = in_order(seed, chance)
    world, ledger, survived, doing = ClusterWorld(image_cache, "--makers", "1"), ClusterLedger(), 0, ""
    clients = [ClusterClient(number, random.Random(chance.random()), ledger) for number in range(CLIENTS)]
    try:
        world.start()
        async with calling_cluster(world.urls, random.Random(chance.random())) as caller:
            assert await set_quota(caller)
            for fault in order:
                doing = fault.__name__
                await one_fault(world, caller, clients, ledger, fault, chance)
                survived, doing = survived + 1, ""
    except BaseException as exc:
        with capsys.disabled():
            print(f"\nseed {seed} broke at fault {survived + 1}, {doing}: {exc}")
            print(*world.words_about(str(exc)), *world.last_words(), sep="\n")
        raise
    finally:
        with capsys.disabled():
            done: Counter[str] = sum((client.done for client in clients), start=Counter())
            print(
                f"\nseed {seed}, faults survived / tried: {survived} / {COUNT}; answers: {dict(sorted(done.items()))}"
            )
        await asyncio.to_thread(world.close)


def in_order(seed: int, chance: random.Random) -> list[Fault]:
    """All faults, each as often as it is to come, and if more are wanted, all of them again in another order."""
    faults = [fault for fault, count in FAULTS.items() if fault.__name__.startswith(KINDS) for _ in range(count)]
    chance.shuffle(faults)
    order = list(faults)
    while len(order) < COUNT:
        random.Random(seed + len(order)).shuffle(faults)
        order += faults
    return order[:COUNT]


async def one_fault(
    world: ClusterWorld,
    caller: ClusterCaller,
    clients: list[ClusterClient],
    ledger: ClusterLedger,
    fault: Fault,
    chance: random.Random,
) -> None:
    ledger.data_lost = False
    over = asyncio.Event()
    working = [asyncio.ensure_future(client.work(caller, over.is_set)) for client in clients]
    try:
        await asyncio.sleep(chance.uniform(0.1, 0.6))
        may_lose = await fault(world, caller, ledger, chance)
        await world.recovered(caller)
    finally:
        over.set()
        await asyncio.gather(*working)
    await check_cluster(world, caller, ledger, may_lose, QUOTA)
