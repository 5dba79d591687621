"""What follows an attempt to deliver a webhook: nothing more, another attempt and when, or the end of the hook.

An attempt counts as delivered with a 2xx. Whatever else a receiver says may be a matter of the moment (a 404 while
it is deployed, a 401 while its secret is changed), so it is tried again, but for a few statuses that say that
this request will never be taken. Redirects are not followed, so they are failures like any other.
"""

import re
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

PAUSES_S: Final = (5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 21600.0, 43200.0)
ATTEMPTS: Final = len(PAUSES_S) + 1
LONGEST_ASKED_S: Final = 43200.0  # a receiver may ask for patience, not for being remembered for ever
SPREAD: Final = 0.2
_GONE: Final = 410
# Method, size, type, header and version stay what they are.
_NEVER: Final = frozenset({405, 413, 414, 415, 431, 501, 505})
_SECONDS: Final = re.compile(r"[0-9]{1,9}")


class NextStep(Enum):
    DELIVERED = "delivered"
    TRY_AGAIN = "try_again"
    GIVEN_UP = "given_up"
    GONE = "gone"  # the receiver wants nothing any more: the hook is to be disabled


@dataclass(frozen=True)
class Next:
    verdict: NextStep
    after_s: float = 0.0


def after_answer(attempt: int, status: int, asked_s: float, chance: float) -> Next:
    """`attempt` counts from 1, `asked_s` is what Retry-After said, `chance` a random number from 0 to 1."""
    if 200 <= status < 300:
        return Next(NextStep.DELIVERED)
    if status == _GONE:
        return Next(NextStep.GONE)
    return _again(attempt, asked_s, chance, retryable=status not in _NEVER)


def after_failure(attempt: int, chance: float, *, retryable: bool) -> Next:
    """There was no answer; `retryable` is that of the error: an address that may not be called is not called again."""
    return _again(attempt, 0.0, chance, retryable=retryable)


def _again(attempt: int, asked_s: float, chance: float, *, retryable: bool) -> Next:
    if not retryable or attempt >= ATTEMPTS:
        return Next(NextStep.GIVEN_UP)
    pause_s = max(PAUSES_S[max(attempt, 1) - 1], min(asked_s, LONGEST_ASKED_S))
    return Next(NextStep.TRY_AGAIN, pause_s * (1 + SPREAD * chance))


def read_retry_after(text: str, now: float) -> float:
    """How many seconds a Retry-After asks for, given as seconds or as a date; 0 if it cannot be read."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    until = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, until.timestamp() - now)
