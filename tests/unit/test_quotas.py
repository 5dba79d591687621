"""Quotas over time: they hold, they say when to come again, they are told once."""

import asyncio
import time

import pytest

from warren.governance.quotas import DAY_S, Quotas, standing_of
from warren.interfaces.store import NO_CAPS, Caps
from warren.model.access import Caller, Quota
from warren.model.errors import Forbidden, InvalidRequest, QuotaExceeded, RateLimited
from warren.model.spec import Limits
from warren.sessions.allowances import caps_of, check_allowed
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=time.time() // DAY_S * DAY_S + 100)


async def allowed(quotas: Quotas, caller: Caller, times: int) -> int:
    async def once() -> bool:
        try:
            await quotas.request(caller)
        except RateLimited:
            return False
        return True

    return sum(await asyncio.gather(*(once() for _ in range(times))))


async def test_of_a_hundred_at_once_as_many_pass_as_may(clock: ManualClock) -> None:
    assert await allowed(Quotas(clock), Caller(quota=Quota(requests_per_minute=30)), 100) == 30


async def test_what_a_key_is_refused_costs_its_tenant_nothing(clock: ManualClock) -> None:
    quotas, tenant = Quotas(clock), Quota(requests_per_minute=10)
    first = Caller("acme", "key_1", quota=tenant, key_quota=Quota(requests_per_minute=4))
    second = Caller("acme", "key_2", quota=tenant)
    assert await allowed(quotas, first, 6) == 4
    assert await allowed(quotas, second, 20) == 10 - 4
    assert await allowed(quotas, Caller("other", quota=tenant), 20) == 10


async def test_who_has_no_quota_is_not_counted(clock: ManualClock) -> None:
    assert await Quotas(clock).request(Caller()) is None


async def test_the_standing_says_what_is_left_and_a_refusal_when_to_come_again(clock: ManualClock) -> None:
    quotas, caller = Quotas(clock), Caller(quota=Quota(requests_per_minute=2))
    standing = await quotas.request(caller)
    assert standing is not None
    assert (standing.limit, standing.remaining) == (2, 1)
    await quotas.request(caller)
    with pytest.raises(RateLimited, match="more than 2 requests a minute") as refused:
        await quotas.request(caller)
    assert 1 <= (refused.value.retry_after_s or 0) <= 60
    found = standing_of(refused.value)
    assert found is not None
    assert dict(found.headers())[b"ratelimit-remaining"] == b"0"


async def test_a_quota_of_nothing_lets_nothing_pass(clock: ManualClock) -> None:
    quotas, caller = Quotas(clock), Caller(quota=Quota(requests_per_minute=0, exec_seconds_per_day=0))
    assert await allowed(quotas, caller, 3) == 0
    assert not await quotas.spend(caller, "exec_seconds", 1)


async def test_a_days_quota_is_never_exceeded_and_starts_anew_at_midnight(clock: ManualClock) -> None:
    quotas, caller = Quotas(clock), Caller(quota=Quota(bytes_out_per_day=1000))
    spent = await asyncio.gather(*(quotas.spend(caller, "bytes_out", 300) for _ in range(100)))
    assert sum(spent) == 3
    assert not await quotas.spend(caller, "bytes_out", 1)
    with pytest.raises(QuotaExceeded, match="bytes out of this day are used up") as refused:
        quotas.check_left(caller, "bytes_out")
    assert refused.value.retry_after_s == DAY_S - 100
    await clock.advance(DAY_S - 100)
    quotas.check_left(caller, "bytes_out")
    assert await quotas.spend(caller, "bytes_out", 1000)


async def test_what_a_tenant_is_refused_costs_its_key_nothing(clock: ManualClock) -> None:
    quotas = Quotas(clock)
    caller = Caller("acme", "key_1", quota=Quota(exec_seconds_per_day=3), key_quota=Quota(exec_seconds_per_day=10))
    assert [await quotas.spend(caller, "exec_seconds", 1) for _ in range(20)] == [True] * 3 + [False] * 17
    assert await quotas.day_use("key:key_1", "exec_seconds") == 3
    assert await quotas.day_use("tenant:acme", "exec_seconds") == 3


async def test_what_was_spent_before_a_restart_counts(clock: ManualClock) -> None:
    async def before(tenant: str, what: str) -> float:
        return {("acme", "exec_seconds"): 55.5}.get((tenant, what), 0.0)

    quotas = Quotas(clock, spent_before=before)
    caller = Caller("acme", quota=Quota(exec_seconds_per_day=60))
    assert [await quotas.spend(caller, "exec_seconds", 1) for _ in range(7)] == [True] * 5 + [False] * 2


