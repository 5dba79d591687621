"""The request that is being served, as context variables: its caller, and the notes for its audit record.

Code that does something worth recording adds to `notes`; the audit record gets them without the `secrets`.
"""

import time
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from warren.model.access import Caller
from warren.model.operations import Command, ExecResult

MAX_SECRETS: Final = 256


@dataclass(slots=True)
class RequestContext:
    """`secrets` is None if there are more than MAX_SECRETS: then the audit record keeps no texts of the request.
    `if_undelivered` is called if the answer does not reach the caller."""

    caller: Caller = field(default_factory=Caller)
    notes: dict[str, Any] = field(default_factory=dict)
    secrets: set[str] | None = field(default_factory=set)
    if_undelivered: Callable[[], None] | None = None


_NO_REQUEST: Final = RequestContext()
_request_context: ContextVar[RequestContext] = ContextVar("request_context", default=_NO_REQUEST)
_claim_timeout_s: ContextVar[float | None] = ContextVar("claim_timeout_s", default=None)
_image_wait_s: ContextVar[float | None] = ContextVar("image_wait_s", default=None)
_wait_until: ContextVar[float | None] = ContextVar("wait_until", default=None)
_session_id: ContextVar[str] = ContextVar("session_id", default="")


def set_claim_timeout(seconds: float) -> None:
    """Sets how long this request waits for a sandbox; the server's own limit holds if it is shorter."""
    _claim_timeout_s.set(seconds)


def shorter_claim_timeout(limit_s: float) -> float:
    requested_s = _claim_timeout_s.get()
    return shorter_wait(limit_s if requested_s is None else min(requested_s, limit_s))


def set_image_wait(seconds: float) -> None:
    """Sets how long this request waits for an image; the server's own limit holds if it is shorter."""
    _image_wait_s.set(seconds)


def shorter_image_wait(limit_s: float) -> float:
    requested_s = _image_wait_s.get()
    return shorter_wait(limit_s if requested_s is None else min(requested_s, limit_s))


def set_longest_wait(seconds: float) -> None:
    """Sets how long this request waits from now on, for everything together, because its client waits no longer."""
    _wait_until.set(time.monotonic() + seconds)


def shorter_wait(limit_s: float) -> float:
    until = _wait_until.get()
    return limit_s if until is None else max(0.0, min(limit_s, until - time.monotonic()))


def set_session_id(session_id: str) -> None:
    """Sets the id of the session that this request creates."""
    _session_id.set(session_id)


def session_id_or(new: Callable[[], str]) -> str:
    return _session_id.get() or new()


def set_request_context(request_context: RequestContext) -> None:
    _request_context.set(request_context)


def current_caller() -> Caller:
    return _request_context.get().caller


def set_if_undelivered(undo: Callable[[], None] | None) -> None:
    """Sets what is to be done if the answer to this request does not reach its caller."""
    request_context = _request_context.get()
    if request_context is not _NO_REQUEST:
        request_context.if_undelivered = undo


def keep_secret(values: Collection[str]) -> None:
    """Keeps these values out of the audit record of this request."""
    request_context = _request_context.get()
    if request_context is _NO_REQUEST or request_context.secrets is None:
        return
    if len(values) + len(request_context.secrets) > MAX_SECRETS:
        request_context.secrets = None
    else:
        request_context.secrets.update(values)


def note(**notes: Any) -> None:
    """Adds to the audit record of this request, if there is a request."""
    request_context = _request_context.get()
    if request_context is not _NO_REQUEST:
        request_context.notes.update(notes)


def note_command(command: Command, **notes: Any) -> None:
    """Adds the command to the audit record, without the values of its variables, and these notes."""
    request_context = _request_context.get()
    if request_context is _NO_REQUEST:
        return
    shown = command.as_judged()
    request_context.notes.update(notes, command=shown.shell or shown.argv)
    for values in (command.env, command.base_env):
        if values:
            keep_secret(values.values())


def note_end(result: ExecResult) -> None:
    request_context = _request_context.get()
    if request_context is not _NO_REQUEST:
        request_context.notes.update(exit_code=result.exit_code, reason=str(result.reason))
