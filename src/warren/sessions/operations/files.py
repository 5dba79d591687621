"""Files of a sandbox, of any size: read and written inside it, with the rights of its user, as streams."""

import contextlib
import posixpath
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, PlainValidator

from warren.interfaces.sandbox import Sandbox
from warren.kernel.answer_memory import SHORT_BYTES, make_room
from warren.model.errors import FileExists, FileNotFound, InvalidPath, IsDirectory, NotADirectory
from warren.model.operations import Change, FileInfo, FileKind, Search, SearchMatch, SearchTotals, check_path
from warren.model.spec import WORKSPACE
from warren.sessions.long_values import LongList
from warren.sessions.operations.call import BytesHead, Call, Handler, Values
from warren.sessions.output_events import Events, OutputEvent, close_source, with_keepalives
from warren.sessions.schemas import Body, FileList, FileView, file_view

_MAX_MATCH_BYTES: Final = 4 * 1024 * 1024
_MATCH_OVERHEAD: Final = 100  # bytes of a match as JSON, beside its path and text
_MAX_SHORT_BYTES: Final = 256 * 1024  # longer answers are written piece by piece
_ENTRY_BYTES: Final = 200  # of an entry as JSON, beside its path and target
_MAX_LINKS: Final = 40  # as many as the kernel follows
TAR: Final = "application/x-tar"
BINARY: Final = "application/octet-stream"
BYTES: Final[dict[str, Any]] = {BINARY: {"schema": {"type": "string", "format": "binary"}}}
TAR_BYTES: Final[dict[str, Any]] = {TAR: {"schema": {"type": "string", "format": "binary"}}}


def _check_string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be a string")
    return value


PATHS: Final = frozenset({"path", "filename", "glob"})
"""Query parameters that name files. File names need not be UTF-8."""


# Bytes that are not UTF-8 become lone surrogates, which pydantic's own `str` refuses.
AnyText = Annotated[str, PlainValidator(_check_string, json_schema_input_type=str)]
SandboxPath = Annotated[AnyText, Field(description="Relative paths start in /workspace", examples=["notes.txt"])]
User = Annotated[str, Field(description="User inside the sandbox whose rights are used; by default sandboxuser")]


class PathBody(Body):
    path: str = Field(description="Relative paths start in /workspace", examples=["src/data"])
    mode: int = Field(0o755, ge=0, le=0o7777, description="As a number: 493 is 0755")
    exist_ok: bool = Field(False, description="A directory that is there already is no error, and stays as it is")
    user: str = Field("", description="User inside the sandbox; by default the image's USER, else sandboxuser")


class MoveBody(Body):
    source: str = Field(description="Relative paths start in /workspace", examples=["draft.txt"])
    target: str = Field(description="Its new path, not the directory it goes to", examples=["final.txt"])
    user: str = Field("", description="User inside the sandbox; by default the image's USER, else sandboxuser")


class ArchiveView(BaseModel):
    path: str
    members: int = Field(description="Files, directories and links that were written")


class PathQuery(BaseModel):
    path: SandboxPath
    user: User = ""


class TreeQuery(BaseModel):
    path: SandboxPath = WORKSPACE
    user: User = ""


class ListQuery(BaseModel):
    path: SandboxPath = WORKSPACE
    depth: Annotated[int, Field(ge=1, le=100, description="More than 1: also what its directories hold")] = 1
    user: User = ""


class WriteQuery(BaseModel):
    path: SandboxPath
    mode: Annotated[str, Field(description="Octal, such as 0755", pattern="^[0-7]{3,4}$")] = ""
    user: User = ""


class RemoveQuery(BaseModel):
    path: SandboxPath
    recursive: Annotated[bool, Field(description="A directory with everything in it")] = False
    user: User = ""


class WatchQuery(BaseModel):
    path: SandboxPath = WORKSPACE
    recursive: Annotated[bool, Field(description="Also in the directories below")] = False
    user: User = ""


