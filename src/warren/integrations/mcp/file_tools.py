"""The tools that work with files. The model reads their docstrings.

`read_file` has no structured content: a client that shows its model nothing else would hide the images.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final, TypedDict

from warren.integrations.file_preview import MAX_IMAGE_BYTES, Window, image_type, is_text
from warren.integrations.mcp.calls import MAX_CHARACTERS, SandboxName, image_result, run_tool, text_result
from warren.integrations.mcp.sandboxes import Sandboxes, ToolSandbox
from warren.integrations.mcp.tools import CHANGES, READS, REPEATABLE, McpTool, ToolAnswer, ToolCall, about
from warren.model.errors import FileProblem, InvalidRequest, IsDirectory, TooLarge
from warren.sdk.results import FileEntry, FileMatch, SearchSummary

_MAX_ENTRIES: Final = 1000
_MAX_EDITED_BYTES: Final = 10 * 1024 * 1024
_PROBED_BYTES: Final = 4096

_Path = Annotated[str, about("Relative paths start in /workspace.", minLength=1)]


class Written(TypedDict):
    path: str
    bytes: int


class Edited(TypedDict):
    path: str
    places: Annotated[int, about("How often the text was replaced.")]


class Entry(TypedDict):
    path: str
    kind: Annotated[str, about("file, directory, symlink or other.")]
    size: int
    target: Annotated[str | None, about("Where a link points to.")]


class DirectoryListing(TypedDict):
    entries: list[Entry]
    left_out: Annotated[int, about("How many more there are.")]


class Match(TypedDict):
    path: str
    line: Annotated[int | None, about("The first line is 1; null if only names were searched.")]
    text: str | None


class Matches(TypedDict):
    matches: list[Match]
    truncated_by: Annotated[str | None, about("What ended the search early, if there may be more: a limit's name.")]


class FileTools:
    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def tools(self) -> Sequence[McpTool]:
        return (
            McpTool(self.read_file, "Read a file", READS),
            McpTool(self.write_file, "Write a file", REPEATABLE),
            McpTool(self.edit_file, "Edit a file", CHANGES),
            McpTool(self.list_files, "List files", READS),
            McpTool(self.search_files, "Search files", READS),
        )

    async def read_file(
        self,
        call: ToolCall,
        path: _Path,
        start_line: Annotated[int, about("First line to show; the file's first is 1.", minimum=1)] = 1,
        lines: Annotated[int, about("How many lines to show at most.", minimum=1, maximum=20_000)] = 2000,
        sandbox: SandboxName = "",
    ) -> ToolAnswer[None]:
        """Read a file of the sandbox.

        A text comes as it is, at most 30,000 characters at a time; the answer says where to read on. A PNG, JPEG,
        GIF or WebP image comes as an image you can see. Of other binary files you learn the size.
        """

        async def work(box: ToolSandbox) -> ToolAnswer[None]:
            _check_kind(await box.client.stat(path))
            async with box.backend.download("read_file", box.session_id, path=path) as (size, parts):
                head = await anext(aiter(parts), b"")
                if mime_type := image_type(head):
                    return await _show_image(path, size, mime_type, head, parts)
                if not is_text(head[:_PROBED_BYTES]):
                    return text_result(
                        f"{path} is a binary file of {size} bytes; use bash to look into it (file, xxd …).", data=None
                    )
                return await _show_text(head, parts, Window(start_line, lines, MAX_CHARACTERS))

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def write_file(
        self,
        call: ToolCall,
        path: _Path,
        content: Annotated[str, about("All of the file's new content.")],
        sandbox: SandboxName = "",
    ) -> ToolAnswer[Written]:
        """Write a text file in the sandbox. An existing file is replaced; directories on the way are made."""

        async def work(box: ToolSandbox) -> ToolAnswer[Written]:
            async with self._sandboxes.editing(box.thread_id):
                entry = await box.client.write_file(path, content)
            return text_result(
                f"Wrote {entry.size} bytes to {entry.path}.", data=Written(path=entry.path, bytes=entry.size)
            )

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def edit_file(
        self,
        call: ToolCall,
        path: _Path,
        old: Annotated[str, about("The exact text to replace, spaces and line ends included.")],
        new: Annotated[str, about("What stands there afterwards.")],
        replace_all: Annotated[bool, about("Every place, instead of the only one.")] = False,
        sandbox: SandboxName = "",
    ) -> ToolAnswer[Edited]:
        """Replace an exact text in a file of the sandbox.

        The text must occur exactly once, unless replace_all is true: give enough of what stands around it.
        """

        async def work(box: ToolSandbox) -> ToolAnswer[Edited]:
            async with self._sandboxes.editing(box.thread_id):
                text = await _read_editable(box, path)
                changed, places = replace_text(text, old, new, replace_all)
                await box.client.write_file(path, changed)
            text = f"Replaced {places} {'place' if places == 1 else 'places'} in {path}."
            return text_result(text, data=Edited(path=path, places=places))

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def list_files(
        self,
        call: ToolCall,
        path: Annotated[str, about("A directory; relative paths start in /workspace.")] = "/workspace",
        depth: Annotated[int, about("How many levels deep.", minimum=1, maximum=16)] = 1,
        sandbox: SandboxName = "",
    ) -> ToolAnswer[DirectoryListing]:
        """List a directory of the sandbox: kind, size and path of each entry."""

        async def work(box: ToolSandbox) -> ToolAnswer[DirectoryListing]:
            entries = await box.client.list_files(path, depth=depth)
            shown, rest = entries[:_MAX_ENTRIES], max(0, len(entries) - _MAX_ENTRIES)
            note = f"[{rest} entries more; list a directory below, or use find in bash]" if rest else ""
            listed = [Entry(path=each.path, kind=each.kind, size=each.size, target=each.target) for each in shown]
            text = "\n".join(_describe_entry(entry) for entry in shown) or f"{path} is empty."
            return text_result(text, note, data=DirectoryListing(entries=listed, left_out=rest))

        return await run_tool(self._sandboxes, call, sandbox, work)

    async def search_files(
        self,
        call: ToolCall,
        pattern: Annotated[
            str, about("Extended regular expression (grep -E) to find in lines; empty: only names.")
        ] = "",
        glob: Annotated[str, about("Names such as *.py, or paths such as src/**/*.ts.")] = "",
        path: Annotated[str, about("Where to search; relative paths start in /workspace.")] = "/workspace",
        ignore_case: Annotated[bool, about("Upper and lower case are the same.")] = False,
        max_matches: Annotated[int, about("How many to show at most.", minimum=1, maximum=1000)] = 100,
        sandbox: SandboxName = "",
    ) -> ToolAnswer[Matches]:
        """Find files of the sandbox by name, or lines in them by a regular expression.

        Each match is a line `path:line: text`, or `path` alone if there is no pattern.
        """

        async def work(box: ToolSandbox) -> ToolAnswer[Matches]:
            summaries: list[SearchSummary] = []
            found = box.client.search_files(
                pattern,
                glob=glob,
                path=path,
                ignore_case=ignore_case,
                max_matches=max_matches,
                on_summary=summaries.append,
            )
            matches = [_read_match(each) async for each in found]
            limit = summaries[0].truncated_by if summaries else None
            note = f"[there may be more: the search ended early because of {limit}]" if limit else ""
            text = "\n".join(map(_describe_match, matches)) or "Nothing was found."
            return text_result(text, note, data=Matches(matches=matches, truncated_by=limit))

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


async def _read_editable(box: ToolSandbox, path: str) -> str:
    _check_kind(await box.client.stat(path))
    async with box.backend.download("read_file", box.session_id, path=path) as (size, parts):
        if size > _MAX_EDITED_BYTES:
            raise TooLarge(f"{path} has {size} bytes, too many to edit here", remedy="use sed or python in bash")
        data = b"".join([part async for part in parts])
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is not a UTF-8 text", remedy="use bash to change it") from None


async def _show_image(
    path: str, size: int, mime_type: str, head: bytes, parts: AsyncIterator[bytes]
) -> ToolAnswer[None]:
    if size > MAX_IMAGE_BYTES:
        return text_result(
            f"{path} is an image ({mime_type}) of {size} bytes, too large to show; make it smaller with bash.",
            data=None,
        )
    data = bytearray(head)
    async for part in parts:
        data += part
        if len(data) > MAX_IMAGE_BYTES:
            return text_result(f"{path} is an image that is being written; try again later.", data=None)
    return image_result(bytes(data), mime_type, f"{path}: {mime_type}, {len(data)} bytes")


async def _show_text(head: bytes, parts: AsyncIterator[bytes], window: Window) -> ToolAnswer[None]:
    wants_more = window.feed(head)
    while wants_more and (part := await anext(parts, b"")):
        wants_more = window.feed(part)
        await asyncio.sleep(0)
    return text_result(window.text, window.summary(), data=None)


def _describe_entry(entry: FileEntry) -> str:
    kind = {"directory": "dir ", "file": "file", "symlink": "link"}.get(entry.kind, entry.kind)
    target = f" -> {entry.target}" if entry.target else ""
    return f"{kind} {entry.size:>10} {entry.path}{'/' if entry.is_dir else ''}{target}"


def _describe_match(match: Match) -> str:
    return f"{match['path']}:{match['line']}: {match['text']}" if match["line"] else match["path"]


def _read_match(found: FileMatch) -> Match:
    return Match(path=found.path, line=found.line or None, text=found.text if found.line else None)
