"""The tools that work with files. Their docstrings are what the model reads."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final

from mcp.types import CallToolResult
from pydantic import Field

from warren.integrations.mcp.answers import MAX_CHARACTERS, shown, told
from warren.integrations.mcp.calls import Call, SandboxName, answer
from warren.integrations.mcp.reading import MAX_IMAGE_BYTES, Window, image_type, is_text
from warren.integrations.mcp.sandboxes import Sandbox, Sandboxes
from warren.model.errors import FileProblem, InvalidRequest, IsDirectory, TooLarge
from warren.sdk.results import FileEntry

_MAX_ENTRIES: Final = 1000
_MAX_EDITED_BYTES: Final = 10 * 1024 * 1024
_SNIFFED: Final = 4096

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
                    return await _image(path, size, mime_type, head, parts)
                if not is_text(head[:_SNIFFED]):
                    return told(f"{path} is a binary file of {size} bytes; use bash to look into it (file, xxd …).")
                return await _text(head, parts, Window(start_line, lines, MAX_CHARACTERS))

        return await answer(self._sandboxes, call, sandbox, work)

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
            return told(f"Wrote {entry.size} bytes to {entry.path}.")

        return await answer(self._sandboxes, call, sandbox, work)

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
                text = await _editable(box, path)
                changed, places = replaced(text, old, new, replace_all)
                await box.client.write_file(path, changed)
            return told(f"Replaced {places} {'place' if places == 1 else 'places'} in {path}.")

        return await answer(self._sandboxes, call, sandbox, work)

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
                return told(f"{path} is empty.")
            rest = len(entries) - _MAX_ENTRIES
            note = f"[{rest} entries more; list a directory below, or use find in bash]" if rest > 0 else ""
            return told("\n".join(_line(entry) for entry in entries[:_MAX_ENTRIES]), note)

        return await answer(self._sandboxes, call, sandbox, work)


def replaced(text: str, old: str, new: str, replace_all: bool) -> tuple[str, int]:
    """The changed text and how many places that were."""
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


async def _editable(box: Sandbox, path: str) -> str:
    _check_kind(await box.client.stat(path))
    async with box.backend.download("read_file", box.session_id, path=path) as (size, parts):
        if size > _MAX_EDITED_BYTES:
            raise TooLarge(f"{path} has {size} bytes, too many to edit here", remedy="use sed or python in bash")
        data = b"".join([part async for part in parts])
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is not a UTF-8 text", remedy="use bash to change it") from None


async def _image(path: str, size: int, mime_type: str, head: bytes, parts: AsyncIterator[bytes]) -> CallToolResult:
    if size > MAX_IMAGE_BYTES:
        return told(f"{path} is an image ({mime_type}) of {size} bytes, too large to show; make it smaller with bash.")
    data = bytearray(head)
    async for part in parts:
        data += part
        if len(data) > MAX_IMAGE_BYTES:
            return told(f"{path} is an image that is being written; try again later.")
    return shown(bytes(data), mime_type, f"{path}: {mime_type}, {len(data)} bytes")


async def _text(head: bytes, parts: AsyncIterator[bytes], window: Window) -> CallToolResult:
    wanted = window.feed(head)
    while wanted and (part := await anext(parts, b"")):
        wanted = window.feed(part)
        await asyncio.sleep(0)
    return told(window.text, window.summary())


def _line(entry: FileEntry) -> str:
    kind = {"directory": "dir ", "file": "file", "symlink": "link"}.get(entry.kind, entry.kind)
    target = f" -> {entry.target}" if entry.target else ""
    return f"{kind} {entry.size:>10} {entry.path}{'/' if entry.is_dir else ''}{target}"
