"""Results, limits and error texts of deepagents' own BaseSandbox, and how its versions 0.6 and 0.7 differ. No I/O.

Before 0.7 writing did not replace a file, and `glob` returned paths relative to the root, directories among them.
"""

import base64
import codecs
import io
import posixpath
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

from deepagents.backends import protocol
from deepagents.backends.protocol import FileData, FileInfo, GlobResult, GrepMatch, GrepResult, ReadResult
from deepagents.backends.utils import _get_file_type

from warren.integrations.globs import Pattern
from warren.model.errors import (
    FileNotFound,
    InvalidPath,
    IsDirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
    WarrenError,
)
from warren.sdk.results import FileEntry, FileMatch, SearchSummary

T = TypeVar("T")

BEFORE_0_7: Final = not hasattr(protocol, "DeleteResult")

PAGE_BYTES: Final = 500 * 1024
BINARY_BYTES: Final = 500 * 1024
COUNTED_BYTES: Final = 1024 * 1024  # lines of a longer file are counted only if its end was read
WHOLE_BYTES: Final = 16 * 1024 * 1024  # a longer file is cut in the sandbox
_PROBED_BYTES: Final = 8192
_VIDEOS: Final = (".webm", ".mkv", ".avi", ".mpeg", ".mpg", ".3gp", ".flv", ".wmv", ".m4v")
_EMPTY: Final = "System reminder: File exists but has empty contents"
_CUT: Final = (
    "\n\n[Output was truncated due to size limits. This paginated read result exceeded the sandbox stdout limit. "
    "Continue reading with a larger offset or smaller limit to inspect the rest of the file.]"
)
NO_OLD_STRING: Final = "Error: old_string cannot be empty. Provide the exact text to replace."
GLOB_S: Final = 5.0
GREP_S: Final = 30.0
MAX_MATCHES: Final = 10_000
_KERNEL_DIRECTORIES: Final = ("/proc", "/sys", "/dev")
_SPECIAL: Final = re.compile(r"[][\\.^$*+?(){}|]")


def build_result(kind: type[T], **values: Any) -> T:
    """Builds a result; fields that this version of deepagents does not have are left out."""
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in known})


def transfer_code(exc: WarrenError) -> str:
    """Returns the error of an upload or a download: one of deepagents' four codes, else a text."""
    for kind, code in (
        (FileNotFound, "file_not_found"),
        (PermissionDenied, "permission_denied"),
        (IsDirectory, "is_directory"),
        (InvalidPath | NotADirectory, "invalid_path"),
    ):
        if isinstance(exc, kind):
            return code
    return str(exc)


def search_code(exc: WarrenError) -> str:
    """Returns the error of a listing or a search, as deepagents writes it."""
    if isinstance(exc, FileNotFound):
        return "path_not_found"
    return exc.code if isinstance(exc, NotADirectory | PermissionDenied) else str(exc)


def read_code(exc: WarrenError) -> str:
    """Returns the error of reading or editing a file, as deepagents writes it."""
    if isinstance(exc, IsDirectory):
        return "not_a_file"
    if isinstance(exc, NotADirectory | FileNotFound):
        return "file_not_found"
    return exc.code if isinstance(exc, PermissionDenied | NotFound) else str(exc)


# -- reading


def is_binary_name(path: str) -> bool:
    return path.lower().endswith(_VIDEOS) or _get_file_type(path) != "text"


def page_of(path: str, data: bytes, offset: int, limit: int) -> ReadResult:
    if not data:
        return ReadResult(file_data=FileData(content=_EMPTY, encoding="utf-8"))
    if is_binary_name(path) or not _is_text(data[:_PROBED_BYTES]):
        if len(data) > BINARY_BYTES:
            return ReadResult(error=f"File '{path}': Binary file exceeds maximum preview size of {BINARY_BYTES} bytes")
        return ReadResult(file_data=FileData(content=base64.b64encode(data).decode(), encoding="base64"))
    if limit == 0:
        return build_result(ReadResult, file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
    # As in Python's text files, every kind of line end becomes a newline.
    lines = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors="replace").read().split("\n")
    if lines[-1] == "":
        lines.pop()
    total = len(lines)
    if offset >= total:
        return ReadResult(error=f"File '{path}': Line offset {offset} exceeds file length ({total} lines)")
    text, returned = _fit_page(lines[offset : offset + limit])
    end = offset + returned
    counted = end >= total or len(data) <= COUNTED_BYTES
    return _text_result(text, offset, end, total if counted else None, end if end < total else None)


def _text_result(text: str, offset: int, end: int, total: int | None, next_offset: int | None) -> ReadResult:
    return build_result(
        ReadResult,
        file_data=FileData(content=text, encoding="utf-8"),
        total_lines=total,
        start_line=offset + 1,
        end_line=end,
        next_offset=next_offset,
    )


def _is_text(beginning: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning, final=False)
    except UnicodeDecodeError:
        return False
    return True


def _fit_page(lines: Sequence[str]) -> tuple[str, int]:
    """Returns as many lines as fit on a page, and their number. A cut line counts only if it is the only one."""
    room = PAGE_BYTES - len(_CUT.encode())
    kept: list[str] = []
    for line in lines:
        size = len(line.encode()) + bool(kept)
        if size > room:
            cut = line.encode()[: max(0, room - bool(kept))].decode(errors="ignore")
            return "\n".join([*kept, cut]) + _CUT, max(1, len(kept))
        kept.append(line)
        room -= size
    return "\n".join(kept), len(kept)


