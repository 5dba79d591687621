"""The tools that work with files. The model reads their docstrings."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final

from mcp.types import CallToolResult
from pydantic import Field

from warren.integrations.mcp.calls import (
    MAX_CHARACTERS,
    Call,
    SandboxName,
    image_result,
    run_tool,
    text_result,
)
from warren.integrations.mcp.file_preview import MAX_IMAGE_BYTES, Window, image_type, is_text
from warren.integrations.mcp.sandboxes import Sandbox, Sandboxes
from warren.model.errors import FileProblem, InvalidRequest, IsDirectory, TooLarge
from warren.sdk.results import FileEntry, SearchSummary

_MAX_ENTRIES: Final = 1000
_MAX_EDITED_BYTES: Final = 10 * 1024 * 1024
_PROBED_BYTES: Final = 4096

_Path = Annotated[str, Field(description="Relative paths start in /workspace.", min_length=1)]


class FileTools:
    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    async def read_file(
        self,
        call: Call,
        path: _Path,
        start_line: Annotated[int, Field(description="First line to show; the file's first is 1.", ge=1)] = 1,
        lines: Annotated[int, Field(description="How many lines to show at most.", ge=1, le=20_000)] = 2000,
        sandbox: SandboxName = "",
    ) -> CallToolResult:
        """Read a file of the sandbox.

        A text comes as it is, at most 30,000 characters at a time; the answer says where to read on. A PNG, JPEG,
        GIF or WebP image comes as an image you can see. Of other binary files you learn the size.
        """

        async def work(box: Sandbox) -> CallToolResult:
            _check_kind(await box.client.stat(path))
            async with box.backend.download("read_file", box.session_id, path=path) as (size, parts):
                head = await anext(aiter(parts), b"")
                if mime_type := image_type(head):
                    return await _show_image(path, size, mime_type, head, parts)
                if not is_text(head[:_PROBED_BYTES]):
                    return text_result(
                        f"{path} is a binary file of {size} bytes; use bash to look into it (file, xxd …)."
                    )
                return await _show_text(head, parts, Window(start_line, lines, MAX_CHARACTERS))

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def write_file(
        self,
        call: Call,
        path: _Path,
        content: Annotated[str, Field(description="All of the file's new content.")],
        sandbox: SandboxName = "",
    ) -> CallToolResult:
        """Write a text file in the sandbox. An existing file is replaced; directories on the way are made."""

        async def work(box: Sandbox) -> CallToolResult:
            async with self._sandboxes.editing(box.thread_id):
                entry = await box.client.write_file(path, content)
            return text_result(f"Wrote {entry.size} bytes to {entry.path}.")

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def edit_file(
        self,
        call: Call,
        path: _Path,
        old: Annotated[str, Field(description="The exact text to replace, spaces and line ends included.")],
        new: Annotated[str, Field(description="What stands there afterwards.")],
        replace_all: Annotated[bool, Field(description="Every place, instead of the only one.")] = False,
        sandbox: SandboxName = "",
    ) -> CallToolResult:
        """Replace an exact text in a file of the sandbox.

        The text must occur exactly once, unless replace_all is true: give enough of what stands around it.
        """

        async def work(box: Sandbox) -> CallToolResult:
            async with self._sandboxes.editing(box.thread_id):
                text = await _read_editable(box, path)
                changed, places = replace_text(text, old, new, replace_all)
                await box.client.write_file(path, changed)
            return text_result(f"Replaced {places} {'place' if places == 1 else 'places'} in {path}.")

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def list_files(
        self,
        call: Call,
        path: Annotated[str, Field(description="A directory; relative paths start in /workspace.")] = "/workspace",
        depth: Annotated[int, Field(description="How many levels deep.", ge=1, le=16)] = 1,
        sandbox: SandboxName = "",
    ) -> CallToolResult:
        """List a directory of the sandbox: kind, size and path of each entry."""

        async def work(box: Sandbox) -> CallToolResult:
            entries = await box.client.list_files(path, depth=depth)
            if not entries:
                return text_result(f"{path} is empty.")
            rest = len(entries) - _MAX_ENTRIES
            note = f"[{rest} entries more; list a directory below, or use find in bash]" if rest > 0 else ""
            return text_result("\n".join(_describe_entry(entry) for entry in entries[:_MAX_ENTRIES]), note)

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def search_files(
        self,
        call: Call,
        pattern: Annotated[
            str, Field(description="Extended regular expression (grep -E) to find in lines; empty: only names.")
        ] = "",
        glob: Annotated[str, Field(description="Names such as *.py, or paths such as src/**/*.ts.")] = "",
        path: Annotated[str, Field(description="Where to search; relative paths start in /workspace.")] = "/workspace",
        ignore_case: Annotated[bool, Field(description="Upper and lower case are the same.")] = False,
        max_matches: Annotated[int, Field(description="How many to show at most.", ge=1, le=1000)] = 100,
        sandbox: SandboxName = "",
    ) -> CallToolResult:
        """Find files of the sandbox by name, or lines in them by a regular expression.

        Each match is a line `path:line: text`, or `path` alone if there is no pattern.
        """

        async def work(box: Sandbox) -> CallToolResult:
            summaries: list[SearchSummary] = []
            matches = box.client.search_files(
                pattern,
                glob=glob,
                path=path,
                ignore_case=ignore_case,
                max_matches=max_matches,
                on_summary=summaries.append,
            )
            lines = [
                f"{match.path}:{match.line}: {match.text}" if match.line else match.path async for match in matches
            ]
            limit = summaries[0].truncated_by if summaries else None
            note = f"[there may be more: the search ended early because of {limit}]" if limit else ""
            return text_result("\n".join(lines) or "Nothing was found.", note)

        return await run_tool(self._sandboxes, call, sandbox, work)


def replace_text(text: str, old: str, new: str, replace_all: bool) -> tuple[str, int]:
    """Returns the changed text and the number of places."""
    if not old:
        raise InvalidRequest("old is empty", remedy="give the text to replace; use write_file for new files")
    if old == new:
        raise InvalidRequest("old and new are the same", remedy="nothing was changed")
    places = text.count(old)
    if places == 0:
        raise InvalidRequest("the file does not contain that text", remedy="read the file again; spaces and case count")
    if places > 1 and not replace_all:
        raise InvalidRequest(
            f"the file contains that text {places} times", remedy="give more of what stands around it, or replace_all"
        )
    return text.replace(old, new), places


def _check_kind(entry: FileEntry) -> None:
    if entry.is_dir:
        raise IsDirectory(f"{entry.path} is a directory", remedy="use list_files to see what is in it")
    if entry.kind == "other":
        raise FileProblem(f"{entry.path} is a device, pipe or socket, not a file")


async def _read_editable(box: Sandbox, path: str) -> str:
    _check_kind(await box.client.stat(path))
    async with box.backend.download("read_file", box.session_id, path=path) as (size, parts):
        if size > _MAX_EDITED_BYTES:
            raise TooLarge(f"{path} has {size} bytes, too many to edit here", remedy="use sed or python in bash")
        data = b"".join([part async for part in parts])
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is not a UTF-8 text", remedy="use bash to change it") from None


async def _show_image(path: str, size: int, mime_type: str, head: bytes, parts: AsyncIterator[bytes]) -> CallToolResult:
    if size > MAX_IMAGE_BYTES:
        return text_result(
            f"{path} is an image ({mime_type}) of {size} bytes, too large to show; make it smaller with bash."
        )
    data = bytearray(head)
    async for part in parts:
        data += part
        if len(data) > MAX_IMAGE_BYTES:
            return text_result(f"{path} is an image that is being written; try again later.")
    return image_result(bytes(data), mime_type, f"{path}: {mime_type}, {len(data)} bytes")


async def _show_text(head: bytes, parts: AsyncIterator[bytes], window: Window) -> CallToolResult:
    wants_more = window.feed(head)
    while wants_more and (part := await anext(parts, b"")):
        wants_more = window.feed(part)
        await asyncio.sleep(0)
    return text_result(window.text, window.summary())


def _describe_entry(entry: FileEntry) -> str:
    kind = {"directory": "dir ", "file": "file", "symlink": "link"}.get(entry.kind, entry.kind)
    target = f" -> {entry.target}" if entry.target else ""
    return f"{kind} {entry.size:>10} {entry.path}{'/' if entry.is_dir else ''}{target}"
