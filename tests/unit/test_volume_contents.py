"""What is in volumes, for callers without a sandbox: who may have how many sandboxes for that, and when they end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from unit.session_world import TENANT, World

from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.errors import Conflict, NotFound, RateLimited, Stopping, Unavailable
from warren.sessions.volumes.contents import ROOT, VolumeContents
from warren.testing.fake_provider import FakeProvider

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World(provider=FakeProvider(capabilities=frozenset({Capability.VOLUMES})))
    await made.worker.start()
    yield made
    await contents(made).close()
    await made.lifecycle.wait_for_tasks()
    await made.worker.close()


def contents(world: World) -> VolumeContents:
    return world.lifecycle.volumes.contents


async def volume(world: World, name: str = "data", tenant: str = TENANT) -> str:
    return (await world.lifecycle.volumes.create(tenant, name, 32)).id


async def read(sandbox: Sandbox, path: str) -> bytes:
    return b"".join([part async for part in sandbox.read(f"{ROOT}/{path}")])


async def sandboxes(world: World) -> int:
    return len(await world.provider.list_ids())


async def test_one_sandbox_serves_a_volume_and_ends_when_nobody_uses_it(world: World) -> None:
    made = await volume(world)
    async with contents(world).using(TENANT, made, "base") as sandbox:
        await sandbox.write(f"{ROOT}/a", b"kept")
        async with contents(world).using(TENANT, made, "base") as same:
            assert same is sandbox
        await world.clock.advance(60)
        await asyncio.sleep(0.01)
        assert await read(sandbox, "a") == b"kept"
    assert await sandboxes(world) == 1
    assert (await world.sessions.store.active()) == []
    for _ in range(3):
        await world.clock.advance(25)
        await asyncio.sleep(0.01)
    assert await sandboxes(world) == 0
    async with contents(world).using(TENANT, made, "base") as sandbox:
        assert await read(sandbox, "a") == b"kept"


async def test_many_who_come_at_once_get_one_sandbox(world: World) -> None:
    made = await volume(world)

    async def write(number: int) -> None:
        async with contents(world).using(TENANT, made, "base") as sandbox:
            await sandbox.write(f"{ROOT}/{number}", b"")

    await asyncio.gather(*map(write, range(20)))
    assert await sandboxes(world) == 1


async def test_a_volume_that_is_read_is_not_deleted_and_one_that_was_is(world: World) -> None:
    made = await volume(world)
    async with contents(world).using(TENANT, made, "base"):
        for change in (world.lifecycle.volumes.delete(TENANT, made), world.lifecycle.volumes.copy(TENANT, made, "b")):
            with pytest.raises(Conflict, match="somebody reads or writes"):
                await change
    assert (await world.lifecycle.volumes.copy(TENANT, made, "b")).name == "b"
    async with contents(world).using(TENANT, made, "base"):
        pass
    await world.lifecycle.volumes.delete(TENANT, made)
    assert await sandboxes(world) == 0
    with pytest.raises(NotFound):
        async with contents(world).using(TENANT, made, "base"):
            raise AssertionError


async def test_nobody_reaches_what_another_tenant_has(world: World) -> None:
    made = await volume(world, tenant="other")
    for name in (made, "data", f"other/{made}"):
        with pytest.raises(NotFound):
            async with contents(world).using(TENANT, name, "base"):
                raise AssertionError
    assert await sandboxes(world) == 0


async def test_a_tenant_takes_the_place_of_its_own_and_all_of_those_that_are_idle(world: World) -> None:
    mine = [await volume(world, f"v{number}") for number in range(5)]
    others = [await volume(world, "data", f"t{number}") for number in range(5)]
    async with AsyncExitStack() as stack:
        for each in mine[:4]:
            await stack.enter_async_context(contents(world).using(TENANT, each, "base"))
        with pytest.raises(RateLimited):
            async with contents(world).using(TENANT, mine[4], "base"):
                raise AssertionError
        for number, each in enumerate(others):  # each takes what is left, and the last finds nothing that is idle
            if number == 4:
                with pytest.raises(RateLimited):
                    await stack.enter_async_context(contents(world).using(f"t{number}", each, "base"))
            else:
                await stack.enter_async_context(contents(world).using(f"t{number}", each, "base"))
    async with contents(world).using(TENANT, mine[4], "base"):
        assert await sandboxes(world) == 8
    async with contents(world).using("t4", others[4], "base"):
        assert await sandboxes(world) == 8


async def test_a_sandbox_that_dies_is_replaced(world: World) -> None:
    made = await volume(world)
    async with contents(world).using(TENANT, made, "base") as sandbox:
        world.provider.lose(sandbox.id)

    async def look() -> Sandbox:
        async with contents(world).using(TENANT, made, "base") as found:
            await found.stat(ROOT)
            return found

    with pytest.raises(Unavailable):
        await look()
    assert await look() is not sandbox
    assert await sandboxes(world) == 1


async def test_a_caller_that_goes_away_leaves_the_sandbox_to_the_next(world: World) -> None:
    made = await volume(world)

    async def use() -> None:
        async with contents(world).using(TENANT, made, "base"):
            await asyncio.sleep(60)

    task = asyncio.create_task(use())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    async with contents(world).using(TENANT, made, "base"):
        pass
    assert await sandboxes(world) == 1
    await contents(world).close()
    assert await sandboxes(world) == 0
    with pytest.raises(Stopping):
        async with contents(world).using(TENANT, made, "base"):
            raise AssertionError