def read_page_of_long(path: str, text: str, offset: int, limit: int) -> ReadResult:
    """Returns a page of a file that is too long to be fetched, from its lines after `offset`; they are not counted."""
    if "\ufffd" in text[:_PROBED_BYTES]:
        return ReadResult(error=f"File '{path}': Binary file exceeds maximum preview size of {BINARY_BYTES} bytes")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return ReadResult(error=f"File '{path}': Line offset {offset} exceeds file length")
    page, returned = _fit_page(lines)
    end = offset + returned
    return _text_result(page, offset, end, None, end if returned == limit or returned < len(lines) else None)


# -- writing


def replace_text(data: bytes, old: str, new: str, replace_all: bool) -> tuple[bytes, int, str]:
    """Returns the new content, the number of occurrences, and an error code.

    `read` shows every line end as a newline, so `old` is tried as it is, then with the line ends of Windows, then
    with those of Unix; `new` is changed in the same way, and the file keeps its style.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return b"", 0, "not_a_text_file"
    for convert in (str, _windows, _unix):
        count = text.count(convert(old))
        if count > 1 and not replace_all:
            return b"", count, "multiple_occurrences"
        if count:
            return text.replace(convert(old), convert(new)).encode(), count, ""
    return b"", 0, "string_not_found"


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _windows(text: str) -> str:
    return _unix(text).replace("\n", "\r\n")


def edit_error(code: str, path: str, old: str) -> str:
    return {
        "file_not_found": f"Error: File '{path}' not found",
        "permission_denied": f"Error: Permission denied editing file '{path}'",
        "not_a_file": f"Error: '{path}' is not a regular file",
        "not_a_text_file": f"Error: File '{path}' is not a text file",
        "string_not_found": f"Error: String not found in file: '{old}'",
        "multiple_occurrences": (
            f"Error: String '{old}' appears multiple times. Use replace_all=True to replace all occurrences."
        ),
    }.get(code, f"Error editing file '{path}': {code}")


# -- searching


class ListedTree:
    """The entries below a directory with their relative paths. `reason` says why some are missing, if they are."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self.entries: list[tuple[str, FileEntry]] = []
        self.reason: str | None = None

    def add(self, directory: str, depth: int, found: Sequence[FileEntry]) -> list[str]:
        """Adds what was found below a directory, down to `depth` levels; returns the directories to list next."""
        level = directory.rstrip("/").count("/") + depth
        kept = [each for each in found if each.path not in _KERNEL_DIRECTORIES]
        self.entries += [(each.path.removeprefix(self.root + "/"), each) for each in kept]
        return [each.path for each in kept if each.is_dir and each.path.count("/") == level]

    def find(self, pattern: Pattern) -> GlobResult:
        candidates = self.entries if BEFORE_0_7 else self._files()
        found = sorted((relative, each) for relative, each in candidates if pattern.matches(relative))
        reason = "budget" if len(found) > MAX_MATCHES else self.reason
        matches = [_file_info(self.root, relative, each) for relative, each in found[:MAX_MATCHES]]
        return build_result(GlobResult, matches=matches, truncated=reason is not None, truncation_reason=reason)

    def _files(self) -> list[tuple[str, FileEntry]]:
        """Returns regular files, and links to regular files below the same root."""
        known = {each.path for _, each in self.entries if each.kind == "file"}
        return [
            (relative, each) for relative, each in self.entries if each.path in known or _link_target(each) in known
        ]


def _link_target(entry: FileEntry) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.target)) if entry.target else ""


def _file_info(root: str, relative: str, entry: FileEntry) -> FileInfo:
    return {"path": relative if BEFORE_0_7 else f"{root}/{relative}", "is_dir": entry.is_dir}


def matches_of(
    found: Sequence[FileMatch],
    summary: SearchSummary,
    root: str,
    include: str,
    max_count: int | None,
    skip: Sequence[str],
) -> GrepResult:
    """Returns the matches whose path fits `include` and has no directory of `skip` in it, at most `max_count`."""
    if summary.truncated_by == "time":
        return GrepResult(
            error=f"Error: grep timed out after {GREP_S:g}s. Try a more specific pattern or a narrower path."
        )
    skipped = {name for name in skip if name != posixpath.basename(root.rstrip("/"))}
    included = Pattern(include)
    matches: list[GrepMatch] = []
    for each in found:
        relative = each.path.removeprefix(root.rstrip("/") + "/")
        is_included = "/" not in include or included.matches(relative)
        if is_included and skipped.isdisjoint(relative.split("/")):
            matches.append({"path": each.path, "line": each.line, "text": each.text})
    cut = bool(summary.truncated_by or summary.too_large)
    if max_count is not None and len(matches) > max_count:
        matches, cut = matches[:max_count], True
    return build_result(GrepResult, matches=matches, truncated=cut)


def literal(text: str) -> str:
    """Returns a regular expression for this text; several lines mean any of them, as in grep -F."""
    return "|".join(_SPECIAL.sub(r"\\\g<0>", line) or "^" for line in text.split("\n"))
