"""Our counters serve the strategies of the package, and forget what is over."""

import pytest
from limits import RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.aio.strategies import FixedWindowRateLimiter, RateLimiter, SlidingWindowCounterRateLimiter

from warren.tenancy.counters import Counters

pytestmark = pytest.mark.anyio


class Watch:
    """A time of day that stands still until it is set."""

    def __init__(self) -> None:
        self.at = 1_800_000_000.0  # the beginning of a minute

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def watch() -> Watch:
    return Watch()


async def hits(strategy: RateLimiter, *costs: int) -> list[bool]:
    return [await strategy.hit(RateLimitItemPerMinute(5), "somebody", cost=cost) for cost in costs]


async def test_a_sliding_window_refuses_what_is_too_much_and_lets_the_rest_pass(watch: Watch) -> None:
    strategy = SlidingWindowCounterRateLimiter(Counters(watch))
    assert await hits(strategy, 1, 3, 2, 1, 1) == [True, True, False, True, False]
    assert (await strategy.get_window_stats(RateLimitItemPerMinute(5), "somebody")).remaining == 0
    await strategy.clear(RateLimitItemPerMinute(5), "somebody")
    assert await hits(strategy, 5) == [True]


async def test_a_sliding_window_lets_go_of_the_minute_before_little_by_little(watch: Watch) -> None:
    strategy = SlidingWindowCounterRateLimiter(Counters(watch))
    assert await hits(strategy, 5) == [True]
    watch.at += 60
    assert await hits(strategy, 1) == [False]
    watch.at += 30
    assert await hits(strategy, 3, 1) == [True, False]
    watch.at += 60
    assert await hits(strategy, 3, 1) == [True, True]


async def test_a_fixed_window_starts_anew_when_it_is_over(watch: Watch) -> None:
    strategy = FixedWindowRateLimiter(Counters(watch))
    assert await hits(strategy, 1, 3, 2) == [True, True, False]
    watch.at += 61
    assert await hits(strategy, 5, 1) == [True, False]


async def test_what_is_over_is_forgotten(watch: Watch) -> None:
    counters = Counters(watch)
    strategy = FixedWindowRateLimiter(counters)
    for number in range(100):
        assert await strategy.hit(RateLimitItemPerSecond(5), str(number))
    assert len(counters) == 100
    watch.at += 3600
    assert await strategy.hit(RateLimitItemPerSecond(5), "later")
    assert len(counters) == 1


async def test_a_counter_is_spent_from_once_it_was_begun_and_is_not_begun_twice(watch: Watch) -> None:
    counters = Counters(watch)
    assert await counters.spend("day", 1, 10) is None
    await counters.begin("day", 60, 3)
    await counters.begin("day", 60, 9)
    assert [await counters.spend("day", 3, 10) for _ in range(3)] == [True, True, False]
    assert await counters.get("day") == 10
    assert not await counters.spend("day", 1, 10)
    assert await counters.spend("day", 1, 11)
    watch.at += 60
    assert await counters.spend("day", 1, 10) is None


async def test_a_counter_that_has_more_than_may_be_spent_stays_as_it_is(watch: Watch) -> None:
    counters = Counters(watch)
    await counters.begin("day", 60, 20)
    assert not await counters.spend("day", 1, 10)
    assert await counters.get("day") == 20
