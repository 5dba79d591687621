"""A pool that has fewer sandboxes than its size says why: in its figures at once, and in the log without filling it."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from unit.pool_arena import Arena, arena

from warren.model.environment import PoolSize
from warren.model.errors import MachineFull, ProviderUnavailable, WarrenError
from warren.worker.pool import PoolRules
from warren.worker.pool_plan import GIVE_UP_S, NO_FAILURES, Circumstances, Demand, Failures, PoolCounts
from warren.worker.pool_shortage import PATIENCE_S, REPEAT_S, Shortage, find_shortage

pytestmark = pytest.mark.anyio

NOW = 1000.0
SIZE = PoolSize(size=5, min=2, max=20)
KEPT = PoolRules(kept=True)
QUIET, BUSY, IDLE = Demand(NOW - 1), Demand(NOW - 0.01), Demand(NOW - GIVE_UP_S)
LEARNED = Demand(NOW - 1, burst=8, burst_at=NOW - 1)
AROUND = Circumstances(NOW, parallel=4)
TIGHT = replace(AROUND, pressure=True)
FAILED = Failures(1, until=NOW + 5, error=ProviderUnavailable("no"))
REASONS = set(Shortage)


@pytest.mark.parametrize(
    ("counts", "demand", "failures", "around", "reason"),
    [
        (PoolCounts(ready=5), QUIET, FAILED, TIGHT, None),
        (PoolCounts(stale=5), QUIET, NO_FAILURES, AROUND, None),
        (PoolCounts(), IDLE, FAILED, AROUND, Shortage.IDLE),
        (PoolCounts(creating=1), IDLE, FAILED, replace(TIGHT, kept=True), Shortage.FAILING),
        (PoolCounts(ready=2), QUIET, NO_FAILURES, TIGHT, Shortage.NO_ROOM),
        (PoolCounts(ready=1), QUIET, NO_FAILURES, TIGHT, Shortage.MAKING),
        (PoolCounts(ready=2, creating=2), BUSY, NO_FAILURES, AROUND, Shortage.MAKING),
        (PoolCounts(ready=2), BUSY, NO_FAILURES, AROUND, Shortage.CALLERS_FIRST),
        (PoolCounts(ready=6), LEARNED, NO_FAILURES, replace(AROUND, ceiling=6), Shortage.CEILING),
        (PoolCounts(ready=4), LEARNED, NO_FAILURES, replace(AROUND, ceiling=0), Shortage.MAKING),
    ],
)
def test_the_reason(
    counts: PoolCounts, demand: Demand, failures: Failures, around: Circumstances, reason: Shortage | None
) -> None:
    assert find_shortage(SIZE, counts, demand, failures, around) == reason


def test_a_creation_that_runs_for_long_is_the_reason() -> None:
    ages = (1, PATIENCE_S)
    found = [find_shortage(SIZE, PoolCounts(creating=1), QUIET, NO_FAILURES, TIGHT, NOW - age) for age in ages]
    assert found == [Shortage.MAKING, Shortage.SLOW]


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    """What the log says of the pool's shortages: the event and the reason."""
    events = [record for record in caplog.records if record.message in ("pool_short", "pool_filled")]
    return [(record.message, record.fields.get("reason")) for record in events]


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


async def test_a_pool_that_is_given_up_says_so_and_aims_at_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with arena(PoolSize(5, 2, 100)) as there:
        assert (there.pool.stats().ready, there.pool.stats().target, there.pool.stats().shortage) == (5, 5, None)
        await there.settle(900)
        stats = there.pool.stats()
        assert (stats.ready, stats.creating, stats.target, stats.size) == (0, 0, 0, 5)
        assert stats.shortage == "idle"
        assert told(caplog) == [("pool_short", "idle")]
        await there.settle(3600)
        assert len(told(caplog)) == 1
        await there.pool.claim(1)
        await there.filled()
        assert there.pool.stats().shortage is None
        assert told(caplog)[1:] == [("pool_filled", None)]


async def test_a_pool_that_shrinks_says_so_and_when_it_has_its_size_again(caplog: pytest.LogCaptureFixture) -> None:
    tight: list[int] = []
    async with arena(PoolSize(5, 2, 100), KEPT, pressure=lambda: bool(tight)) as there:
        tight.append(1)
        await there.settle(2)
        assert (there.pool.stats().ready, there.pool.stats().target) == (2, 2)
        assert told(caplog) == [("pool_short", "machine_nearly_full")]
        await there.settle(REPEAT_S)
        assert len(told(caplog)) == 2
        tight.clear()
        await there.settle(2)
        assert there.pool.stats().target == 5
        assert told(caplog)[2:] == [("pool_filled", None)]


