"""Everything that can go wrong, as one tree.

WarrenError
├── InvalidRequest                 the caller asked for something that cannot be
│   ├── UnknownEnvironment
│   ├── UnknownEntry               the registry has no such agent, tool or prompt
│   ├── UnknownUser
│   ├── InvalidPath
│   ├── RangeNotSatisfiable        the file does not have the requested part
│   ├── KeyReused                  an Idempotency-Key came again with another request
│   ├── InvalidJson
│   ├── InvalidHttp
│   ├── HostNotAllowed             addressed by a name the server does not go by
│   ├── OriginNotAllowed           sent by a web page from elsewhere
│   ├── TooLarge                   more than one request may have
│   │   └── HeadTooLarge
│   ├── BuildFailed                a step of an image's recipe failed
│   └── LanguageMissing            the image lacks the program of a code context
├── NotFound
│   ├── SessionNotFound
│   ├── SandboxNotFound
│   ├── ProcessNotFound
│   ├── ContextNotFound
│   ├── ImageNotFound
│   ├── EntryNotFound              the registry has no entry of the requested name
│   └── FileNotFound
├── Unauthorized                   no key, or not the right one
├── Forbidden                      the key may not do this
│   └── CommandRefused             a command policy does not allow it
├── QuotaExceeded                  the tenant, or the key, has used up a quota
│   └── RateLimited                too many requests in too short a time
├── Conflict
│   ├── FileExists
│   ├── SessionMismatch            a thread's session has something else than was asked for
│   ├── SessionPaused              it stands still, and is not to be resumed by whoever uses it
│   └── ContextLost                the interpreter of a code context has ended, and what it held with it
├── FileProblem                    the file system of the sandbox refused
│   ├── PermissionDenied
│   ├── IsDirectory
│   ├── NotADirectory
│   └── NoSpace
├── LimitReached                   the sandbox's own limits (processes, open files, memory)
├── SandboxLost                    the sandbox died or cannot be reached
├── SessionEnded                   the session expired or was deleted
├── RequestTimedOut                the client sent too slowly
├── PortClosed                     nothing listens on that port of the sandbox
├── PortFailed                     the server on that port did not answer properly, or in time
├── ProtocolError                  the agent broke the protocol
├── Interrupted                    the worker was lost meanwhile: nobody knows whether it was done
└── Unavailable                    this machine cannot do it now
    ├── ProviderUnavailable
    │   └── ProviderKeyRefused     the far side does not take the operator's key
    ├── StoreAway                  the store of sessions cannot be reached
    ├── ServerUnreachable          the client cannot reach the server, or lost it
    ├── NoCapacity                 nothing became free in time
    │   └── MachineFull            memory or disk of the host would run out
    ├── Stopping                   the server is being stopped
    ├── Misdirected                the session belongs to another worker
    ├── ImageBuilding              the environment's image is being built
    ├── ImageBuildFailed           the environment's image could not be built a moment ago
    └── IsolationUnavailable       a layer of isolation cannot be had: nothing was started

A class carries its stable `code`, its HTTP status, and whether trying again can help. The message says what was wrong,
`remedy` (if set) what to do about it, and `retry_after_s` (if set) when it makes sense to try again.
"""

from typing import ClassVar

from warren.model.mismatch import Mismatch


class WarrenError(Exception):
    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    by_code: ClassVar[dict[str, type["WarrenError"]]] = {}

    def __init__(self, message: str, *, remedy: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.retry_after_s = retry_after_s

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "code" in cls.__dict__:
            WarrenError.by_code[cls.code] = cls

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class InvalidRequest(WarrenError):
    code, http_status = "invalid_request", 422


class UnknownEnvironment(InvalidRequest):
    code = "unknown_environment"


class UnknownEntry(InvalidRequest):
    code = "unknown_entry"


class UnknownUser(InvalidRequest):
    code = "unknown_user"


class InvalidPath(InvalidRequest):
    code = "invalid_path"


class RangeNotSatisfiable(InvalidRequest):
    code, http_status = "range_not_satisfiable", 416


class KeyReused(InvalidRequest):
    code = "idempotency_key_reused"


class InvalidJson(InvalidRequest):
    code, http_status = "invalid_json", 400


class InvalidHttp(InvalidRequest):
    code, http_status = "invalid_http", 400


class HostNotAllowed(InvalidRequest):
    code, http_status = "host_not_allowed", 421


class OriginNotAllowed(InvalidRequest):
    code, http_status = "origin_not_allowed", 403


class TooLarge(InvalidRequest):
    code, http_status = "too_large", 413


class HeadTooLarge(TooLarge):
    code, http_status = "header_too_large", 431


class BuildFailed(InvalidRequest):
    """`last_lines` are the last lines that the step wrote."""

    code = "build_failed"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        retry_after_s: float | None = None,
        last_lines: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, remedy=remedy, retry_after_s=retry_after_s)
        self.last_lines = last_lines


