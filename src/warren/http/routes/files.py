"""/api/sessions/{id}/files: done inside the sandbox with the rights of its user, streamed, any size."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, NamedTuple

import anyio
from fastapi import Header, Query
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from warren.http.context import Context, Ctx, FileUser, SessionId, answer, new_router, query
from warren.http.event_streams import EVENT_STREAM, event, stream_events, with_signs_of_life
from warren.http.problems import problem
from warren.http.schemas import ArchiveView, FileList, FileView, MoveBody, PathBody, file_view
from warren.http.server.http_guard import StreamedAnswer
from warren.model.errors import InvalidRequest, RangeNotSatisfiable
from warren.model.operations import Change, FileInfo, check_path
from warren.model.spec import WORKSPACE
from warren.sessions.file_reading import file_to_read

router = new_router(prefix="/api/sessions/{session_id}/files", tags=["files"])

BINARY = "application/octet-stream"
TAR = "application/x-tar"
BYTES: dict[str, Any] = {BINARY: {"schema": {"type": "string", "format": "binary"}}}
Path = Annotated[str, Query(description="Relative paths start in /workspace", examples=["notes.txt"])]
User = Annotated[str, Query(description="User inside the sandbox whose rights are used; by default sandboxuser")]

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


@router.get("", response_model=FileList, summary="List a directory")
async def list_files(
    session_id: SessionId,
    request: Request,
    context: Ctx,
    tenant: FileUser,
    path: Path = WORKSPACE,
    depth: Annotated[int, Query(ge=1, le=100, description="More than 1: also what its directories hold")] = 1,
    user: User = "",
) -> Response:
    """Links in it are shown as links, not followed."""
    path = query(request, "path", WORKSPACE)
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        found = await sandbox.list(path, depth=depth, user=user)
        return answer({"path": check_path(path), "files": [file_view(info) for info in found]})


@router.get("/stat", response_model=FileView, summary="Show a file or directory")
async def stat_file(
    session_id: SessionId, request: Request, context: Ctx, tenant: FileUser, path: Path, user: User = ""
) -> Response:
    """A link is shown as a link, with its target."""
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        return answer(file_view(await sandbox.stat(query(request, "path"), user=user)))


@router.get(
    "/content",
    response_class=Response,
    summary="Read a file",
    responses={
        200: {"description": "The file", "content": BYTES},
        206: {"description": "The part asked for", "content": BYTES},
    },
)
async def read_file(
    session_id: SessionId,
    request: Request,
    context: Ctx,
    tenant: FileUser,
    path: Path,
    user: User = "",
    range: Annotated[str, Header(description="`bytes=FROM-`, `bytes=FROM-TO` or `bytes=-LAST`")] = "",
) -> Response:
    """The bytes, as they are read; `X-File-Size` says how many there were when it began."""
    return await download(context, tenant, session_id, query(request, "path"), user, range)


async def download(
    context: Context, tenant: str, session_id: str, path: str, user: str = "", wanted: str = ""
) -> Response:
    part = read_range(wanted) if wanted else None
    source = _reading(context, tenant, session_id, path, user, part)
    info = await anext(source)
    assert isinstance(info, FileInfo)
    headers = {"X-File-Size": str(info.size), "Accept-Ranges": "bytes"}
    status = 200
    if part is not None:
        start, end = part.of(info.size)
        if start >= end:
            await source.aclose()
            return _beyond(wanted, info.size)
        headers["Content-Range"], status = f"bytes {start}-{end - 1}/{info.size}", 206
    return StreamedAnswer(_bytes(source), status, headers, BINARY)


def _beyond(wanted: str, size: int) -> Response:
    message = f"the file has {size} bytes, and none in the range {wanted}"
    response = problem(RangeNotSatisfiable(message, remedy="ask for a part it has"))
    response.headers["Content-Range"] = f"bytes */{size}"
    return response


async def _reading(
    context: Context, tenant: str, session_id: str, path: str, user: str, wanted: "ByteRange | None"
) -> AsyncGenerator[FileInfo | bytes, None]:
    """First what the file is, then its bytes."""
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        info = await file_to_read(sandbox, path, user)
        yield info
        # Of a part no more than its head has said, though the file may have grown meanwhile.
        offset, end = wanted.of(info.size) if wanted is not None else (0, None)
        source = sandbox.read(path, offset=offset, length=None if end is None else end - offset, user=user)
        try:
            async for part in source:
                yield part
        finally:
            if isinstance(source, AsyncGenerator):
                with anyio.CancelScope(shield=True):
                    await source.aclose()


async def _bytes(source: AsyncGenerator[FileInfo | bytes, None]) -> AsyncIterator[bytes]:
    try:
        async for part in source:
            assert isinstance(part, bytes)
            yield part
    finally:
        with anyio.CancelScope(shield=True):
            await source.aclose()


class ByteRange(NamedTuple):
    """From byte `first` to byte `last`; without a first one, the last so many bytes."""

    first: int | None
    last: int | None

    def of(self, size: int) -> tuple[int, int]:
        """Where it begins and ends in a file of this size; it has nothing of it if it does not end after it begins."""
        if self.first is None:
            return max(0, size - (self.last or 0)), size
        return self.first, size if self.last is None else min(size, self.last + 1)


def read_range(text: str) -> ByteRange:
    match = _RANGE.fullmatch(text)
    if match is None or not (match[1] or match[2]):
        raise InvalidRequest(
            f"the range {text[:80]!r} is not understood", remedy="bytes=FROM-, bytes=FROM-TO or bytes=-LAST"
        )
    part = ByteRange(int(match[1]) if match[1] else None, int(match[2]) if match[2] else None)
    if part.first is not None and part.last is not None and part.last < part.first:
        raise InvalidRequest(f"the range {text!r} ends before it begins")
    return part


@router.put(
    "/content",
    status_code=201,
    response_model=FileView,
    summary="Write a file",
    openapi_extra={
        "requestBody": {"required": True, "content": BYTES},
    },
)
async def write_file(
    session_id: SessionId,
    request: Request,
    context: Ctx,
    tenant: FileUser,
    path: Path,
    mode: Annotated[str, Query(description="Octal, such as 0755", pattern="^[0-7]{3,4}$")] = "",
    user: User = "",
) -> Response:
    """The body becomes the file, all of it or nothing: a reader sees the old file or the new one.

    Directories on the way are made.
    """
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        bits = int(mode, 8) if mode else None
        info = await sandbox.write(query(request, "path"), body_of(request), mode=bits, user=user)
        return answer(file_view(info), 201)


async def body_of(request: Request) -> AsyncIterator[bytes]:
    """The request's body as it comes. A client that goes away in the middle fails the operation it is for."""
    try:
        async for part in request.stream():
            if part:
                yield part
    except ClientDisconnect:
        raise InvalidRequest("the client went away in the middle of the body") from None


