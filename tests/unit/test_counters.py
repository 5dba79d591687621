"""Counters in memory keep the contract, count exactly, and forget what has expired."""

import pytest
from contract.counters_contract import CountersContract

from warren.governance.counters import MemoryCounters


class Watch:
    """A time of day that stands still until it is set."""

    def __init__(self) -> None:
        self.at = 1_800_000_000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def counters(watch: Watch) -> MemoryCounters:
    return MemoryCounters(watch)


class TestMemoryCounters(CountersContract):
    @pytest.fixture(autouse=True)
    def keep_watch(self, watch: Watch) -> None:
        self._watch = watch

    async def pass_time(self, name: str, seconds: float) -> None:
        self._watch.at += seconds


async def hits(counters: MemoryCounters, times: int) -> list[bool]:
    return [(await counters.hit("somebody", 5)).allowed for _ in range(times)]


@pytest.mark.anyio
async def test_the_minute_before_is_let_go_of_little_by_little(watch: Watch, counters: MemoryCounters) -> None:
    assert await hits(counters, 5) == [True] * 5
    watch.at += 60
    assert await hits(counters, 1) == [False]
    watch.at += 30
    assert await hits(counters, 4) == [True] * 3 + [False]
    watch.at += 60
    assert await hits(counters, 5) == [True] * 4 + [False]


@pytest.mark.anyio
async def test_a_refused_hit_tells_when_one_may_pass(watch: Watch, counters: MemoryCounters) -> None:
    assert await hits(counters, 5) == [True] * 5
    assert (await counters.hit("somebody", 5)).reset_s == 60
    watch.at += 66  # the five count until 12, 24, ... seconds after the minute
    refused = [await counters.hit("somebody", 4), await counters.hit("somebody", 4)]
    assert [hit.allowed for hit in refused] == [False, False]
    assert refused[0].reset_s == pytest.approx(6)


@pytest.mark.anyio
async def test_what_has_expired_is_forgotten(watch: Watch, counters: MemoryCounters) -> None:
    for number in range(100):
        await counters.hit(str(number), 5)
        await counters.begin(f"day {number}", 60, 1)
    assert len(counters) == 200
    watch.at += 3600
    await counters.hit("later", 5)
    assert len(counters) == 1


@pytest.mark.anyio
async def test_a_clock_that_is_set_back_does_not_refuse_for_long(watch: Watch, counters: MemoryCounters) -> None:
    assert await hits(counters, 6) == [True] * 5 + [False]
    watch.at -= 3600
    assert await hits(counters, 6) == [True] * 5 + [False]