class LanguageMissing(InvalidRequest):
    code = "language_missing"


class NotFound(WarrenError):
    code, http_status = "not_found", 404


class SessionNotFound(NotFound):
    code = "session_not_found"


class SandboxNotFound(NotFound):
    code = "sandbox_not_found"


class ProcessNotFound(NotFound):
    code = "process_not_found"


class ContextNotFound(NotFound):
    code = "context_not_found"


class ImageNotFound(NotFound):
    code = "image_not_found"


class EntryNotFound(NotFound):
    code = "entry_not_found"


class FileNotFound(NotFound):
    code = "file_not_found"


class Unauthorized(WarrenError):
    code, http_status = "unauthorized", 401


class Forbidden(WarrenError):
    code, http_status = "forbidden", 403


class CommandRefused(Forbidden):
    code = "command_refused"


class QuotaExceeded(WarrenError):
    code, http_status, retryable = "quota_exceeded", 429, True


class RateLimited(QuotaExceeded):
    code = "rate_limited"


class Conflict(WarrenError):
    code, http_status = "conflict", 409


class FileExists(Conflict):
    code = "exists"


class SessionPaused(Conflict):
    code = "session_paused"


class SessionMismatch(Conflict):
    """`mismatch`: for each thing that differs (`environment`, `limits.memory_mb` …) what the session `has` and what was
    `asked` for."""

    code = "session_mismatch"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        retry_after_s: float | None = None,
        mismatch: Mismatch | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, retry_after_s=retry_after_s)
        self.mismatch = mismatch or {}


class ContextLost(Conflict):
    code = "context_lost"


class FileProblem(WarrenError):
    code, http_status = "file_problem", 400


class PermissionDenied(FileProblem):
    code, http_status = "permission_denied", 403


class IsDirectory(FileProblem):
    code = "is_directory"


class NotADirectory(FileProblem):
    code = "not_a_directory"


class NoSpace(FileProblem):
    code, http_status = "no_space", 507


class LimitReached(WarrenError):
    code, http_status, retryable = "limit_reached", 429, True


class SandboxLost(WarrenError):
    code, http_status = "sandbox_lost", 410


class SessionEnded(WarrenError):
    code, http_status = "session_ended", 410


class RequestTimedOut(WarrenError):
    code, http_status, retryable = "request_timed_out", 408, True


class PortClosed(WarrenError):
    code, http_status, retryable = "port_closed", 502, True


class PortFailed(WarrenError):
    code, http_status, retryable = "port_failed", 502, True


class ProtocolError(WarrenError):
    code, http_status = "protocol_error", 502


class Interrupted(WarrenError):
    code, http_status = "interrupted", 502


class Unavailable(WarrenError):
    code, http_status, retryable = "unavailable", 503, True


class ProviderUnavailable(Unavailable):
    code = "provider_unavailable"


class ProviderKeyRefused(ProviderUnavailable):
    """Waiting does not help. It has no code of its own: for the caller the provider is unavailable."""


class StoreAway(Unavailable):
    """Callers are told only `public`: the address of the store, and its errors, concern the operator alone."""

    public: ClassVar[str] = "the store of this server does not answer"


class ServerUnreachable(Unavailable):
    """If code was running, `get_execution(execution_id)` returns its result."""

    code = "server_unreachable"
    execution_id: str = ""


class NoCapacity(Unavailable):
    code = "no_capacity"


class MachineFull(NoCapacity):
    code = "machine_full"
    what = "provider"  # what has run out: sandboxes, memory, files, disk, or what the provider counts


class Stopping(Unavailable):
    code = "stopping"


class Misdirected(Unavailable):
    """`worker` is the worker that has the session: a coordinator sends the request there instead."""

    code = "misdirected"

    def __init__(self, message: str, *, worker: str = "", retry_after_s: float | None = 1.0, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy, retry_after_s=retry_after_s)
        self.worker = worker


class ImageBuilding(Unavailable):
    """The image is being built, pulled or loaded. `step` and `fraction`: how far that is. `about`: how long the whole
    takes, in words. `remaining_s`: how long it will still take, as far as that can be told."""

    code = "image_building"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        retry_after_s: float | None = None,
        step: str = "",
        fraction: float | None = None,
        about: str = "",
        remaining_s: float | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, retry_after_s=retry_after_s)
        self.step, self.fraction, self.about, self.remaining_s = step, fraction, about, remaining_s


class ImageBuildFailed(Unavailable):
    code, retryable = "image_build_failed", False


class IsolationUnavailable(Unavailable):
    code, retryable = "isolation_unavailable", False