class SearchQuery(BaseModel):
    path: SandboxPath = WORKSPACE
    glob: Annotated[
        AnyText, Field(description="Of names: `*.py`, or of paths: `src/**/*.{js,ts}`", examples=["*.txt"])
    ] = ""
    pattern: Annotated[
        str, Field(description="POSIX extended regular expression, matched with each line", examples=["TODO"])
    ] = ""
    ignore_case: Annotated[bool, Field(description="In the glob and the pattern")] = False
    hidden: Annotated[bool, Field(description="Also names that begin with a dot")] = False
    max_matches: Annotated[int, Field(ge=1, le=100_000, description="So many at most")] = 1000
    max_file_bytes: Annotated[int, Field(ge=1, le=1 << 40, description="Contents of larger files are not searched")] = (
        10 * 1024 * 1024
    )
    timeout_s: Annotated[float, Field(ge=0.001, le=600, description="The search ends after so long")] = 30.0
    user: User = ""


class MatchView(BaseModel):
    path: str
    kind: str = Field(description="file, directory, symlink or other")
    line: int = Field(description="From 1; 0 if the name matched and there was no pattern")
    column: int = Field(description="From 1, in bytes: where the first match in the line begins")
    text: str = Field(description="The line, or a part of it around the match")
    text_truncated: bool


class SummaryView(BaseModel):
    """What was found, and everything that was left out."""

    matches: int
    files_searched: int
    binary: int = Field(description="Files that were not searched because they are not text")
    too_large: int = Field(description="Files that were not searched because of max_file_bytes")
    unreadable: int = Field(description="Files and directories that could not be read")
    hidden: int = Field(description="Names that were passed over because they begin with a dot")
    long_lines: int = Field(description="Lines of which only the beginning was searched")
    truncated_by: str | None = Field(description="What ended it early: max_matches, time or answer_bytes")


class FoundView(BaseModel):
    matches: list[MatchView]
    summary: SummaryView


class PathView(BaseModel):
    path: str


async def list_files(call: Call, query: ListQuery) -> Values:
    """Links in it are shown as links, not followed."""
    entries = call.sandbox.entries(query.path, depth=query.depth, user=query.user)
    return {"path": check_path(query.path), "files": await show_files(call, entries)}


async def show_files(
    call: Call, entries: AsyncIterator[FileInfo], show: Callable[[FileInfo], Values] = file_view
) -> list[Values] | LongList:
    """Returns a short list whole. Of a long one only the beginning is read here, which raises what is wrong with the
    path."""
    begun, size = list[Values](), 0
    async for info in entries:
        begun.append(show(info))
        size += len(info.path) + len(info.target) + _ENTRY_BYTES
        if size > _MAX_SHORT_BYTES:
            return LongList(_show_long(call, begun, entries, show))
    return begun


async def _show_long(
    call: Call, begun: list[Values], entries: AsyncIterator[FileInfo], show: Callable[[FileInfo], Values]
) -> AsyncGenerator[Values, None]:
    """Yields a long list. The session is in use for as long as the list takes."""
    try:
        async with call.sessions.using(call.tenant, call.session_id):
            for values in begun:
                yield values
            begun.clear()
            async for info in entries:
                yield show(info)
    finally:
        await close_source(entries)


async def stat_file(call: Call, query: PathQuery) -> Values:
    """A link is shown as a link, with its target."""
    return file_view(await call.sandbox.stat(query.path, user=query.user))


async def resolve_path(call: Call, query: PathQuery) -> Values:
    """Follows every link, as `realpath` does. The file must exist."""
    left, found, links = posixpath.join(WORKSPACE, check_path(query.path)).split("/")[::-1], "/", 0
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            found = posixpath.dirname(found)
            continue
        info = await call.sandbox.stat(posixpath.join(found, name), user=query.user)
        if info.kind is not FileKind.SYMLINK:
            if left and info.kind is not FileKind.DIRECTORY:
                raise NotADirectory(f"{info.path!r} is not a directory")
            found = posixpath.join(found, name)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise InvalidPath(f"{query.path!r} leads through more than {_MAX_LINKS} links")
        if info.target.startswith("/"):
            found = "/"
        left += info.target.split("/")[::-1]
    return {"path": found}


