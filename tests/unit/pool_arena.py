"""A pool over the fake, whose creations a test holds up or lets fail, and whose time a test moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Claimed
from warren.model.environment import Environment, PoolSize
from warren.model.spec import SandboxSpec
from warren.testing.fake_provider import FakeProvider
from warren.testing.manual_clock import ManualClock
from warren.worker.pool import Pool, PoolRules
from warren.worker.pool_creations import PoolSource

BASE = Environment("base", "base")
SMALL = PoolSize(size=3, min=2, max=12)
RULES = PoolRules()
PARALLEL = 4


class Makers:
    """Makes sandboxes by the fake when the test lets it, and destroys what the pool gives up."""

    def __init__(self) -> None:
        self.fake = FakeProvider()
        self.open = asyncio.Event()
        self.open.set()
        self.fail: list[Exception] = []
        self.always: BaseException | None = None
        self.most = self.now = 0
        self.destructions: set[asyncio.Task[None]] = set()

    async def create(self) -> Sandbox:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.open.wait()
            if self.always:
                raise self.always
            if self.fail:
                raise self.fail.pop(0)
            return await self.fake.create(SandboxSpec())
        finally:
            self.now -= 1

    async def version(self) -> str:
        return await self.fake.image_version("base")

    def destroy(self, sandbox_id: str) -> None:
        task = asyncio.ensure_future(self.fake.destroy(sandbox_id))
        self.destructions.add(task)
        task.add_done_callback(self.destructions.discard)


class Arena:
    def __init__(self, size: PoolSize, rules: PoolRules, **source: Any) -> None:
        self.clock, self.makers = ManualClock(), Makers()
        self.pool = Pool(
            BASE,
            size,
            PoolSource(
                create=self.makers.create,
                destroy=self.makers.destroy,
                parallel=PARALLEL,
                version=self.makers.version,
                **source,
            ),
            self.clock,
            rules,
        )

    @property
    def alive(self) -> set[str]:
        return set(self.makers.fake.machines)

    async def settle(self, seconds: float = 0.0) -> None:
        await self.clock.advance(0)  # what was just begun begins before time goes on
        await self.clock.advance(seconds)

    async def filled(self) -> None:
        await self.settle(0.1)
        await self.settle(0.1)

    def claim(self, timeout_s: float = 30.0) -> "asyncio.Task[Claimed]":
        return asyncio.ensure_future(self.pool.claim(timeout_s))


@asynccontextmanager
async def arena(
    size: PoolSize = SMALL,
    rules: PoolRules = RULES,
    *,
    filled: bool = True,
    **source: Any,
) -> AsyncIterator[Arena]:
    there = Arena(size, rules, **source)
    running = asyncio.ensure_future(there.pool.run())
    try:
        if filled:
            await there.filled()
        yield there
    finally:
        await there.pool.drain()
        await running
