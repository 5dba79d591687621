"""deepagents' file operations through the file API: no program runs in the sandbox, so any image works.

The result of each operation describes an error of the sandbox; none is raised.
"""

import shlex
import time
from collections.abc import Sequence
from typing import Final

from deepagents.backends.protocol import (
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)

from warren.integrations.deepagents_results import (
    BEFORE_0_7,
    BINARY_BYTES,
    GLOB_S,
    GREP_S,
    MAX_MATCHES,
    NO_OLD_STRING,
    PAGE_BYTES,
    WHOLE_BYTES,
    ListedTree,
    edit_error,
    is_binary_name,
    literal,
    matches_of,
    page_of,
    read_code,
    read_page_of_long,
    replace_text,
    search_code,
    transfer_code,
)
from warren.integrations.globs import Pattern, PatternRefused
from warren.model.errors import WarrenError
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.results import SearchSummary

_DEPTH: Final = 4  # levels per request: few requests, and none that lists a whole system
_LARGEST_FILE_BYTES: Final = 1024 * 1024 * 1024


async def ls(client: AsyncSandboxClient, path: str) -> LsResult:
    try:
        found = await client.list_files(path)
    except WarrenError as exc:
        return LsResult(entries=None, error=f"Path '{path}': {search_code(exc)}")
    parent = path.rstrip("/")
    return LsResult(entries=[{"path": f"{parent}/{each.name}", "is_dir": each.is_dir} for each in found])


async def read(client: AsyncSandboxClient, path: str, offset: int, limit: int) -> ReadResult:
    offset, limit = max(0, int(offset)), max(0, int(limit))
    try:
        entry = await client.stat(path)
        if is_binary_name(path) and entry.size > BINARY_BYTES:
            return ReadResult(error=f"File '{path}': Binary file exceeds maximum preview size of {BINARY_BYTES} bytes")
        if entry.size > WHOLE_BYTES:
            line = f"tail -n +{offset + 1} -- {shlex.quote(path)} | head -n {limit} | head -c {2 * PAGE_BYTES}"
            result = await client.execute(line, 60.0, carry_state=False)
            return read_page_of_long(path, result.stdout, offset, limit)
        data = await client.read_file(path)
    except WarrenError as exc:
        return ReadResult(error=f"File '{path}': {read_code(exc)}")
    return page_of(path, data, offset, limit)


async def write(client: AsyncSandboxClient, path: str, content: str) -> WriteResult:
    try:
        if BEFORE_0_7 and await client.exists(path):
            return WriteResult(error=f"Error: File already exists: {path!r}")
        await client.write_file(path, content.encode())
    except WarrenError as exc:
        return WriteResult(error=f"Failed to write file '{path}': {transfer_code(exc)}")
    return WriteResult(path=path)


async def edit(client: AsyncSandboxClient, path: str, old: str, new: str, replace_all: bool) -> EditResult:
    if not old:
        return EditResult(error=NO_OLD_STRING)
    try:
        entry = await client.stat(path)
        data = await client.read_file(path)
        changed, count, error = replace_text(data, old, new, replace_all)
        if error:
            return EditResult(error=edit_error(error, path, old))
        # A script stays executable; a link's own mode says nothing about its target.
        mode = int(entry.mode, 8) & 0o777 if entry.kind == "file" else None
        await client.write_file(path, changed, mode=mode)
    except WarrenError as exc:
        return EditResult(error=edit_error(read_code(exc), path, old))
    return EditResult(path=path, occurrences=count)


async def delete(client: AsyncSandboxClient, path: str) -> str | None:
    """Returns the error, if there is one."""
    try:
        await client.remove(path, recursive=True)
    except WarrenError as exc:
        code = read_code(exc)
        return f"Error: '{path}' not found" if code == "file_not_found" else f"Error deleting file '{path}': {code}"
    return None


async def upload(client: AsyncSandboxClient, files: Sequence[tuple[str, bytes]]) -> list[FileUploadResponse]:
    responses = []
    for path, content in files:
        error: str | None = None if path.startswith("/") else "invalid_path"
        if error is None:
            try:
                await client.write_file(path, content)
            except WarrenError as exc:
                error = transfer_code(exc)
        responses.append(FileUploadResponse(path=path, error=error))
    return responses


async def download(client: AsyncSandboxClient, paths: Sequence[str]) -> list[FileDownloadResponse]:
    responses = []
    for path in paths:
        content, error = None, None if path.startswith("/") else "invalid_path"
        if error is None:
            try:
                content = await client.read_file(path)
            except WarrenError as exc:
                error = transfer_code(exc)
        responses.append(FileDownloadResponse(path=path, content=content, error=error))
    return responses


async def glob(client: AsyncSandboxClient, pattern: str, path: str | None) -> GlobResult:
    """Walks the tree itself: deepagents counts a link to a file of the tree as a file, and the API's search does not
    say where links lead."""
    root = path or "/"
    root = root if root.startswith("/") else f"/{root}"
    tree = ListedTree(root)
    try:
        compiled = Pattern(pattern, shell_like=BEFORE_0_7)
        await _walk(client, tree)
    except PatternRefused as exc:
        return GlobResult(matches=None, error=f"Path '{root}': {exc}")
    except WarrenError as exc:
        return GlobResult(matches=None, error=f"Path '{root}': {search_code(exc)}")
    return tree.find(compiled)


async def _walk(client: AsyncSandboxClient, tree: ListedTree) -> None:
    """Fills the tree, for at most GLOB_S. Raises only if the root itself cannot be listed."""
    root = tree.root or "/"
    ends_at, waiting = time.monotonic() + GLOB_S, [root]
    while waiting:
        if time.monotonic() > ends_at:
            tree.reason = tree.reason or "budget"
            return
        directory = waiting.pop(0)
        depth = 1 if directory == "/" else _DEPTH
        try:
            found = await client.list_files(directory, depth=depth)
        except WarrenError as exc:
            if directory == root:
                raise
            tree.reason = "unreadable" if search_code(exc) == "permission_denied" else tree.reason
            continue
        waiting += tree.add(directory, depth, found)


async def grep(
    client: AsyncSandboxClient,
    pattern: str,
    path: str | None,
    include: str | None,
    max_count: int | None,
    skip: Sequence[str],
) -> GrepResult:
    root = path or "/workspace"
    summaries: list[SearchSummary] = []
    try:
        Pattern(include or "")  # raises before anything is searched
        matches = client.search_files(
            literal(pattern),
            glob=include or "",
            path=root,
            hidden=True,
            max_matches=MAX_MATCHES,
            max_file_bytes=_LARGEST_FILE_BYTES,
            timeout=GREP_S,
            on_summary=summaries.append,
        )
        found = [each async for each in matches]
    except PatternRefused as exc:
        return GrepResult(error=f"Path '{root}': {exc}")
    except WarrenError as exc:
        return GrepResult(error=f"Path '{root}': {search_code(exc)}")
    return matches_of(found, summaries[0], root, include or "", max_count, skip)
