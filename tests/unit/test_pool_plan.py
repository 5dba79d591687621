"""What a pool does next, as a table: counts and circumstances in, plan out."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.model.environment import PoolSize
from warren.model.errors import (
    ImageNotFound,
    InvalidRequest,
    IsolationUnavailable,
    MachineFull,
    NoSpace,
    ProviderUnavailable,
    SandboxLost,
)
from warren.worker.pool_plan import (
    CALM_S,
    GIVE_UP_S,
    LONGEST_PAUSE_S,
    NO_FAILURES,
    QUIET_S,
    STEP_S,
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
QUIET = Demand(target=5, claimed_at=NOW - 1)
BUSY = Demand(target=5, claimed_at=NOW - 0.01)
AROUND = Circumstances(NOW, parallel=4)
TIGHT = replace(AROUND, pressure=True)
FAILED = Failures(3, until=NOW + 5, waiters_until=NOW + 0.5, error=ProviderUnavailable("no"))
FAILED_FOR_POOL = replace(FAILED, waiters_until=NOW)
IDLE = Demand(target=5, claimed_at=NOW - GIVE_UP_S)


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
        ("demand has raised the target", PoolCounts(ready=5), replace(QUIET, target=8), NO_FAILURES, AROUND, 3, 0),
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


counted = st.integers(0, 50)


@given(
    ready=counted,
    creating=counted,
    waiting=counted,
    sizes=st.lists(st.integers(0, 30), min_size=3, max_size=3).map(sorted),
    ago=st.floats(0, 2 * GIVE_UP_S),
    parallel=st.integers(1, 8),
    pressure=st.booleans(),
)
def test_no_plan_overshoots(
    ready: int, creating: int, waiting: int, sizes: list[int], ago: float, parallel: int, pressure: bool
) -> None:
    low, middle, high = sizes
    size = PoolSize(size=middle, min=low, max=high)
    around = Circumstances(NOW, parallel, pressure)
    counts = PoolCounts(ready, creating, waiting)
    plan = plan_pool(size, counts, Demand(middle, NOW - ago), NO_FAILURES, around)
    target = low if pressure else middle
    assert plan.create >= 0
    assert 0 <= plan.destroy <= ready
    assert not (plan.create and creating + plan.create > parallel)
    assert not (plan.create and ready + creating + plan.create - waiting > target)
    assert ready - plan.destroy <= target


# The target.


def test_a_miss_doubles_the_target_up_to_max() -> None:
    demand, seen = Demand(5, NOW), []
    for second in range(1, 5):
        demand = demand.missed(SIZE, NOW + 2 * second)
        seen.append(demand.target)
    assert seen == [10, 20, 20, 20]


def test_a_burst_of_misses_is_one() -> None:
    demand = Demand(5, NOW)
    for number in range(50):
        demand = demand.missed(SIZE, NOW + number / 100)
    assert demand.target == 10


def test_a_target_of_nothing_grows_too() -> None:
    assert Demand(0, NOW).missed(PoolSize(0, 0, 4), NOW).target == 1


def test_a_pool_that_may_have_none_has_none() -> None:
    assert Demand(0, NOW).missed(PoolSize(0, 0, 0), NOW).target == 0


def test_the_target_falls_step_by_step_after_a_calm_time() -> None:
    demand, seen = Demand(20, NOW, missed_at=NOW, moved_at=NOW), []
    for second in range(0, int(CALM_S + 6 * STEP_S)):
        lowered = demand.lowered(SIZE, NOW + second)
        if lowered.target != demand.target:
            seen.append((second, lowered.target))
        demand = lowered
    assert seen == [(60, 13), (70, 9), (80, 7), (90, 6), (100, 5)]


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
        (MachineFull("x"), False),
        (NoSpace("x"), False),
        (SandboxLost("x"), False),
        (OSError(5, "x"), False),
        (ValueError("x"), False),
    ],
)
def test_which_failures_are_hopeless(error: Exception, hopeless: bool) -> None:
    assert is_hopeless(error) is hopeless
