"""Who may take how much, who gives something up, and whose turn it is."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.kernel.fair_share import FairShare, Turns


def share(total: float = inf, each: float = inf, of_rest: float | None = None, **held: int) -> FairShare:
    made = FairShare(total, each=each, of_rest=of_rest)
    for owner, amount in held.items():
        made.take(owner, amount)
    return made


@pytest.mark.parametrize(
    ("situation", "made", "owner", "amount", "may"),
    [
        ("nothing is bounded", share(a=1000), "a", 1000, True),
        ("the last of all", share(10, a=5, b=4), "a", 1, True),
        ("more than there is", share(10, a=5, b=5), "c", 1, False),
        ("the last of its own", share(10, each=3, a=2), "a", 1, True),
        ("more than each may hold", share(10, each=3, a=3), "a", 1, False),
        ("another has as much as it may hold", share(10, each=3, a=3), "b", 3, True),
        ("each has a bound and all have not", share(each=3, a=3, b=3), "c", 3, True),
        ("as much as it leaves free", share(12, of_rest=1, a=5), "a", 1, True),
        ("more than it leaves free", share(12, of_rest=1, a=6), "a", 1, False),
        ("others leave less", share(12, of_rest=1, a=6), "b", 3, True),
        ("others leave less than that", share(12, of_rest=1, a=6), "b", 4, False),
        ("four times what it leaves free", share(60, of_rest=4, a=47), "a", 1, True),
        ("more than four times that", share(60, of_rest=4, a=48), "a", 1, False),
        ("an eighth of what it leaves free", share(90, of_rest=1 / 8, a=9), "a", 1, True),
        ("more than an eighth", share(90, of_rest=1 / 8, a=10), "a", 1, False),
        ("all that there is, at once", share(10, of_rest=1), "a", 10, False),
    ],
)
def test_what_one_owner_may_take(situation: str, made: FairShare, owner: str, amount: int, may: bool) -> None:
    before = repr(made)
    assert made.may_take(owner, amount) is may
    assert repr(made) == before, "asking takes nothing"
    assert made.try_take(owner, amount) is may


def test_what_is_given_back_is_there_again() -> None:
    made = share(10, each=5, a=5, b=5)
    assert repr(made) == "<FairShare: 10 of 10 held by 2>"
    made.give_back("a", 2)
    assert (made.held("a"), made.in_all, made.may_take("a", 2), made.may_take("a", 3)) == (3, 8, True, False)
    made.give_back("a", 3)
    assert (list(made.owners), made.held("a")) == (["b"], 0)


def test_who_holds_nothing_may_give_nothing_back() -> None:
    made = share(10)
    made.give_back("a", 0)
    assert not made.owners
    assert made.in_all == 0


@pytest.mark.parametrize(
    ("situation", "made", "owner", "amount", "message"),
    [
        ("nobody holds anything", share(10), "a", 1, "'a' gives back 1 and holds 0"),
        ("only another holds something", share(10, b=5), "a", 1, "'a' gives back 1 and holds 0"),
        ("one more than it holds", share(10, a=2, b=5), "a", 3, "'a' gives back 3 and holds 2"),
        ("there is no bound", share(a=2), "a", 1000, "'a' gives back 1000 and holds 2"),
    ],
)
def test_nobody_gives_back_more_than_it_holds(
    situation: str, made: FairShare, owner: str, amount: int, message: str
) -> None:
    before = repr(made), made.held(owner)
    with pytest.raises(ValueError, match=message):
        made.give_back(owner, amount)
    assert (repr(made), made.held(owner)) == before, "nothing is counted"


def test_the_one_that_holds_most_gives_something_up() -> None:
    made = share(a=2, b=7, c=3)
    assert made.largest() == "b"
    assert made.largest(["a", "c", "nobody"]) == "c"


def test_those_that_hold_least_come_first() -> None:
    assert share(a=2, b=7, c=3).smallest_first(["b", "c", "new", "a"]) == ["new", "a", "c", "b"]


@pytest.mark.parametrize(
    ("held", "owner", "more"),
    [
        ({"a": 1}, "a", True),
        ({"a": 5, "b": 5}, "a", False),
        ({"a": 6, "b": 5}, "a", True),
        ({"a": 4, "b": 3, "c": 3}, "a", True),
        ({"a": 4, "b": 5, "c": 3}, "a", False),
        ({"a": 4}, "b", False),
    ],
)
def test_who_has_more_than_an_equal_part(held: dict[str, int], owner: str, more: bool) -> None:
    assert share(**held).has_more_than_others(owner) is more


@given(
    st.integers(1, 200),
    st.sampled_from([1 / 8, 1, 4]),
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 20)), max_size=60),
)
def test_there_is_always_something_left_for_the_next(total: int, of_rest: float, wanted: list[tuple[str, int]]) -> None:
    made = FairShare(total, of_rest=of_rest)
    for owner, amount in wanted:
        if made.try_take(owner, amount):
            assert made.held(owner) <= of_rest * (total - made.in_all)
        assert made.in_all < total


# -- turns


def test_owners_take_turns_and_each_ones_items_stay_in_order() -> None:
    turns = Turns[int]()
    for number, owner in enumerate("aaabcb"):
        turns.add(owner, number)
    assert (len(turns), list(turns)) == (6, ["a", "b", "c"])
    served = [turns.next() for _ in range(6)]
    assert served == [("a", 0), ("b", 3), ("c", 4), ("a", 1), ("b", 5), ("a", 2)]
    assert not turns
    with pytest.raises(KeyError):
        turns.next()


def test_an_owner_that_may_not_be_served_keeps_its_place() -> None:
    turns = Turns[int]()
    for number, owner in enumerate("aabc"):
        turns.add(owner, number)
    assert turns.next(lambda owner: owner != "a") == ("b", 2)
    assert [turns.next() for _ in range(2)] == [("a", 0), ("c", 3)]
    with pytest.raises(KeyError):
        turns.next(lambda owner: owner != "a")


def test_who_comes_back_comes_last() -> None:
    turns = Turns[int]()
    turns.add("a", 1)
    turns.add("b", 2)
    assert turns.next() == ("a", 1)
    turns.add("a", 3)
    assert [turns.next(), turns.next()] == [("b", 2), ("a", 3)]


def test_items_can_be_taken_out_of_turn() -> None:
    turns = Turns[int]()
    for number in range(4):
        turns.add("a", number)
    turns.add("b", 9)
    assert (turns.take("a"), turns.take("a", newest=True)) == (0, 3)
    turns.remove("a", 2)
    assert (list(turns.of("a")), list(turns.firsts()), len(turns)) == ([1], [1, 9], 2)
    turns.remove("b", 9)
    assert ("b" in turns, "a" in turns, list(turns.of("b"))) == (False, True, [])


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60))
def test_nobody_is_served_twice_while_another_waits(order: list[str]) -> None:
    turns = Turns[int]()
    for number, owner in enumerate(order):
        turns.add(owner, number)
    since = dict.fromkeys(order, 0)
    while turns:
        owner, _ = turns.next()
        for other in turns:
            since[other] = 0 if other == owner else since[other] + 1
            assert since[other] < len(since)


def test_an_item_that_is_put_back_stays_the_first_of_its_owner() -> None:
    turns = Turns[int]()
    for owner, item in (("a", 1), ("a", 2), ("b", 3), ("c", 4)):
        turns.add(owner, item)
    turns.put_back(*turns.next())
    assert [turns.next() for _ in range(2)] == [("b", 3), ("c", 4)]
    turns.put_back(*turns.next())
    assert [turns.next() for _ in range(len(turns))] == [("a", 1), ("a", 2)]
