"""Files: done inside the sandbox with the rights of its user, streamed, of any size."""

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, PlainValidator

from warren.model.operations import Change, check_path
from warren.model.spec import WORKSPACE
from warren.sessions.file_reading import file_to_read
from warren.sessions.operations.call import BytesHead, Call, Handler, Values
from warren.sessions.output_events import Event, Events, close_source, with_keepalives
from warren.sessions.schemas import ArchiveView, FileList, FileView, MoveBody, PathBody, file_view

TAR: Final = "application/x-tar"
BINARY: Final = "application/octet-stream"
BYTES: Final[dict[str, Any]] = {BINARY: {"schema": {"type": "string", "format": "binary"}}}
TAR_BYTES: Final[dict[str, Any]] = {TAR: {"schema": {"type": "string", "format": "binary"}}}


def _as_sent(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be a string")
    return value


PATHS: Final = frozenset({"path", "filename"})
"""Query parameters that name files, and so need not be UTF-8."""


# Names of files need not be UTF-8: their other bytes are lone surrogates, which pydantic's own `str` refuses.
AnyText = Annotated[str, PlainValidator(_as_sent, json_schema_input_type=str)]
SandboxPath = Annotated[AnyText, Field(description="Relative paths start in /workspace", examples=["notes.txt"])]
User = Annotated[str, Field(description="User inside the sandbox whose rights are used; by default sandboxuser")]


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


async def list_files(call: Call, query: ListQuery) -> Values:
    """Links in it are shown as links, not followed."""
    found = await call.sandbox.list(query.path, depth=query.depth, user=query.user)
    return {"path": check_path(query.path), "files": [file_view(info) for info in found]}


async def stat_file(call: Call, query: PathQuery) -> Values:
    """A link is shown as a link, with its target."""
    return file_view(await call.sandbox.stat(query.path, user=query.user))


async def read_file(call: Call, query: PathQuery) -> AsyncGenerator[BytesHead | bytes, None]:
    """The bytes, as they are read; `X-File-Size` says how many there were when it began."""
    info = await file_to_read(call.sandbox, query.path, query.user)
    # Of a range no more than its head has said, though the file may have grown meanwhile.
    start, end = (0, None) if call.byte_range is None else call.byte_range.within(info.size)
    yield BytesHead(info.size, start, end)
    length = None if end is None else end - start
    source = call.sandbox.read(query.path, offset=start, length=length, user=query.user)
    try:
        async for part in source:
            yield part
    finally:
        await close_source(source)


async def write_file(call: Call, query: WriteQuery, data: bytes | AsyncIterable[bytes]) -> Values:
    """The body becomes the file, all of it or nothing: a reader sees the old file or the new one.

    Directories on the way are made.
    """
    mode = int(query.mode, 8) if query.mode else None
    return file_view(await call.sandbox.write(query.path, data, mode=mode, user=query.user))


async def make_directory(call: Call, body: PathBody) -> Values:
    """Directories on the way are made too."""
    await call.sandbox.mkdir(body.path, mode=body.mode, user=body.user)
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
        first = await anext(source, b"")  # what is wrong with the path is told before the answer begins
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
            yield Event("watching", {"path": change.path})
        else:
            values = {"change": change.change, "path": change.path, "directory": change.directory}
            yield Event("change", values)


LIST_FILES: Final = Handler("list_files", list_files, query=ListQuery, result=FileList)
WRITE_FILE: Final = Handler("write_file", write_file, query=WriteQuery, result=FileView, body_schema=BYTES)
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
    READ_FILE,
    WRITE_FILE,
    Handler("make_directory", make_directory, body=PathBody, result=FileView),
    Handler("move_file", move_file, body=MoveBody, result=FileView),
    Handler("remove_file", remove_file, query=RemoveQuery),
    Handler(
        "read_archive",
        stream=read_archive,
        query=TreeQuery,
        media_type=TAR,
        other_results={200: {"description": "The tar", "content": TAR_BYTES}},
    ),
    Handler("write_archive", write_archive, query=TreeQuery, result=ArchiveView, body_schema=TAR_BYTES),
    Handler(
        "watch_files",
        stream=watch_files,
        query=WatchQuery,
        other_results={200: {"description": "Events", "content": {"text/event-stream": {}}}},
    ),
)
