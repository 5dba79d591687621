"""What happened, for those who keep records of it or want to be told."""

import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

_RUN: Final = f"evt_{secrets.token_hex(12)}"  # of this process; an id must be unique, not a secret
_numbers = itertools.count(1)


class EventKind(StrEnum):
    SESSION_CREATED = "session.created"
    SESSION_ENDED = "session.ended"
    SESSION_EXPIRED = "session.expired"
    SESSION_LOST = "session.lost"
    COMMAND_FINISHED = "command.finished"
    COMMAND_REFUSED = "command.refused"
    QUOTA_REACHED = "quota.reached"


@dataclass(frozen=True, slots=True)
class Event:
    """`at` is the time of day; `data` is JSON, and holds no secret and no output of a command."""

    kind: EventKind
    tenant: str
    at: float
    session_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: f"{_RUN}{next(_numbers):08x}")
