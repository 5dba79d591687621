"""Describes an exception of user code: name, value and a traceback without frames of the runner."""

import sys
import traceback

from . import context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

# All of an error is told in a message of at most 1 MiB, in which a character takes up to six bytes.
_MAX_VALUE = (
    640_000  # bytes; of a longer one both ends are told. Some frameworks put an agent's answer into an exception
)
_MAX_ENDS = 16_384
_MAX_TRACEBACK = 65_536


def describe(error: BaseException) -> "dict[str, str]":
    kind = type(error)
    try:
        value = str(error)
    except Exception:
        value = "<str() of the exception failed>"
    return {
        "name": kind.__name__,
        "value": value if _is_short(value) else _shortened(value, _MAX_ENDS),
        "traceback": _shortened("".join(format_error(error)), _MAX_TRACEBACK),
    }


def format_error(error: BaseException) -> "list[str]":
    if isinstance(error, SyntaxError) and error.text is None:
        _add_line(error)
    report = traceback.TracebackException(type(error), error, _first_of_user(error.__traceback__))
    _trim(report, set())
    return list(report.format())


def _add_line(error: SyntaxError) -> None:
    """Adds the line to a syntax error: the compiler looks for it in a file, and there is none."""
    lines = context.sources.get(error.filename or "", "").split("\n")
    if error.lineno and error.lineno <= len(lines):
        error.text = lines[error.lineno - 1]


def print_error(error: BaseException) -> None:
    sys.stderr.write("".join(format_error(error)))


def _first_of_user(entry: "TracebackType | None") -> "TracebackType | None":
    while entry is not None and _is_ours(entry.tb_frame.f_code.co_filename):
        entry = entry.tb_next
    return entry


def _trim(report: "traceback.TracebackException | None", seen: "set[int]") -> None:
    """Removes our frames, and those of a library between us and the cell, such as asyncio's."""
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    stack = report.stack
    first = next((index for index, frame in enumerate(stack) if frame.filename.startswith("<cell ")), 0)
    stack[:] = [frame for frame in stack[first:] if not _is_ours(frame.filename)]
    _trim(report.__cause__, seen)
    _trim(report.__context__, seen)
    for part in getattr(report, "exceptions", None) or ():
        _trim(part, seen)


def _is_ours(filename: str) -> bool:
    return filename.startswith(context.HERE)


def _is_short(text: str) -> bool:
    if len(text) <= _MAX_ENDS or len(text) > _MAX_VALUE:
        return len(text) <= _MAX_ENDS
    import json  # it takes long to import

    return len(json.dumps(text)) <= _MAX_VALUE


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return "%s\n… %d characters are left out here …\n%s" % (text[: most // 2], len(text) - most, text[-most // 2 :])
