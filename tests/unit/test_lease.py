"""A lease lasts as long as was asked for, counted from before it was asked for, and no longer."""

import pytest

from warren.cluster.lease import Lease
from warren.cluster.roster import HEARTBEAT_S, LEASE_S
from warren.model.errors import Unavailable
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def serves(lease: Lease) -> bool:
    try:
        lease.check()
    except Unavailable:
        return False
    return True


def test_a_lease_survives_some_heartbeats_that_get_lost() -> None:
    assert LEASE_S >= 3 * HEARTBEAT_S


async def test_nobody_serves_before_the_first_renewal(clock: ManualClock) -> None:
    lease = Lease(clock)
    with pytest.raises(Unavailable, match="lost touch with its cluster") as caught:
        lease.check()
    assert caught.value.retry_after_s
    assert caught.value.remedy


async def test_it_is_over_to_the_moment(clock: ManualClock) -> None:
    lease = Lease(clock)
    lease.renew(clock.now())
    await clock.advance(LEASE_S - 0.001)
    assert serves(lease)
    await clock.advance(0.001)
    assert not serves(lease)


async def test_the_time_until_the_answer_came_does_not_count(clock: ManualClock) -> None:
    lease = Lease(clock)
    requested_at = clock.now()
    await clock.advance(3)
    lease.renew(requested_at)
    assert lease.left_s == LEASE_S - 3
    assert repr(lease) == "<Lease 5.0 s left>"


async def test_an_answer_that_comes_later_than_a_lease_lasts_is_worth_nothing(clock: ManualClock) -> None:
    lease = Lease(clock)
    requested_at = clock.now()
    await clock.advance(LEASE_S)
    lease.renew(requested_at)
    assert not serves(lease)


async def test_answers_may_come_in_another_order(clock: ManualClock) -> None:
    lease = Lease(clock)
    first = clock.now()
    await clock.advance(2)
    lease.renew(clock.now())
    lease.renew(first)
    assert lease.left_s == LEASE_S


async def test_what_was_dropped_is_over_until_it_is_renewed(clock: ManualClock) -> None:
    lease = Lease(clock)
    lease.renew(clock.now())
    lease.drop()
    assert not serves(lease)
    lease.renew(clock.now())
    assert serves(lease)