async def read_file(call: Call, query: PathQuery) -> AsyncGenerator[BytesHead | bytes, None]:
    """The bytes, as they are read; `X-File-Size` says how many there were when it began."""
    info = await check_readable(call.sandbox, query.path, query.user)
    # The file may grow meanwhile; a range still ends where its head said.
    start, end = (0, None) if call.byte_range is None else call.byte_range.within(info.size)
    yield BytesHead(info.size, start, end)
    length = None if end is None else end - start
    source = call.sandbox.read(query.path, offset=start, length=length, user=query.user)
    try:
        async for part in source:
            yield part
    finally:
        await close_source(source)


async def check_readable(sandbox: Sandbox, path: str, user: str) -> FileInfo:
    """Raises what is wrong with the file before the answer begins; returns the file that `path` leads to."""
    info = await sandbox.stat(path, user=user)
    if info.kind is FileKind.DIRECTORY:
        raise IsDirectory(
            f"{path!r} is a directory", remedy="take all of it: GET …/files/archive, or download_dir of the SDK"
        )
    source = sandbox.read(path, length=1, user=user)
    try:
        await anext(aiter(source), None)
    finally:
        await close_source(source)
    return await _follow_links(sandbox, info, user)


async def _follow_links(sandbox: Sandbox, info: FileInfo, user: str) -> FileInfo:
    with contextlib.suppress(FileNotFound):  # the kernel has links that can be read and lead nowhere
        for _ in range(_MAX_LINKS):
            if info.kind is not FileKind.SYMLINK:
                break
            info = await sandbox.stat(posixpath.join(posixpath.dirname(info.path), info.target), user=user)
    return info


async def write_file(call: Call, query: WriteQuery, data: bytes | AsyncIterable[bytes]) -> Values:
    """The body becomes the file, all of it or nothing: a reader sees the old file or the new one.

    Directories on the way are made.
    """
    mode = int(query.mode, 8) if query.mode else None
    return file_view(await call.sandbox.write(query.path, data, mode=mode, user=query.user))


async def make_directory(call: Call, body: PathBody) -> Values:
    """Directories on the way are made too."""
    try:
        await call.sandbox.mkdir(body.path, mode=body.mode, user=body.user)
    except FileExists:
        if not body.exist_ok:
            raise
        info = await _follow_links(call.sandbox, await call.sandbox.stat(body.path, user=body.user), body.user)
        if info.kind is not FileKind.DIRECTORY:
            raise
    return file_view(await call.sandbox.stat(body.path, user=body.user))


async def move_file(call: Call, body: MoveBody) -> Values:
    """A file that is at the target is replaced; a directory only if it is empty."""
    await call.sandbox.rename(body.source, body.target, user=body.user)
    return file_view(await call.sandbox.stat(body.target, user=body.user))


async def remove_file(call: Call, query: RemoveQuery) -> None:
    await call.sandbox.remove(query.path, recursive=query.recursive, user=query.user)


async def read_archive(call: Call, query: TreeQuery) -> AsyncGenerator[BytesHead | bytes, None]:
    """Names in it are relative to the directory."""
    source = call.sandbox.pack(query.path, user=query.user)
    try:
        first = await anext(source, b"")  # raises what is wrong with the path before the answer begins
        yield BytesHead()
        yield first
        async for part in source:
            yield part
    finally:
        await close_source(source)


async def write_archive(call: Call, query: TreeQuery, data: bytes | AsyncIterable[bytes]) -> Values:
    """Refuses paths and links that lead out of the directory, and devices."""
    count = await call.sandbox.unpack(query.path, data, user=query.user)
    return {"path": check_path(query.path), "members": count}