async def test_creations_that_hang_or_fail_are_logged_when_that_lasts(caplog: pytest.LogCaptureFixture) -> None:
    async with arena(filled=False) as there:
        there.makers.open.clear()
        await there.settle(PATIENCE_S - 1)
        assert (there.pool.stats().shortage, told(caplog)) == ("being_made", [])
        await there.settle(2)
        assert told(caplog) == [("pool_short", "creation_takes_long")]
        there.makers.always = ProviderUnavailable("the engine is away")
        there.makers.open.set()
        await there.settle(PATIENCE_S + 2)
        assert told(caplog)[1:] == [("pool_short", "creations_fail")]
        assert "the engine is away" in str(caplog.records[-1].fields)
        await there.settle(300)
        assert len(told(caplog)) == 2


async def test_a_machine_that_cannot_be_read_is_told_once_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    broken = [True]

    def pressure() -> bool:
        if broken:
            raise OSError(24, "too many open files")
        return False

    async with arena(filled=False, pressure=pressure) as there:
        await there.settle(PATIENCE_S + 2)
        assert told(caplog) == [("pool_short", "planning_failed")]
        assert caplog.text.count("pool_planning_failed") == 1
        stats = there.pool.stats()
        assert (stats.shortage, stats.target, stats.size) == ("planning_failed", 0, 3)
        assert there.pool.lasting_failure is None
        broken.clear()
        await there.settle(2)
        assert (there.pool.counts.ready, there.pool.stats().target) == (3, 3)
        broken.append(True)
        await there.settle(10)
        assert (there.pool.stats().shortage, there.pool.stats().target) == ("planning_failed", 3)


# Everything at once.


class Trouble:
    """Disturbs a pool in every way that a machine, a provider, an image and callers have."""

    def __init__(self, there: Arena, tight: list[int], seed: int) -> None:
        self.there, self.tight, self.random = there, tight, random.Random(seed)
        self.callers: list[asyncio.Task[None]] = []

    async def step(self) -> None:
        await self.random.choice((self.claim, self.claim, self.wait, self.wait, self.meddle))()
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)

    async def claim(self) -> None:
        self.callers += [asyncio.ensure_future(self._caller()) for _ in range(self.random.choice((1, 1, 9)))]

    async def _caller(self) -> None:
        try:
            claimed = await self.there.pool.claim(self.random.choice((0.01, 5, 90)))
        except WarrenError:
            return
        if self.random.random() < 0.3:
            self.there.pool.give_back(claimed.sandbox)

    async def wait(self) -> None:
        await self.there.settle(self.random.choice((0.01, 0.06, 0.06, 1.0, 1.0, 1.0, 20.0, 20.0, 20.0, 600.0)))

    async def meddle(self) -> None:
        makers, images, pool = self.there.makers, self.there.makers.fake.images, self.there.pool
        match self.random.randrange(8):
            case 0:
                makers.open.clear()
            case 1:
                makers.fail += [self.random.choice((ProviderUnavailable("no"), MachineFull("full"), OSError(5, "no")))]
            case 2:
                makers.always = self.random.choice((MachineFull("full"), ProviderUnavailable("no"), None))
            case 3:
                self.tight.append(1)
            case 4:
                images["base"] = str(self.random.random())
                await pool.look_at_image()
            case 5:
                images.pop("base", None)
                await pool.look_at_image()
            case 6:
                for member in list(pool._stock.ready):
                    makers.fake.lose(member)
            case 7:
                if self.callers:
                    self.random.choice(self.callers).cancel()

    def end(self) -> None:
        """Leaves a machine on which nothing is wrong."""
        there = self.there
        there.makers.open.set()
        there.makers.fail.clear()
        there.makers.always = None
        there.makers.fake.images["base"] = "the last"
        self.tight.clear()


@pytest.mark.parametrize("seed", range(8))
async def test_after_any_trouble_a_pool_fills_again_and_meanwhile_says_why_it_does_not(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    low, kept = seed % 2, seed % 4 < 2
    tight: list[int] = []
    async with arena(PoolSize(3, low, 6), PoolRules(kept=kept), pressure=lambda: bool(tight)) as there:
        trouble = Trouble(there, tight, seed)
        for _ in range(60):
            await trouble.step()
            await there.settle()
            stats = there.pool.stats()
            assert (stats.shortage in REASONS) == (stats.ready < max(stats.size, stats.target)), stats
            assert stats.target in (0, low, 3, 4, 5, 6)
        await there.settle(2 * PATIENCE_S + 2)
        if there.pool.stats().shortage is not None:
            assert told(caplog)[-1][0] == "pool_short"
        trouble.end()
        await there.settle(100)
        if not kept:
            await there.pool.claim(1)  # it may have been given up
            await there.settle(1)
        assert there.pool.stats().shortage is None
        assert there.pool.counts.ready >= 3
        await asyncio.gather(*trouble.callers, return_exceptions=True)
