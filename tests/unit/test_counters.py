"""Our counters do what those of the package do, and forget what is over."""

import time

import pytest
from limits import RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage, Storage
from limits.aio.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter

from warren.coordinator.access import counters
from warren.coordinator.access.counters import Counters

pytestmark = pytest.mark.anyio


async def hits(storage: Storage) -> list[object]:
    """What both strategies say to the same hits."""
    said: list[object] = []
    for strategy in (SlidingWindowCounterRateLimiter(storage), FixedWindowRateLimiter(storage)):
        item = RateLimitItemPerMinute(5)
        said += [await strategy.hit(item, type(strategy).__name__, cost=cost) for cost in (1, 3, 2, 1, 1)]
        said.append((await strategy.get_window_stats(item, type(strategy).__name__)).remaining)
        await strategy.clear(item, type(strategy).__name__)
        said.append(await strategy.hit(item, type(strategy).__name__, cost=5))
    return said


async def test_they_answer_like_those_of_the_package() -> None:
    while time.time() % 60 > 50:
        time.sleep(1)  # noqa: ASYNC251 - not over the end of a minute, where the two may see different windows
    assert await hits(Counters()) == await hits(MemoryStorage())


async def test_what_is_over_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Counters()
    strategy = FixedWindowRateLimiter(storage)
    for number in range(100):
        await strategy.hit(RateLimitItemPerSecond(5), str(number))
    assert len(storage) == 100
    now = time.time()
    monkeypatch.setattr(counters.time, "time", lambda: now + 3600)
    assert await strategy.hit(RateLimitItemPerSecond(5), "later")
    assert len(storage) == 1
