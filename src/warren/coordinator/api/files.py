"""/api/sessions/{id}/files: done inside the sandbox with the rights of its user, streamed, any size."""

import contextlib
import posixpath
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import Header, Query
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from warren.coordinator.api.context import Context, Ctx, SessionId, Tenant, answer, new_router, query
from warren.coordinator.api.edge import StreamedAnswer
from warren.coordinator.api.events import EVENT_STREAM, event, stream_events, with_signs_of_life
from warren.coordinator.api.problems import problem
from warren.coordinator.api.schemas import ArchiveView, FileList, FileView, MoveBody, PathBody, file_view
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import FileNotFound, InvalidRequest, IsDirectory
from warren.model.operations import Change, FileInfo, FileKind, check_path
from warren.model.spec import WORKSPACE

router = new_router(prefix="/api/sessions/{session_id}/files", tags=["files"])

BINARY = "application/octet-stream"
TAR = "application/x-tar"
BYTES: dict[str, Any] = {BINARY: {"schema": {"type": "string", "format": "binary"}}}
Path = Annotated[str, Query(description="Relative paths start in /workspace", examples=["notes.txt"])]
User = Annotated[str, Query(description="User inside the sandbox whose rights are used; by default sandboxuser")]


class RangeNotSatisfiable(InvalidRequest):
    code, http_status = "range_not_satisfiable", 416


_MOST_LINKS = 40  # as the kernel follows
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})?")


@router.get("", response_model=FileList, summary="List a directory")
async def list_files(
    session_id: SessionId,
    request: Request,
    context: Ctx,
    tenant: Tenant,
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
    session_id: SessionId, request: Request, context: Ctx, tenant: Tenant, path: Path, user: User = ""
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
    tenant: Tenant,
    path: Path,
    user: User = "",
    range: Annotated[str, Header(description="`bytes=FROM-` or `bytes=FROM-TO`")] = "",
) -> Response:
    """The bytes, as they are read; `X-File-Size` says how many there were when it began."""
    return await download(context, tenant, session_id, query(request, "path"), user, range)


async def download(
    context: Context, tenant: str, session_id: str, path: str, user: str = "", wanted: str = ""
) -> Response:
    source = _reading(context, tenant, session_id, path, user, *_range(wanted))
    info = await anext(source)
    assert isinstance(info, FileInfo)
    headers = {"X-File-Size": str(info.size), "Accept-Ranges": "bytes"}
    status = 200
    if wanted:
        start, length = _range(wanted)
        end = min(info.size, start + length if length is not None else info.size)
        if start >= info.size:
            await source.aclose()
            return _beyond(start, info.size)
        headers["Content-Range"], status = f"bytes {start}-{end - 1}/{info.size}", 206
    return StreamedAnswer(_bytes(source), status, headers, BINARY)


def _beyond(start: int, size: int) -> Response:
    response = problem(
        RangeNotSatisfiable(f"the file has {size} bytes, the range begins at {start}", remedy="ask for a part it has")
    )
    response.headers["Content-Range"] = f"bytes */{size}"
    return response


async def _reading(
    context: Context, tenant: str, session_id: str, path: str, user: str, offset: int, length: int | None
) -> AsyncGenerator[FileInfo | bytes, None]:
    """First what the file is, then its bytes."""
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        yield await _file(sandbox, path, user)
        source = sandbox.read(path, offset=offset, length=length, user=user)
        try:
            async for part in source:
                yield part
        finally:
            if isinstance(source, AsyncGenerator):
                with anyio.CancelScope(shield=True):
                    await source.aclose()


async def _file(sandbox: Sandbox, path: str, user: str) -> FileInfo:
    """What can be read, links followed: opening it tells what is wrong with it, before an answer has begun."""
    info = await sandbox.stat(path, user=user)
    if info.kind is FileKind.DIRECTORY:
        raise IsDirectory(f"{path!r} is a directory", remedy="GET …/files/archive gives it as a tar")
    async for _ in sandbox.read(path, length=1, user=user):
        break
    return await _target(sandbox, info, user)


async def _target(sandbox: Sandbox, info: FileInfo, user: str) -> FileInfo:
    """What a link leads to: reading follows it, so the size is that of its target."""
    with contextlib.suppress(FileNotFound):  # the kernel has links that can be read and lead nowhere
        for _ in range(_MOST_LINKS):
            if info.kind is not FileKind.SYMLINK:
                break
            info = await sandbox.stat(posixpath.join(posixpath.dirname(info.path), info.target), user=user)
    return info


async def _bytes(source: AsyncGenerator[FileInfo | bytes, None]) -> AsyncIterator[bytes]:
    try:
        async for part in source:
            assert isinstance(part, bytes)
            yield part
    finally:
        with anyio.CancelScope(shield=True):
            await source.aclose()


def _range(text: str) -> tuple[int, int | None]:
    if not text:
        return 0, None
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"the range {text[:80]!r} is not understood", remedy="bytes=FROM- or bytes=FROM-TO")
    start = int(match[1])
    if match[2] is not None and int(match[2]) < start:
        raise InvalidRequest(f"the range {text!r} ends before it begins")
    return start, None if match[2] is None else int(match[2]) - start + 1


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
    tenant: Tenant,
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
async def make_directory(session_id: SessionId, body: PathBody, context: Ctx, tenant: Tenant) -> Response:
    """Directories on the way are made too."""
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        await sandbox.mkdir(body.path, mode=body.mode, user=body.user)
        return answer(file_view(await sandbox.stat(body.path, user=body.user)), 201)


@router.post("/move", response_model=FileView, summary="Move or rename")
async def move_file(session_id: SessionId, body: MoveBody, context: Ctx, tenant: Tenant) -> Response:
    """A file that is at the target is replaced; a directory only if it is empty."""
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        await sandbox.rename(body.source, body.target, user=body.user)
        return answer(file_view(await sandbox.stat(body.target, user=body.user)))


@router.delete("", status_code=204, summary="Remove a file or directory")
async def remove_file(
    session_id: SessionId,
    request: Request,
    context: Ctx,
    tenant: Tenant,
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
    session_id: SessionId, request: Request, context: Ctx, tenant: Tenant, path: Path = WORKSPACE, user: User = ""
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
    session_id: SessionId, request: Request, context: Ctx, tenant: Tenant, path: Path = WORKSPACE, user: User = ""
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
    tenant: Tenant,
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
