"""Whose turn it is: tenants one after the other, and something left for who comes seldom."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from warren.worker.turns import ACTIVE_S, RECENT_S, TenantTurns


@dataclass(frozen=True, slots=True)
class Waiter:
    tenant: str
    ticket: int = 0


def flooded() -> TenantTurns:
    """`a` has had more than its share a moment ago; `b` is about."""
    turns = TenantTurns(share=5, reserve=2)
    for _ in range(20):
        turns.note_request("a", 100.0)
        turns.note_taken("a", 100.0)
    turns.note_request("b", 100.0)
    return turns


def test_who_waits_is_served_tenant_by_tenant() -> None:
    turns = TenantTurns(share=5, reserve=0)
    waiting = [Waiter("a", 1), Waiter("a", 2), Waiter("a", 3), Waiter("b", 4), Waiter("c", 5), Waiter("b", 6)]
    served = []
    while waiting:
        waiter = turns.choose(waiting, ready=9, now=0.0)
        assert waiter is not None
        waiting.remove(waiter)
        turns.note_taken(waiter.tenant, 0.0)
        served.append(waiter.ticket)
    assert served == [1, 4, 5, 2, 6, 3]


def test_one_tenant_alone_is_served_first_come_first_served_and_has_everything() -> None:
    turns = TenantTurns(share=2, reserve=2)
    for _ in range(9):
        turns.note_request("a", 1.0)
        turns.note_taken("a", 1.0)
    assert turns.may_take("a", 1, [], 1.0)
    assert turns.choose([Waiter("a", 1), Waiter("a", 2)], ready=0, now=1.0) == Waiter("a", 1)


def test_a_greedy_tenant_leaves_the_reserve_to_others() -> None:
    turns = flooded()
    assert not turns.may_take("a", 2, [], 101.0)
    assert turns.may_take("a", 3, [], 101.0)
    assert turns.may_take("b", 1, [Waiter("a")], 101.0)
    assert turns.choose([Waiter("a")], ready=1, now=101.0) is None
    assert turns.choose([Waiter("a")], ready=2, now=101.0) == Waiter("a")
    assert turns.choose([Waiter("a", 1), Waiter("b", 2)], ready=0, now=101.0) == Waiter("b", 2)


def test_only_if_all_who_wait_are_greedy_others_come_first() -> None:
    turns = flooded()
    assert turns.all_greedy([Waiter("a"), Waiter("a")], 101.0)
    assert not turns.all_greedy([Waiter("a"), Waiter("b")], 101.0)
    assert not turns.all_greedy([], 101.0)


def test_who_takes_many_but_fewer_than_others_is_not_greedy() -> None:
    turns = flooded()
    for _ in range(6):
        turns.note_taken("b", 100.0)
    assert turns.is_greedy("a", 101.0)
    assert not turns.is_greedy("b", 101.0)


def test_greed_is_forgotten_when_it_is_over_or_nobody_else_is_about() -> None:
    turns = flooded()
    assert turns.may_take("a", 1, [], 100.0 + RECENT_S + 1)
    turns = flooded()
    turns.note_request("a", 100.0 + ACTIVE_S + 1)
    assert not turns.is_greedy("a", 100.0 + ACTIVE_S + 1)


def test_nobody_overtakes_a_modest_tenant_that_waits() -> None:
    assert not flooded().may_take("c", 5, [Waiter("b")], 101.0)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60))
def test_no_tenant_is_served_twice_while_another_waits_since_before(order: list[str]) -> None:
    turns, waiting = TenantTurns(share=3, reserve=0), [Waiter(name, number) for number, name in enumerate(order)]
    since: dict[str, int] = dict.fromkeys(order, 0)
    while waiting:
        waiter = turns.choose(waiting, ready=0, now=0.0)
        assert waiter is not None
        waiting.remove(waiter)
        turns.note_taken(waiter.tenant, 0.0)
        for name in {one.tenant for one in waiting}:
            since[name] = 0 if name == waiter.tenant else since[name] + 1
            assert since[name] <= 3