async def test_a_days_quota_that_is_changed_goes_on_from_what_was_spent(clock: ManualClock) -> None:
    spent = 0

    async def spent_before(tenant: str, what: str) -> float:
        return spent

    quotas = Quotas(clock, spent_before=spent_before)
    assert await quotas.spend(Caller(quota=Quota(bytes_out_per_day=100)), "bytes_out", 100)
    spent = 100
    assert not await quotas.spend(Caller(quota=Quota(bytes_out_per_day=100)), "bytes_out", 1)
    with pytest.raises(QuotaExceeded):
        quotas.check_left(Caller(quota=Quota(bytes_out_per_day=100)), "bytes_out")
    more = Caller(quota=Quota(bytes_out_per_day=150))
    quotas.check_left(more, "bytes_out")
    assert await quotas.spend(more, "bytes_out", 50)
    assert not await quotas.spend(more, "bytes_out", 1)


async def test_the_end_of_a_quota_is_told_once_a_minute(clock: ManualClock) -> None:
    told: list[tuple[str, str]] = []
    quotas = Quotas(clock, reached=lambda caller, quota: told.append((caller.tenant, quota)))
    caller = Caller("acme", quota=Quota(requests_per_minute=0))
    await allowed(quotas, caller, 5)
    assert told == [("acme", "requests_per_minute")]
    await clock.advance(60)
    await allowed(quotas, caller, 5)
    assert len(told) == 2


def test_what_is_held_at_once_is_for_the_store_to_keep() -> None:
    caller = Caller(quota=Quota(sessions=3, disk_mb=100), key_quota=Quota(sessions=1))
    assert caps_of(caller) == Caps(3, 100, 1, None)
    assert caps_of(Caller()) is NO_CAPS


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        (Quota(environments=("python3",)), "environment 'base' is not for this key"),
        (Quota(limits={"memory_mb": 256}), "memory_mb may be at most 256"),
        (Quota(limits={"cpus": 0.25}), "cpus may be at most 0.25"),
        (Quota(max_lifetime_s=60), "may live for 60 s"),
    ],
)
def test_what_a_caller_may_not_have_is_told(quota: Quota, words: str) -> None:
    for caller in (Caller(quota=quota), Caller(key_quota=quota)):
        with pytest.raises(Forbidden, match=words):
            check_allowed(caller, "base", Limits(), 3600)


def test_a_refused_limit_says_whose_bound_it_is_and_who_wanted_more() -> None:
    bound = Quota(limits={"memory_mb": 256})
    with pytest.raises(Forbidden, match="for the tenant 'acme', 512 is what the environment 'base' has") as caught:
        check_allowed(Caller("acme", quota=bound), "base", Limits(), 3600)
    assert caught.value.remedy == 'ask for at most that: {"limits": {"memory_mb": 256}}, `-m 256` on the command line'
    with pytest.raises(Forbidden, match="for this key, 512 was asked for"):
        check_allowed(Caller("acme", key_quota=bound), "base", Limits(), 3600, asked={"memory_mb": 512})


def test_who_is_bound_to_environments_may_not_bring_an_image() -> None:
    bound = Quota(environments=("base",))
    for caller in (Caller(quota=bound), Caller(key_quota=bound)):
        with pytest.raises(Forbidden, match="image 'other' is not for this key"):
            check_allowed(caller, "base", Limits(), 3600, "other")
    check_allowed(Caller(), "base", Limits(), 3600, "other")


def test_what_is_within_the_quota_is_allowed() -> None:
    quota = Quota(environments=("base",), limits={"memory_mb": 512}, max_lifetime_s=3600)
    check_allowed(Caller(quota=quota, key_quota=quota), "base", Limits(), 3600)


@pytest.mark.parametrize(
    "values",
    [
        {"sessions": -1},
        {"sessions": 1.5},
        {"sessions": True},
        {"sessions": "3"},
        {"limits": {"wings": 2}},
        {"limits": {"cpus": 0}},
        {"limits": ["cpus"]},
        {"limits": 3},
        {"max_lifetime_s": 0},
        {"max_lifetime_s": "long"},
        {"environments": "base"},
        {"environments": 3},
        {"environments": [3]},
        {"environments": [[]]},
        {"beds": 1},
    ],
)
def test_a_quota_that_cannot_be_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Quota.from_mapping(values)


def test_a_limit_that_there_is_not_is_told_apart_from_a_wrong_number() -> None:
    with pytest.raises(InvalidRequest, match="there is no limit 'memory' for the quota") as caught:
        Quota.from_mapping({"limits": {"memory": 10}})
    assert caught.value.remedy == "did you mean memory_mb? there are: cpus, disk_mb, memory_mb, open_files, pids"
    with pytest.raises(InvalidRequest, match=r"limits\.cpus is 0, it must be a number above 0"):
        Quota.from_mapping({"limits": {"cpus": 0}})
