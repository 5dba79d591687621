"""Turns the agent's error codes into exceptions."""

from warren.model import errors
from warren.model.errors import ProtocolError, WarrenError
from warren.sandboxes.agent.wire import WireCode, WireFields, WireTag

ERRORS: dict[int, type[WarrenError]] = {
    WireCode.NOT_FOUND: errors.FileNotFound,
    WireCode.PERMISSION_DENIED: errors.PermissionDenied,
    WireCode.IS_DIRECTORY: errors.IsDirectory,
    WireCode.NOT_A_DIRECTORY: errors.NotADirectory,
    WireCode.EXISTS: errors.FileExists,
    WireCode.INVALID_PATH: errors.InvalidPath,
    WireCode.NO_SPACE: errors.NoSpace,
    WireCode.UNKNOWN_USER: errors.UnknownUser,
    WireCode.NO_PROCESS: errors.ProcessNotFound,
    WireCode.INVALID: errors.InvalidRequest,
    WireCode.LIMIT: errors.LimitReached,
    WireCode.IO: errors.FileProblem,
    WireCode.CONFLICT: errors.Conflict,
    WireCode.NO_CWD: errors.InvalidPath,
}


def parse_error(reply: WireFields) -> WarrenError:
    """Returns the exception that an ERROR stands for, with its message made safe to print."""
    kind = ERRORS.get(reply.number(WireTag.CODE))
    if kind is None:
        raise ProtocolError(f"an error with the unknown code {reply.number(WireTag.CODE)}")
    message = printable(reply.text(WireTag.MESSAGE)) or kind.code
    if kind is errors.UnknownUser and message.startswith("there is no user root "):
        return kind(message, remedy="root needs an environment with `sudo: true` in its file, on the provider oci")
    return kind(message)


def printable(text: str, limit: int = 2000) -> str:
    """Makes untrusted text fit for messages: bounds it, and escapes control characters and broken bytes."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut)
