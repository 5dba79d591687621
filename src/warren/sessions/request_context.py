"""The request that is being served, for those far from its route: who asks, and what will be noted about it.

Whoever does something worth noting adds to `notes`; what is noted ends up in the audit record, without `secrets`.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from warren.model.access import Caller
from warren.model.operations import Command, ExecResult


@dataclass(slots=True)
class RequestContext:
    caller: Caller = field(default_factory=Caller)
    notes: dict[str, Any] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)


_NOBODY: Final = RequestContext()
_request_context: ContextVar[RequestContext] = ContextVar("asking", default=_NOBODY)


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


def set_request_context(request_context: RequestContext) -> None:
    _request_context.set(request_context)


def current_caller() -> Caller:
    return _request_context.get().caller


def keep_secret(values: Iterable[str]) -> None:
    """Must not be seen in the audit record of this request."""
    request_context = _request_context.get()
    if request_context is not _NOBODY:
        request_context.secrets.update(values)


def note(**notes: Any) -> None:
    """For the audit record of this request, if there is one."""
    request_context = _request_context.get()
    if request_context is not _NOBODY:
        request_context.notes.update(notes)


def note_command(command: Command) -> None:
    """What was asked for, for the audit record; the values of its variables must not be seen there."""
    note(command=command.shell or list(command.argv))
    keep_secret((*command.env.values(), *command.base_env.values()))


def note_end(result: ExecResult) -> None:
    note(exit_code=result.exit_code, reason=str(result.reason))
