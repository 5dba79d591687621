"""Fifty kills at random moments, under ten busy clients; the invariants hold after each of them."""

import asyncio
import random
from pathlib import Path

import pytest
from faults.caller import Caller, calling
from faults.clients import Client
from faults.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900), pytest.mark.extended]

KILLS = 50
CLIENTS = 10
SEED = 20_240_607


async def test_fifty_kills_at_random_moments_lose_nothing(
    image_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    world = World(image_cache, "--makers", "2")
    clients = [Client(number, random.Random(chance.random()), world.ledger) for number in range(CLIENTS)]
    survived = 0
    try:
        async with calling(world.server.url) as caller:
            for _ in range(KILLS):
                await one_kill(world, caller, clients, chance.uniform(0.02, 0.8))
                survived += 1
    finally:
        with capsys.disabled():
            done = sum((client.done for client in clients), start=clients[0].done.__class__())
            print(f"\n{survived} of {KILLS} kills survived; requests that were answered: {dict(sorted(done.items()))}")
        await asyncio.to_thread(world.close)


async def one_kill(world: World, caller: Caller, clients: list[Client], after_s: float) -> None:
    working = [asyncio.ensure_future(client.work(caller)) for client in clients]
    await asyncio.sleep(after_s)
    world.server.kill()
    await asyncio.gather(*working)
    await asyncio.to_thread(world.restart)
    await asyncio.gather(*(client.come_back(caller) for client in clients))
    await world.check(caller)
