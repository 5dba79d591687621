"""What holds for counters of quotas, wherever they live."""

import asyncio

import pytest

from warren.governance.counters import Counters, Hit


@pytest.mark.anyio
class CountersContract:
    """Subclasses have a fixture `counters`, and `pass_time` makes the counter older, as if it was last used earlier."""

    async def pass_time(self, name: str, seconds: float) -> None:
        raise NotImplementedError

    async def hits(self, counters: Counters, limit: int, times: int) -> int:
        return sum(hit.allowed for hit in await asyncio.gather(*(counters.hit("a", limit) for _ in range(times))))

    async def test_of_many_hits_at_once_as_many_pass_as_may(self, counters: Counters) -> None:
        assert await self.hits(counters, 30, 100) == 30
        assert (await counters.hit("another", 30)).allowed

    async def test_a_hit_tells_what_remains_and_a_refused_one_costs_nothing(self, counters: Counters) -> None:
        hits = [await counters.hit("a", 2) for _ in range(4)]
        assert [(hit.allowed, hit.remaining) for hit in hits] == [(True, 1), (True, 0), (False, 0), (False, 0)]
        assert all(0 < hit.reset_s <= 60 for hit in hits)
        assert (await counters.hit("a", 3)).allowed

    async def test_hits_can_be_looked_at_without_one_more(self, counters: Counters) -> None:
        assert await counters.hits("a") == 0
        assert await self.hits(counters, 60, 60) == 60
        assert [await counters.hits("a") for _ in range(3)] == [60, 60, 60]
        await self.pass_time("a", 90)
        assert 28 <= await counters.hits("a") <= 31
        await self.pass_time("a", 60)
        assert await counters.hits("a") == 0

    async def test_hits_of_the_minute_before_count_less_and_less(self, counters: Counters) -> None:
        assert await self.hits(counters, 60, 60) == 60
        await self.pass_time("a", 60)
        first = await counters.hit("a", 60)
        await self.pass_time("a", 30)
        second = await counters.hit("a", 60)
        assert second.remaining >= first.remaining + 29 - second.allowed

    async def test_after_two_minutes_nothing_is_left(self, counters: Counters) -> None:
        assert await self.hits(counters, 5, 9) == 5
        await self.pass_time("a", 120)
        assert await counters.hit("a", 5) == Hit(True, 4, 60)

    async def test_a_counter_is_spent_from_once_it_was_begun_and_is_not_begun_twice(self, counters: Counters) -> None:
        assert await counters.spend("day", 1, 10) is None
        assert await counters.get("day") == 0
        await counters.begin("day", 60, 3)
        await counters.begin("day", 60, 9)
        assert [await counters.spend("day", 3, 10) for _ in range(3)] == [True, True, False]
        assert await counters.get("day") == 10
        assert not await counters.spend("day", 1, 10)
        assert await counters.spend("day", 1, 11)

    async def test_a_counter_that_has_more_than_may_be_spent_stays_as_it_is(self, counters: Counters) -> None:
        await counters.begin("day", 60, 20)
        assert not await counters.spend("day", 1, 10)
        assert await counters.get("day") == 20

    async def test_a_counter_expires(self, counters: Counters) -> None:
        await counters.begin("day", 60, 20)
        await counters.spend("day", 1, 50)
        await self.pass_time("day", 60)
        assert await counters.spend("day", 1, 50) is None
        assert await counters.get("day") == 0
