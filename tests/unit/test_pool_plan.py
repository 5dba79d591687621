"""What a pool does next, as a table: counts and circumstances in, plan out."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.model.environment import PoolSize
from warren.model.errors import (
    ImageBuildFailed,
    ImageBuilding,
    ImageNotFound,
    InvalidRequest,
    IsolationUnavailable,
    MachineFull,
    NoSpace,
    ProviderKeyRefused,
    ProviderUnavailable,
    SandboxLost,
)
from warren.worker.pool_plan import (
    GIVE_UP_S,
    HALF_LIFE_S,
    LONGEST_PAUSE_S,
    NO_FAILURES,
    QUIET_S,
    RATE_S,
    WAITERS_PAUSE_S,
    Circumstances,
    Demand,
    Failures,
    PoolCounts,
    is_hopeless,
    plan_pool,
)

NOW = 1000.0
SIZE = PoolSize(size=5, min=2, max=20)
QUIET = Demand(NOW - 1)
BUSY = Demand(NOW - 0.01)
AROUND = Circumstances(NOW, parallel=4)
TIGHT = replace(AROUND, pressure=True)
FAILED = Failures(3, until=NOW + 5, waiters_until=NOW + 0.5, error=ProviderUnavailable("no"))
FAILED_FOR_POOL = replace(FAILED, waiters_until=NOW)
LEARNED = Demand(NOW - 1, burst=8, burst_at=NOW - 1)
STREAM = Demand(NOW - 0.01, rate=8.0)
CEILING = replace(AROUND, ceiling=6)
FULL = replace(AROUND, ceiling=0)
IDLE = Demand(NOW - GIVE_UP_S)


@pytest.mark.parametrize(
    ("why", "counts", "demand", "failures", "around", "create", "destroy"),
    [
        ("an empty pool is filled as fast as allowed", PoolCounts(), QUIET, NO_FAILURES, AROUND, 4, 0),
        ("what is being made counts", PoolCounts(creating=4), QUIET, NO_FAILURES, AROUND, 0, 0),
        ("the rest follows", PoolCounts(ready=2, creating=2), QUIET, NO_FAILURES, AROUND, 1, 0),
        ("a full pool is left alone", PoolCounts(ready=5), QUIET, NO_FAILURES, AROUND, 0, 0),
        ("busy, it is filled to min only", PoolCounts(), BUSY, NO_FAILURES, AROUND, 2, 0),
        ("busy and above min it waits", PoolCounts(ready=2), BUSY, NO_FAILURES, AROUND, 0, 0),
        ("who waits comes first, also busy", PoolCounts(waiting=2), BUSY, NO_FAILURES, AROUND, 4, 0),
        ("many wait: the limit holds", PoolCounts(creating=3, waiting=50), BUSY, NO_FAILURES, AROUND, 1, 0),
        ("what is made for a waiter is not spare", PoolCounts(3, 2, 2), QUIET, NO_FAILURES, AROUND, 2, 0),
        ("too many ready are given up", PoolCounts(ready=7), QUIET, NO_FAILURES, AROUND, 0, 2),
        ("under pressure only min", PoolCounts(), QUIET, NO_FAILURES, TIGHT, 2, 0),
        ("under pressure down to min", PoolCounts(ready=5), QUIET, NO_FAILURES, TIGHT, 0, 3),
        ("under pressure waiters are still served", PoolCounts(waiting=1), QUIET, NO_FAILURES, TIGHT, 3, 0),
        ("after a failure nothing for a while", PoolCounts(waiting=3), QUIET, FAILED, AROUND, 0, 0),
        ("waiters wait less long", PoolCounts(waiting=3), QUIET, FAILED_FOR_POOL, AROUND, 1, 0),
        ("and one is tried at a time", PoolCounts(creating=1, waiting=3), QUIET, FAILED_FOR_POOL, AROUND, 0, 0),
        ("the pool waits the whole time", PoolCounts(), QUIET, FAILED_FOR_POOL, AROUND, 0, 0),
        ("a pool nobody uses is given up", PoolCounts(ready=5), IDLE, NO_FAILURES, AROUND, 0, 5),
        ("unless it is kept", PoolCounts(ready=5), IDLE, NO_FAILURES, replace(AROUND, kept=True), 0, 0),
        ("beyond its size it grows one by one", PoolCounts(ready=5), LEARNED, NO_FAILURES, AROUND, 1, 0),
        ("and waits for that one", PoolCounts(ready=5, creating=1), LEARNED, NO_FAILURES, AROUND, 0, 0),
        ("its size comes first, as fast as allowed", PoolCounts(), LEARNED, NO_FAILURES, AROUND, 4, 0),
        ("what it has learned is enough", PoolCounts(ready=8), LEARNED, NO_FAILURES, AROUND, 0, 0),
        ("at the ceiling it grows no more", PoolCounts(ready=6), LEARNED, NO_FAILURES, CEILING, 0, 0),
        ("above it, it keeps what it has", PoolCounts(ready=8), LEARNED, NO_FAILURES, CEILING, 0, 0),
        (
            "the ceiling is not for its size",
            PoolCounts(ready=3),
            LEARNED,
            NO_FAILURES,
            FULL,
            2,
            0,
        ),
        ("nor for who waits", PoolCounts(waiting=9), LEARNED, NO_FAILURES, FULL, 4, 0),
        ("busy it does not grow", PoolCounts(ready=5), replace(LEARNED, claimed_at=NOW), NO_FAILURES, AROUND, 0, 0),
        ("in a steady stream it makes ahead what comes next", PoolCounts(ready=2), STREAM, NO_FAILURES, AROUND, 2, 0),
        ("under pressure it forgets for a while", PoolCounts(ready=8), LEARNED, NO_FAILURES, TIGHT, 0, 6),
    ],
)
def test_the_plan(
    why: str,
    counts: PoolCounts,
    demand: Demand,
    failures: Failures,
    around: Circumstances,
    create: int,
    destroy: int,
) -> None:
    plan = plan_pool(SIZE, counts, demand, failures, around)
    assert (plan.create, plan.destroy) == (create, destroy), why


@pytest.mark.parametrize(
    ("why", "counts", "demand", "failures", "again_in_s"),
    [
        ("for the quiet moment", PoolCounts(ready=2), BUSY, NO_FAILURES, QUIET_S - 0.01),
        ("for the machine's state", PoolCounts(ready=5), BUSY, NO_FAILURES, 1.0),
        ("for the end of the waiters' pause", PoolCounts(waiting=1), QUIET, FAILED, 0.5),
        ("for nothing, when given up", PoolCounts(), IDLE, NO_FAILURES, None),
    ],
)
def test_when_to_look_again(
    why: str, counts: PoolCounts, demand: Demand, failures: Failures, again_in_s: float | None
) -> None:
    assert plan_pool(SIZE, counts, demand, failures, AROUND).again_in_s == pytest.approx(again_in_s), why


@pytest.mark.parametrize(("demand", "again_in_s"), [(QUIET, 1.0), (IDLE, None)], ids=["in use", "given up"])
def test_a_target_of_0_under_pressure_is_looked_at_again(demand: Demand, again_in_s: float | None) -> None:
    assert plan_pool(PoolSize(5, 0, 5), PoolCounts(), demand, NO_FAILURES, TIGHT).again_in_s == again_in_s


counted = st.integers(0, 50)


@given(
    ready=counted,
    creating=counted,
    waiting=counted,
    sizes=st.lists(st.integers(0, 30), min_size=3, max_size=3).map(sorted),
    ago=st.floats(0, 2 * GIVE_UP_S),
    burst=counted,
    parallel=st.integers(1, 8),
    pressure=st.booleans(),
)
def test_no_plan_overshoots(
    ready: int, creating: int, waiting: int, sizes: list[int], ago: float, burst: int, parallel: int, pressure: bool
) -> None:
    low, middle, high = sizes
    size = PoolSize(size=middle, min=low, max=high)
    around = Circumstances(NOW, parallel, pressure)
    counts = PoolCounts(ready, creating, waiting)
    plan = plan_pool(size, counts, Demand(NOW - ago, burst=burst, burst_at=NOW), NO_FAILURES, around)
    target = low if pressure else max(middle, min(high, burst))
    assert plan.create >= 0
    assert 0 <= plan.destroy <= ready
    assert not (plan.create and creating + plan.create > parallel)
    assert not (plan.create and ready + creating + plan.create - waiting > target)
    assert ready - plan.destroy <= target


# The target.


def claimed(demand: Demand, times: int, now: float) -> Demand:
    for _ in range(times):
        demand = demand.claimed(now)
    return demand


def test_the_target_is_the_largest_burst_within_size_and_max() -> None:
    assert [claimed(Demand(NOW), times, NOW).target(SIZE, NOW) for times in (0, 3, 8, 20, 50)] == [5, 5, 8, 20, 20]
    assert claimed(Demand(NOW), 8, NOW).target(PoolSize(0, 0, 0), NOW) == 0


def test_a_burst_is_what_claims_took_faster_than_it_was_made() -> None:
    demand = Demand(NOW)
    for number in range(40):  # a stream that creations keep up with, two behind
        demand = demand.claimed(NOW + number / 100)
        if number >= 2:
            demand = demand.replaced()
    assert demand.target(SIZE, NOW) == 5
    assert demand.burst == 3
    for number in range(20):  # and one that is twice as fast
        demand = demand.claimed(NOW + 1 + number / 100)
        if number % 2:
            demand = demand.replaced()
    assert demand.target(SIZE, NOW + 1.2) == 13


def test_half_of_a_burst_is_forgotten_in_a_quarter_of_an_hour() -> None:
    demand = claimed(Demand(NOW), 16, NOW)
    for _ in range(16):
        demand = demand.replaced()
    assert [demand.target(SIZE, NOW + half * HALF_LIFE_S) for half in (0, 0.5, 1, 2)] == [16, 11, 8, 5]
    assert claimed(demand, 6, NOW + 2 * HALF_LIFE_S).target(SIZE, NOW + 2 * HALF_LIFE_S) == 6  # the new one counts
    assert claimed(demand, 2, NOW + 1).target(SIZE, NOW + 1) == 16  # a small one does not hide the large one


def test_the_rate_is_an_average_that_forgets() -> None:
    demand = Demand(NOW)
    for second in range(600):
        demand = claimed(demand, 3, NOW + second)
    assert demand.rate_at(NOW + 599) == pytest.approx(3, rel=0.02)
    assert demand.rate_at(NOW + 599 + 5 * RATE_S) < 0.03


# Failures.


def test_pauses_grow_and_end_somewhere() -> None:
    failures, now, pauses = NO_FAILURES, NOW, []
    for _ in range(10):
        failures = failures.with_one_more(ProviderUnavailable("no"), now, jitter=1.0)
        pauses.append(round(failures.until - now, 1))
        now = failures.until
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]


def test_jitter_shortens_a_pause_to_no_less_than_half() -> None:
    assert NO_FAILURES.with_one_more(ProviderUnavailable("no"), NOW, jitter=0.0).until == pytest.approx(NOW + 0.05)


def test_failures_at_the_same_time_are_one() -> None:
    failures = NO_FAILURES
    for _ in range(4):
        failures = failures.with_one_more(ProviderUnavailable("no"), NOW, jitter=1.0)
    assert (failures.count, failures.until) == (1, NOW + 0.1)


def test_waiters_are_not_held_up_for_long() -> None:
    failures = Failures(20, until=NOW).with_one_more(ProviderUnavailable("no"), NOW, jitter=1.0)
    assert failures.until == NOW + LONGEST_PAUSE_S
    assert failures.waiters_until == NOW + WAITERS_PAUSE_S


def test_after_a_hopeless_failure_whoever_comes_is_answered_at_once() -> None:
    assert NO_FAILURES.with_one_more(ImageNotFound("none"), NOW, jitter=1.0).waiters_until <= NOW
    assert NO_FAILURES.until == -math.inf


@pytest.mark.parametrize(
    ("error", "hopeless"),
    [
        (ImageNotFound("x"), True),
        (InvalidRequest("x"), True),
        (IsolationUnavailable("x"), True),
        (ProviderUnavailable("x"), False),
        (ProviderKeyRefused("x"), True),
        (ImageBuilding("x"), True),
        (ImageBuildFailed("x"), True),
        (MachineFull("x"), False),
        (NoSpace("x"), False),
        (SandboxLost("x"), False),
        (OSError(5, "x"), False),
        (ValueError("x"), False),
    ],
)
def test_which_failures_are_hopeless(error: Exception, hopeless: bool) -> None:
    assert is_hopeless(error) is hopeless
