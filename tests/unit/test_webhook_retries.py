"""What follows an attempt to deliver, as tables."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.governance.webhooks.retries import (
    ATTEMPTS,
    MAX_RETRY_AFTER_S,
    PAUSES_S,
    SPREAD,
    NextStep,
    Step,
    after_failure,
    after_response,
    read_retry_after,
)

NOW = 1_445_412_420.0  # Wed, 21 Oct 2015 07:27:00 GMT
AGAIN, GIVEN_UP, DELIVERED, GONE = NextStep.TRY_AGAIN, NextStep.GIVE_UP, NextStep.DONE, NextStep.DISABLE


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *((status, DELIVERED) for status in (200, 201, 202, 204, 299)),
        *((status, AGAIN) for status in (301, 302, 303, 304, 307, 308)),
        *((status, AGAIN) for status in (400, 401, 403, 404, 408, 409, 422, 425, 429)),
        *((status, AGAIN) for status in (500, 502, 503, 504, 599, 101, 600)),
        *((status, GIVEN_UP) for status in (405, 413, 414, 415, 431, 501, 505)),
        (410, GONE),
    ],
)
def test_what_a_status_means(status: int, verdict: NextStep) -> None:
    assert after_response(1, status, 0.0, 0.0).step is verdict


def test_the_pauses_grow_until_it_is_given_up() -> None:
    pauses = [after_failure(attempt, 0.0, retryable=True).after_s for attempt in range(1, ATTEMPTS)]
    assert pauses == [5, 30, 120, 600, 1800, 7200, 21600, 43200]
    assert all(one < two for one, two in pairwise(pauses))
    assert after_failure(ATTEMPTS, 0.0, retryable=True) == Step(GIVEN_UP)
    assert after_response(ATTEMPTS, 503, 60.0, 0.0) == Step(GIVEN_UP)


def test_the_last_attempt_may_still_succeed_or_end_the_hook() -> None:
    assert after_response(ATTEMPTS, 204, 0.0, 0.0) == Step(DELIVERED)
    assert after_response(ATTEMPTS, 410, 0.0, 0.0) == Step(GONE)


def test_what_may_not_be_called_is_not_called_again() -> None:
    assert after_failure(1, 0.5, retryable=False) == Step(GIVEN_UP)


@pytest.mark.parametrize(
    ("why", "attempt", "retry_after_s", "pause_s"),
    [
        ("it asks for more", 1, 60.0, 60.0),
        ("it asks for less than is due anyway", 3, 60.0, 120.0),
        ("it asks for too much", 1, 10.0**9, MAX_RETRY_AFTER_S),
        ("it asks for nothing", 2, 0.0, 30.0),
    ],
)
def test_a_receiver_may_ask_for_patience(why: str, attempt: int, retry_after_s: float, pause_s: float) -> None:
    assert after_response(attempt, 429, retry_after_s, 0.0) == Step(AGAIN, pause_s), why


@given(
    attempt=st.integers(1, 2 * ATTEMPTS),
    status=st.integers(100, 999),
    retry_after_s=st.floats(0, 10**10),
    chance=st.floats(0, 1),
)
def test_a_pause_is_never_shorter_than_asked_nor_without_end(
    attempt: int, status: int, retry_after_s: float, chance: float
) -> None:
    step = after_response(attempt, status, retry_after_s, chance)
    if step.step is AGAIN:
        assert attempt < ATTEMPTS
        assert max(PAUSES_S[attempt - 1], min(retry_after_s, MAX_RETRY_AFTER_S)) <= step.after_s
        assert step.after_s <= max(*PAUSES_S, MAX_RETRY_AFTER_S) * (1 + SPREAD)
    else:
        assert step.after_s == 0


def test_pauses_of_many_hooks_are_spread() -> None:
    assert after_failure(1, 0.0, retryable=True).after_s < after_failure(1, 0.9, retryable=True).after_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("120", 120),
        (" 120 ", 120),
        ("0", 0),
        ("-5", 0),
        ("1.5", 0),
        ("١٢", 0),
        ("9" * 5000, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 60),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 60),
        ("Wed, 21 Oct 2015 07:26:00 GMT", 0),
        ("Wed, 21 Oct 2015 09:28:00 +0200", 60),
        ("Wed, 99 Oct 2015 07:28:00 GMT", 0),
        ("soon", 0),
    ],
)
def test_a_retry_after_is_read(text: str, seconds: float) -> None:
    assert read_retry_after(text, NOW) == seconds


@given(text=st.one_of(st.text(), st.from_regex(r"[A-Z][a-z]{2}, \d+ [A-Z][a-z]{2} \d+ \d+:\d+:\d+ [+-]?\d*")))
def test_any_retry_after_is_some_number_of_seconds(text: str) -> None:
    assert read_retry_after(text, NOW) >= 0
