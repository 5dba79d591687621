"""The exceptions that the agent's error codes stand for."""

from warren.model import errors
from warren.model.errors import ProtocolError, WarrenError
from warren.sandboxes.agent.wire import Code, Fields, Tag

ERRORS: dict[int, type[WarrenError]] = {
    Code.NOT_FOUND: errors.FileNotFound,
    Code.PERMISSION_DENIED: errors.PermissionDenied,
    Code.IS_DIRECTORY: errors.IsDirectory,
    Code.NOT_A_DIRECTORY: errors.NotADirectory,
    Code.EXISTS: errors.FileExists,
    Code.INVALID_PATH: errors.InvalidPath,
    Code.NO_SPACE: errors.NoSpace,
    Code.UNKNOWN_USER: errors.UnknownUser,
    Code.NO_PROCESS: errors.ProcessNotFound,
    Code.INVALID: errors.InvalidRequest,
    Code.LIMIT: errors.LimitReached,
    Code.IO: errors.FileProblem,
    Code.CONFLICT: errors.Conflict,
    Code.NO_CWD: errors.InvalidPath,
}


def parse_error(reply: Fields) -> WarrenError:
    """The exception that an ERROR stands for, with its message made safe to print."""
    kind = ERRORS.get(reply.number(Tag.CODE))
    if kind is None:
        raise ProtocolError(f"an error with the unknown code {reply.number(Tag.CODE)}")
    message = printable(reply.text(Tag.MESSAGE)) or kind.code
    if kind is errors.UnknownUser and message.startswith("there is no user root "):
        return kind(message, remedy="root needs an environment with `sudo: true` in its file, on the provider oci")
    return kind(message)


def printable(text: str, limit: int = 2000) -> str:
    """Untrusted text for messages: bounded, control characters and broken bytes escaped."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut)
