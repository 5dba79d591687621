"""Logs of sessions: how much of what a session did is kept, and what is known of a log beside its entries."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final

from warren.model.errors import InvalidRequest
from warren.model.suggestions import suggest

KINDS: Final = ("command", "cell", "terminal", "output", "note")
MAX_ON_PAGE: Final = 1000


class LogLevel(StrEnum):
    """OFF: nothing is kept. COMMANDS: what ran, when, by whom and how it ended. OUTPUT: what it wrote, too."""

    OFF = "off"
    COMMANDS = "commands"
    OUTPUT = "output"


_ORDER: Final = {level: place for place, level in enumerate(LogLevel)}


def read_level(text: str) -> LogLevel | None:
    """Returns the level of that name, None for an empty text. Raises InvalidRequest."""
    if not text:
        return None
    try:
        return LogLevel(text)
    except ValueError:
        raise InvalidRequest(
            f"logs cannot be {str(text)[:80]!r}",
            remedy=f"{suggest(text, LogLevel)}there are: {', '.join(LogLevel)}",
        ) from None


def strongest(*levels: LogLevel | None) -> LogLevel:
    return max((level for level in levels if level is not None), key=_ORDER.__getitem__, default=LogLevel.OFF)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """What is known of the log of a session, also when the session is forgotten. `bytes`: what it takes on the disk.
    `place`: the worker that keeps it; empty outside of a cluster. Times are wall-clock times."""

    tenant: str
    session_id: str
    level: LogLevel
    bytes: int = 0
    entries: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    ended_at: float | None = None
    expires_at: float | None = None
    place: str = ""

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "LogRecord":
        """Reads a record. Fields that this version does not know are ignored."""
        known = {each.name for each in fields(cls)}
        values = {name: value for name, value in values.items() if name in known}
        return cls(**{**values, "level": LogLevel(values["level"])})


@dataclass(frozen=True, slots=True)
class LogPage:
    """`entries` are JSON values, the oldest first. `next`: the number after which the next page begins. `more`: there
    are further entries now. `ended`: the session has ended, so nothing more will come."""

    level: LogLevel
    entries: Sequence[dict[str, Any]]
    next: int
    more: bool = False
    ended: bool = False
    record: LogRecord | None = None