@router.post("/mkdir", status_code=201, response_model=FileView, summary="Make a directory")
async def make_directory(session_id: SessionId, body: PathBody, context: Ctx, tenant: FileUser) -> Response:
    """Directories on the way are made too."""
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        await sandbox.mkdir(body.path, mode=body.mode, user=body.user)
        return answer(file_view(await sandbox.stat(body.path, user=body.user)), 201)


@router.post("/move", response_model=FileView, summary="Move or rename")
async def move_file(session_id: SessionId, body: MoveBody, context: Ctx, tenant: FileUser) -> Response:
    """A file that is at the target is replaced; a directory only if it is empty."""
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        await sandbox.rename(body.source, body.target, user=body.user)
        return answer(file_view(await sandbox.stat(body.target, user=body.user)))


@router.delete("", status_code=204, summary="Remove a file or directory")
async def remove_file(
    session_id: SessionId,
    request: Request,
    context: Ctx,
    tenant: FileUser,
    path: Path,
    recursive: Annotated[bool, Query(description="A directory with everything in it")] = False,
    user: User = "",
) -> Response:
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        await sandbox.remove(query(request, "path"), recursive=recursive, user=user)
    return Response(status_code=204)


@router.get(
    "/archive",
    response_class=Response,
    summary="Read a tree as a tar",
    responses={200: {"description": "The tar", "content": {TAR: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def read_archive(
    session_id: SessionId, request: Request, context: Ctx, tenant: FileUser, path: Path = WORKSPACE, user: User = ""
) -> Response:
    """Names in it are relative to the directory."""
    source = _packing(context, tenant, session_id, query(request, "path", WORKSPACE), user)
    first = await anext(source, b"")
    return StreamedAnswer(_rest(first, source), media_type=TAR)


async def _packing(context: Context, tenant: str, session_id: str, path: str, user: str) -> AsyncGenerator[bytes, None]:
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        source = sandbox.pack(path, user=user)
        try:
            async for part in source:
                yield part
        finally:
            if isinstance(source, AsyncGenerator):
                with anyio.CancelScope(shield=True):
                    await source.aclose()


async def _rest(first: bytes, source: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for part in source:
            yield part
    finally:
        with anyio.CancelScope(shield=True):
            await source.aclose()


@router.put(
    "/archive",
    status_code=201,
    response_model=ArchiveView,
    summary="Write a tree from a tar",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {TAR: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def write_archive(
    session_id: SessionId, request: Request, context: Ctx, tenant: FileUser, path: Path = WORKSPACE, user: User = ""
) -> dict[str, Any]:
    """Refuses paths and links that lead out of the directory, and devices."""
    path = query(request, "path", WORKSPACE)
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        count = await sandbox.unpack(path, body_of(request), user=user)
        return {"path": check_path(path), "members": count}


@router.get(
    "/watch",
    response_class=Response,
    summary="Watch for changes",
    responses={200: {"description": "Events", "content": {EVENT_STREAM: {}}}},
)
async def watch_files(
    session_id: SessionId,
    request: Request,
    context: Ctx,
    tenant: FileUser,
    path: Path = WORKSPACE,
    recursive: Annotated[bool, Query(description="Also in the directories below")] = False,
    user: User = "",
) -> Response:
    """Server-sent events: `watching`, then one `change` for each. Watching does not keep the session alive."""
    path = query(request, "path", WORKSPACE)
    return await stream_events(_watching(context, tenant, session_id, path, recursive, user))


async def _watching(
    context: Context, tenant: str, session_id: str, path: str, recursive: bool, user: str
) -> AsyncGenerator[bytes | None, None]:
    async with context.sessions.using(tenant, session_id, counts=False) as (_, sandbox):
        changes = sandbox.watch(path, recursive=recursive, user=user)
        async for change in with_signs_of_life(changes, context.keepalive_s):
            if change is None:
                yield None
            elif change.change is Change.WATCHING:
                yield event("watching", {"path": change.path})
            else:
                values = {"change": change.change, "path": change.path, "directory": change.directory}
                yield event("change", values)
