"""A session's moves, deadlines and checks."""

from dataclasses import replace

import pytest

from warren.model.errors import Conflict, InvalidRequest
from warren.model.session import (
    CREATING_S,
    STATES,
    EndReason,
    Session,
    SessionState,
    check_key,
    check_metadata,
    check_seconds,
    check_thread_id,
    new_session_id,
)

S = SessionState


def session(state: SessionState = S.RUNNING, **changes: object) -> Session:
    row = Session("ses_1", "t", "base", "boot", created_at=0, started=100.0, used=100.0, state=state)
    return replace(row, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", list(S))
@pytest.mark.parametrize("after", list(S))
def test_only_the_moves_of_the_table_can_be_made(before: SessionState, after: SessionState) -> None:
    if after in STATES[before].next:
        assert session(before).moved_to(after).state is after
    else:
        with pytest.raises(Conflict, match=f"is {before}, it cannot become {after}"):
            session(before).moved_to(after)


def test_every_state_but_the_last_leads_to_the_end() -> None:
    for state in S:
        reachable, edge = {state}, {state}
        while edge := {after for before in edge for after in STATES[before].next} - reachable:
            reachable |= edge
        assert S.ENDED in reachable


@pytest.mark.parametrize("state", list(S))
def test_the_rules_of_a_state_agree_with_each_other(state: SessionState) -> None:
    assert not state.can_run or (state.is_usable and state.can_be_lost and not state.is_in_transition)
    assert not state.can_be_lost or (state.holds_sandbox and S.LOST in STATES[state].next)
    assert state.is_active or not (state.is_usable or state.holds_sandbox or state.expires or STATES[state].next)
    assert state.is_in_transition or state in STATES[state].next or not state.is_active


def test_a_change_counts_the_version_up() -> None:
    assert session().changed(used=101.0).version == session().version + 1


def test_an_idle_session_expires_after_its_time_out_and_the_slack() -> None:
    row = session(idle_timeout_s=100.0, max_lifetime_s=1000.0)
    assert row.slack_s == 5.0
    assert row.expiry(204.9) is None
    assert row.expiry(205.0) is EndReason.IDLE


def test_use_does_not_lengthen_the_lifetime() -> None:
    row = session(idle_timeout_s=100.0, max_lifetime_s=1000.0, used=1095.0)
    assert row.expiry(1099.9) is None
    assert row.expiry(1100.0) is EndReason.LIFETIME


def test_a_session_nobody_makes_any_more_is_undone() -> None:
    row = session(S.CREATING)
    assert row.expiry(100.0 + CREATING_S) is EndReason.UNDONE


def test_ids_cannot_be_guessed() -> None:
    ids = {new_session_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(name) == len("ses_") + 32 for name in ids)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 30 * 86400 + 1, True])
def test_seconds_that_cannot_be_are_refused(value: float) -> None:
    with pytest.raises(InvalidRequest, match="idle_timeout_s"):
        check_seconds("idle_timeout_s", value)


@pytest.mark.parametrize("text", ["", "x" * 256, "a\nb", "a\0b"])
def test_thread_ids_and_keys_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        check_thread_id(text)
    with pytest.raises(InvalidRequest):
        check_key(text)


@pytest.mark.parametrize(
    "metadata", [{"": "x"}, {"n" * 129: "x"}, {"a": "x" * 4097}, {f"k{i}": "v" for i in range(65)}]
)
def test_metadata_beyond_its_limits_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="metadata"):
        check_metadata(metadata)


def test_a_paused_session_expires_by_its_pause_alone() -> None:
    row = session(S.RUNNING, idle_timeout_s=100.0, max_lifetime_s=1000.0)
    paused = row.moved_to(S.PAUSED, paused_at=150.0, max_paused_s=5000.0)
    assert (paused.deadline, paused.expiry(5149.9), paused.expiry(5150.0)) == (5150.0, None, EndReason.PAUSED_TOO_LONG)


def test_time_that_a_session_was_paused_is_no_time_of_its_life() -> None:
    row = session(S.RUNNING, idle_timeout_s=100.0, max_lifetime_s=200.0)
    for paused_at, resumed_at in ((150.0, 1150.0), (1200.0, 1300.0)):
        row = row.moved_to(S.PAUSED, paused_at=paused_at)
        row = row.moved_to(S.RUNNING, **row.clocks_at(resumed_at))
    assert (row.paused_at, row.paused_s, row.used) == (None, 1100.0, 1300.0)
    assert (row.expiry(1399.0), row.expiry(1400.0)) == (None, EndReason.LIFETIME)
    lost = row.moved_to(S.PAUSED, paused_at=1350.0)
    assert lost.moved_to(S.LOST, **lost.clocks_at(9000.0)).expiry(9040.0) is None
