"""deepagents' file operations through the file API: no program runs in the sandbox, so any image works.

Results, limits and error texts are those of deepagents' own BaseSandbox.
"""

import base64
import codecs
import io
import shlex
from collections.abc import Sequence
from typing import Final

from deepagents.backends.protocol import (
    EditResult,
    FileData,
    FileDownloadResponse,
    FileUploadResponse,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.utils import _get_file_type

from warren.integrations.deepagents_versions import BEFORE_0_7, build_result, read_code, search_code, transfer_code
from warren.integrations.plans import Plan, call
from warren.model.errors import WarrenError
from warren.sdk.results import ExecuteResult, FileEntry

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
_NO_OLD_STRING: Final = "Error: old_string cannot be empty. Provide the exact text to replace."


def ls(path: str) -> Plan[LsResult]:
    try:
        found: list[FileEntry] = yield from call("list_files", path)
    except WarrenError as exc:
        return LsResult(entries=None, error=f"Path '{path}': {search_code(exc)}")
    parent = path.rstrip("/")
    return LsResult(entries=[{"path": f"{parent}/{each.name}", "is_dir": each.is_dir} for each in found])


# -- reading


def read(path: str, offset: int, limit: int) -> Plan[ReadResult]:
    offset, limit = max(0, int(offset)), max(0, int(limit))
    try:
        entry: FileEntry = yield from call("stat", path)
        if _is_binary_name(path) and entry.size > BINARY_BYTES:
            return ReadResult(error=f"File '{path}': Binary file exceeds maximum preview size of {BINARY_BYTES} bytes")
        if entry.size > WHOLE_BYTES:
            return (yield from _read_long(path, offset, limit))
        data: bytes = yield from call("read_file", path)
    except WarrenError as exc:
        return ReadResult(error=f"File '{path}': {read_code(exc)}")
    return _page(path, data, offset, limit)


def _is_binary_name(path: str) -> bool:
    return path.lower().endswith(_VIDEOS) or _get_file_type(path) != "text"


def _page(path: str, data: bytes, offset: int, limit: int) -> ReadResult:
    if not data:
        return ReadResult(file_data=FileData(content=_EMPTY, encoding="utf-8"))
    if _is_binary_name(path) or not _is_text(data[:_PROBED_BYTES]):
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


def _read_long(path: str, offset: int, limit: int) -> Plan[ReadResult]:
    """Returns a page of a file that is too long to be fetched; its lines are not counted."""
    line = f"tail -n +{offset + 1} -- {shlex.quote(path)} | head -n {limit} | head -c {2 * PAGE_BYTES}"
    result: ExecuteResult = yield from call("execute", line, 60.0, carry_state=False)
    if "\ufffd" in result.stdout[:_PROBED_BYTES]:
        return ReadResult(error=f"File '{path}': Binary file exceeds maximum preview size of {BINARY_BYTES} bytes")
    lines = result.stdout.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return ReadResult(error=f"File '{path}': Line offset {offset} exceeds file length")
    text, returned = _fit_page(lines)
    end = offset + returned
    return _text_result(text, offset, end, None, end if returned == limit or returned < len(lines) else None)


# -- writing


def write(path: str, content: str) -> Plan[WriteResult]:
    try:
        if BEFORE_0_7 and (yield from call("exists", path)):
            return WriteResult(error=f"Error: File already exists: {path!r}")
        yield from call("write_file", path, content.encode())
    except WarrenError as exc:
        return WriteResult(error=f"Failed to write file '{path}': {transfer_code(exc)}")
    return WriteResult(path=path)


def edit(path: str, old: str, new: str, replace_all: bool) -> Plan[EditResult]:
    if not old:
        return EditResult(error=_NO_OLD_STRING)
    try:
        entry: FileEntry = yield from call("stat", path)
        data: bytes = yield from call("read_file", path)
        changed, count, error = replace_text(data, old, new, replace_all)
        if error:
            return EditResult(error=_edit_error(error, path, old))
        # A script stays executable; a link's own mode says nothing about its target.
        mode = int(entry.mode, 8) & 0o777 if entry.kind == "file" else None
        yield from call("write_file", path, changed, mode=mode)
    except WarrenError as exc:
        return EditResult(error=_edit_error(read_code(exc), path, old))
    return EditResult(path=path, occurrences=count)


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


def _edit_error(code: str, path: str, old: str) -> str:
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


def delete(path: str) -> Plan[str | None]:
    """Returns the error, if there is one."""
    try:
        yield from call("remove", path, recursive=True)
    except WarrenError as exc:
        code = read_code(exc)
        return f"Error: '{path}' not found" if code == "file_not_found" else f"Error deleting file '{path}': {code}"
    return None


# -- transfers


def upload(files: Sequence[tuple[str, bytes]]) -> Plan[list[FileUploadResponse]]:
    responses = []
    for path, content in files:
        error: str | None = None if path.startswith("/") else "invalid_path"
        if error is None:
            try:
                yield from call("write_file", path, content)
            except WarrenError as exc:
                error = transfer_code(exc)
        responses.append(FileUploadResponse(path=path, error=error))
    return responses


def download(paths: Sequence[str]) -> Plan[list[FileDownloadResponse]]:
    responses = []
    for path in paths:
        content, error = None, None if path.startswith("/") else "invalid_path"
        if error is None:
            try:
                content = yield from call("read_file", path)
            except WarrenError as exc:
                error = transfer_code(exc)
        responses.append(FileDownloadResponse(path=path, content=content, error=error))
    return responses