async def watch_files(call: Call, query: WatchQuery) -> Events:
    """Server-sent events: `watching`, then one `change` for each. Watching does not keep the session alive."""
    changes = call.sandbox.watch(query.path, recursive=query.recursive, user=query.user)
    async for change in with_keepalives(changes, call.context.keepalive_s):
        if change is None:
            yield None
        elif change.change is Change.WATCHING:
            yield OutputEvent("watching", {"path": change.path})
        else:
            values = {"change": change.change, "path": change.path, "directory": change.directory}
            yield OutputEvent("change", values)


async def search_files(call: Call, query: SearchQuery) -> Values:
    """Matches in the order of paths and lines, and a summary that says what was left out.

    As a stream (`Accept: text/event-stream`): an event `match` for each as it is found, then `summary`. Links are not
    followed. An answer that is not a stream holds 4 MiB of matches at most, and fewer while many long answers wait to
    be read: `truncated_by` says so.
    """
    matches: list[Values] = []
    size, has_room = 0, None
    async with contextlib.aclosing(stream_search(call, query)) as events:
        async for event in events:
            if event is None:
                continue
            if event.kind == "summary":
                return _show_matches(matches, size, event.values)
            size += len(event.values["path"]) + len(event.values["text"]) + _MATCH_OVERHEAD
            if size > SHORT_BYTES and has_room is None:
                has_room = await make_room(_MAX_MATCH_BYTES)
            if size > _MAX_MATCH_BYTES or has_room is False:
                break
            matches.append(event.values)
    summary = asdict(SearchTotals(len(matches)))
    return _show_matches(matches, size, {**summary, "truncated_by": "answer_bytes"})


def _show_matches(matches: list[Values], size: int, summary: Values) -> Values:
    return {"matches": matches if size <= _MAX_SHORT_BYTES else LongList(matches), "summary": summary}


async def stream_search(call: Call, query: SearchQuery) -> Events:
    found = call.sandbox.search(Search(**query.model_dump()))
    async for item in with_keepalives(found, call.context.keepalive_s):
        if item is None:
            yield None
        else:
            yield OutputEvent("match" if isinstance(item, SearchMatch) else "summary", asdict(item))


LIST_FILES: Final = Handler("list_files", list_files, query=ListQuery, result=FileList)
WRITE_FILE: Final = Handler("write_file", write_file, query=WriteQuery, result=FileView, body_schema=BYTES)
REMOVE_FILE: Final = Handler("remove_file", remove_file, query=RemoveQuery)
READ_FILE: Final = Handler(
    "read_file",
    stream=read_file,
    query=PathQuery,
    headers=("range",),
    other_results={
        200: {"description": "The file", "content": BYTES},
        206: {"description": "The part asked for", "content": BYTES},
    },
)
HANDLERS = (
    LIST_FILES,
    Handler("stat_file", stat_file, query=PathQuery, result=FileView),
    Handler("resolve_path", resolve_path, query=PathQuery, result=PathView),
    READ_FILE,
    WRITE_FILE,
    Handler("make_directory", make_directory, body=PathBody, result=FileView),
    Handler("move_file", move_file, body=MoveBody, result=FileView),
    REMOVE_FILE,
    Handler(
        "read_archive",
        stream=read_archive,
        query=TreeQuery,
        media_type=TAR,
        other_results={200: {"description": "The tar", "content": TAR_BYTES}},
    ),
    Handler("write_archive", write_archive, query=TreeQuery, result=ArchiveView, body_schema=TAR_BYTES),
    Handler(
        "search_files",
        search_files,
        stream_search,
        query=SearchQuery,
        result=FoundView,
        other_results={200: {"content": {"text/event-stream": {}}}},
        headers=("accept",),
    ),
    Handler(
        "watch_files",
        stream=watch_files,
        query=WatchQuery,
        other_results={200: {"description": "Events", "content": {"text/event-stream": {}}}},
    ),
)
