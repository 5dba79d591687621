"""Decides what follows an attempt to deliver a webhook: nothing, another attempt and when, or the end of the webhook.

An attempt has delivered its message if the receiver answers 2xx. Any other answer may be temporary (a 404 while the
receiver is deployed, a 401 while its secret is changed) and another attempt follows, except for the statuses that say
that the receiver will never take this request. The sender follows no redirects: they are failures like any other.
"""

import re
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

PAUSES_S: Final = (5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 21600.0, 43200.0)
ATTEMPTS: Final = len(PAUSES_S) + 1
MAX_RETRY_AFTER_S: Final = 43200.0
SPREAD: Final = 0.2
_GONE: Final = 410
# These refuse the method, size, type, header or version of a request, which are the same each time.
_FINAL: Final = frozenset({405, 413, 414, 415, 431, 501, 505})
_SECONDS: Final = re.compile(r"[0-9]{1,9}")


class NextStep(Enum):
    DONE = "done"
    TRY_AGAIN = "try_again"
    GIVE_UP = "give_up"
    DISABLE = "disable"  # the receiver wants no more deliveries


@dataclass(frozen=True)
class Step:
    step: NextStep
    after_s: float = 0.0


def after_response(attempt: int, status: int, retry_after_s: float, chance: float) -> Step:
    """Returns what follows a response. `attempt` counts from 1; `chance` is a random number from 0 to 1."""
    if 200 <= status < 300:
        return Step(NextStep.DONE)
    if status == _GONE:
        return Step(NextStep.DISABLE)
    return _try_again(attempt, retry_after_s, chance, retryable=status not in _FINAL)


def after_failure(attempt: int, chance: float, *, retryable: bool) -> Step:
    """Returns what follows an attempt without a response. One whose error is not `retryable`, such as an address that
    is not allowed, is not tried again."""
    return _try_again(attempt, 0.0, chance, retryable=retryable)


def _try_again(attempt: int, retry_after_s: float, chance: float, *, retryable: bool) -> Step:
    if not retryable or attempt >= ATTEMPTS:
        return Step(NextStep.GIVE_UP)
    pause_s = max(PAUSES_S[max(attempt, 1) - 1], min(retry_after_s, MAX_RETRY_AFTER_S))
    return Step(NextStep.TRY_AGAIN, pause_s * (1 + SPREAD * chance))


def read_retry_after(text: str, now: float) -> float:
    """Returns the seconds that a Retry-After header asks for, as a number or as a date; 0 if it cannot be read."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    until = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, until.timestamp() - now)
