"""The request that is being served, for those far from its route: who asks, and what will be noted about it.

Whoever does something worth noting adds to `notes`; what is noted ends up in the audit record, without `secrets`.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from warren.model.access import Caller


@dataclass(slots=True)
class Asking:
    caller: Caller = field(default_factory=Caller)
    notes: dict[str, Any] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)


_NOBODY: Final = Asking()
_asking: ContextVar[Asking] = ContextVar("asking", default=_NOBODY)


_patience_s: ContextVar[float | None] = ContextVar("patience", default=None)


def set_patience(seconds: float) -> None:
    """How long this request waits for a sandbox, if that is less than the server would let it."""
    _patience_s.set(seconds)


def patience_s(most: float) -> float:
    asked = _patience_s.get()
    return most if asked is None else min(asked, most)


_session_id: ContextVar[str] = ContextVar("session_id", default="")


def set_session_id(session_id: str) -> None:
    """What a session that this request makes is to be called."""
    _session_id.set(session_id)


def session_id_or(new: Callable[[], str]) -> str:
    return _session_id.get() or new()


def set_asking(asking: Asking) -> None:
    _asking.set(asking)


def current_caller() -> Caller:
    return _asking.get().caller


def keep_secret(values: Iterable[str]) -> None:
    """Must not be seen in the audit record of this request."""
    asking = _asking.get()
    if asking is not _NOBODY:
        asking.secrets.update(values)


def note(**notes: Any) -> None:
    """For the audit record of this request, if there is one."""
    asking = _asking.get()
    if asking is not _NOBODY:
        asking.notes.update(notes)
