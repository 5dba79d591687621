"""The flat endpoints: /create_session, /execute, /upload_file … as the first clients of such servers call them.

A caller names a session by `session_id` or by `thread_id`. A thread that has no session gets one with its
first command; when it had one before, the answer says what became of that (`notice`).
"""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import Body, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warren.http.context import (
    Context,
    Ctx,
    FileUser,
    IdempotencyKey,
    Reader,
    Runner,
    SessionUser,
    active_sessions,
    answer,
    limited_timeout,
    new_router,
    pool_size,
    query,
)
from warren.http.multipart import FormPart, read_parts
from warren.http.routes import files
from warren.http.routes.exec import run, unless_gone
from warren.http.routes.sessions import check_labels
from warren.http.schemas import Body as StrictBody
from warren.http.schemas import (
    ExecBody,
    ExecView,
    FileList,
    Seconds,
    SessionBody,
    SessionView,
    exec_view,
    file_view,
    session_view,
)
from warren.interfaces.store import Page
from warren.model.access import Scope
from warren.model.errors import InvalidRequest, SessionNotFound, TooLarge
from warren.model.operations import check_path
from warren.model.session import EndReason, Session
from warren.model.spec import USER, WORKSPACE
from warren.sessions.new_session import NewSession
from warren.sessions.request_context import current_caller

router = new_router(tags=["flat"])

_EARLY_FILE: Final = 8 * 1024 * 1024
SessionId = Annotated[str, Query(description="The session, or give thread_id")]
ThreadId = Annotated[str, Query(description="The thread whose session it is")]


class CreatedView(BaseModel):
    session_id: str
    status: str = Field(description="`created`, or `existing` when the thread had one")
    user: str
    workspace: str
    worker: str
    thread_id: str | None
    notice: str | None


class ExecuteBody(StrictBody):
    session_id: str = Field("", description="As create_session gave it")
    thread_id: str = Field("", description="Instead of session_id: a thread without a session gets one")
    command: str = Field(examples=["echo Hello"])
    timeout: Seconds | None = Field(None, description="Seconds", examples=[30])
    replace_lost: bool = Field(False, description="If the thread's sandbox has died: go on in a fresh one")


class ExecuteView(ExecView):
    session_id: str
    notice: str | None = Field(description="What the caller should know: that earlier files are gone")


class WhichBody(StrictBody):
    session_id: str = ""
    thread_id: str = Field("", description="Instead of session_id")


class UploadedView(BaseModel):
    status: str
    filename: str
    path: str
    size: int


class ListedView(FileList):
    session_id: str


class CleanedView(BaseModel):
    status: str


class SessionsView(BaseModel):
    sessions: list[SessionView]
    count: int


class HealthView(BaseModel):
    status: str = Field(description="`healthy`, or `stopping`")
    pool_size: int = Field(description="Sandboxes that are ready to be handed out")
    active_sessions: int
    worker_id: str


@router.post("/create_session", response_model=CreatedView, summary="Create a session")
async def create_session(
    request: Request,
    context: Ctx,
    tenant: SessionUser,
    body: Annotated[SessionBody | None, Body()] = None,
    idempotency_key: IdempotencyKey = "",
) -> Response:
    """With `thread_id`: the thread's session, made if it has none. POST /api/sessions says more about it."""
    body = body or SessionBody()
    check_labels(context, body.labels)
    opened = await unless_gone(request, context.sessions.create(tenant, body.wanted(), idempotency_key))
    session = opened.session
    values = {
        "session_id": session.id,
        "status": "created" if opened.created or opened.replayed else "existing",
        "user": USER,
        "workspace": WORKSPACE,
        "worker": str(request.base_url).rstrip("/"),
        "thread_id": session.thread_id or None,
        "notice": _notice(session) if opened.created else None,
    }
    return answer(values)


@router.post("/execute", response_model=ExecuteView, summary="Run a command in bash")
async def execute(
    body: ExecuteBody, request: Request, context: Ctx, tenant: Runner, idempotency_key: IdempotencyKey = ""
) -> Response:
    """To its end. A thread that has no session gets one; `notice` says if an earlier one and its files are gone."""
    wanted = ExecBody(command=body.command, timeout_s=limited_timeout(context, body.timeout))
    wanted.wanted()  # what cannot be run makes no session
    session, notice = await _session(context, tenant, body.session_id, body.thread_id, replace_lost=body.replace_lost)
    result = await run(request, context, tenant, session.id, wanted, b"", idempotency_key)
    return answer({**exec_view(result), "session_id": session.id, "notice": notice})


@router.post(
    "/upload_file",
    response_model=UploadedView,
    summary="Upload a file",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["file"],
                        "properties": {
                            "session_id": {"type": "string"},
                            "thread_id": {"type": "string"},
                            "path": {"type": "string", "description": "Where to; by default the file's own name"},
                            "file": {"type": "string", "format": "binary"},
                        },
                    }
                }
            },
        }
    },
)
async def upload_file(request: Request, context: Ctx, tenant: FileUser) -> dict[str, Any]:
    """Streamed into the workspace. Give the fields before the file: a file that comes first may have 8 MiB."""
    fields: dict[str, str] = dict(request.query_params)
    early: tuple[str, bytes] | None = None
    uploaded: dict[str, Any] | None = None
    async for part in read_parts(files.body_of(request), request.headers.get("content-type", "")):
        if part.filename is None and part.name != "file":
            fields[part.name] = await part.text()
        elif part.name == "file" and early is None and uploaded is None:
            if fields.get("session_id") or fields.get("thread_id"):
                uploaded = await _upload(context, tenant, fields, part.filename or "", part.chunks())
            else:
                early = (part.filename or "", await _held(part))
        else:
            raise InvalidRequest(f"the part {part.name!r} is not expected", remedy="send one part named `file`")
    if uploaded is None and early is not None:
        uploaded = await _upload(context, tenant, fields, early[0], early[1])
    if uploaded is None:
        raise InvalidRequest("there is no file in the form", remedy="send a part named `file`")
    return uploaded


async def _held(part: FormPart) -> bytes:
    held = bytearray()
    async for chunk in part.chunks():
        held += chunk
        if len(held) > _EARLY_FILE:
            raise TooLarge(
                f"the file came before the session_id and is longer than {_EARLY_FILE} bytes",
                remedy="send session_id or thread_id before the file",
            )
    return bytes(held)


async def _upload(
    context: Context, tenant: str, fields: dict[str, str], filename: str, data: bytes | AsyncIterator[bytes]
) -> dict[str, Any]:
    name = filename.replace("\\", "/").rsplit("/", 1)[-1]
    path = fields.get("path") or name
    if path in ("", ".", ".."):
        raise InvalidRequest("the file has no name", remedy="send a filename with the part, or the field `path`")
    session, _ = await _session(context, tenant, fields.get("session_id", ""), fields.get("thread_id", ""))
    async with context.sessions.using(tenant, session.id) as (_, sandbox):
        info = await sandbox.write(path, data)
    return {"status": "uploaded", "filename": name or info.name, "path": info.path, "size": info.size}


@router.get(
    "/download_file",
    response_class=Response,
    summary="Download a file",
    responses={200: {"description": "The file", "content": files.BYTES}},
)
async def download_file(
    request: Request,
    context: Ctx,
    tenant: FileUser,
    path: Annotated[str, Query(description="Relative paths start in /workspace")] = "",
    filename: Annotated[str, Query(description="The same as path")] = "",
    session_id: SessionId = "",
    thread_id: ThreadId = "",
) -> Response:
    wanted = query(request, "path") or query(request, "filename")
    session = await _existing(context, tenant, session_id, thread_id)
    return await files.download(context, tenant, session.id, wanted)


@router.get("/list_files", response_model=ListedView, summary="List a directory")
async def list_files(
    request: Request,
    context: Ctx,
    tenant: FileUser,
    path: Annotated[str, Query(description="Relative paths start in /workspace")] = WORKSPACE,
    session_id: SessionId = "",
    thread_id: ThreadId = "",
) -> Response:
    path = query(request, "path") or WORKSPACE
    session = await _existing(context, tenant, session_id, thread_id)
    async with context.sessions.using(tenant, session.id) as (_, sandbox):
        found = [file_view(info) for info in await sandbox.list(path)]
    return answer({"session_id": session.id, "path": check_path(path), "files": found})


@router.post("/cleanup", response_model=CleanedView, summary="End a session and destroy its sandbox")
async def cleanup(body: WhichBody, context: Ctx, tenant: SessionUser) -> dict[str, str]:
    """Repeating it, or cleaning up what never was, succeeds."""
    try:
        session = await _existing(context, tenant, body.session_id, body.thread_id)
        await context.sessions.delete(tenant, session.id)
    except SessionNotFound:
        pass
    return {"status": "cleaned up"}


@router.get("/sessions", response_model=SessionsView, summary="List your sessions")
async def list_sessions(request: Request, context: Ctx, tenant: Reader) -> Response:
    """The newest thousand; /api/sessions has filters and pages."""
    found = await context.sessions.list(tenant, Page(limit=1000))
    shown = [session_view(session, context.sessions.clock, str(request.base_url)) for session in found]
    return answer({"sessions": shown, "count": len(shown)})


@router.get("/health", response_model=HealthView, summary="How the server is")
async def health(context: Ctx) -> dict[str, Any]:
    stopping = context.sessions.stopping
    return {
        "status": "stopping" if stopping else "healthy",
        "pool_size": await pool_size(context),
        "active_sessions": await active_sessions(context),
        "worker_id": context.worker_id,
    }


async def _existing(context: Context, tenant: str, session_id: str, thread_id: str) -> Session:
    if bool(session_id) == bool(thread_id):
        raise InvalidRequest("give either session_id or thread_id")
    if session_id:
        return await context.sessions.get(tenant, session_id)
    return await context.sessions.of_thread(tenant, thread_id)


async def _session(
    context: Context, tenant: str, session_id: str, thread_id: str, *, replace_lost: bool = False
) -> tuple[Session, str | None]:
    """The session named, made if a thread has none; and what the caller should be told about it."""
    if session_id or not thread_id:
        return await _existing(context, tenant, session_id, thread_id), None
    if not current_caller().may(Scope.SESSIONS):
        return await _existing(context, tenant, session_id, thread_id), None
    opened = await context.sessions.create(tenant, NewSession(thread_id=thread_id, replace_lost=replace_lost))
    return opened.session, _notice(opened.session) if opened.created else None


def _notice(session: Session) -> str | None:
    previous = session.previous
    if previous is None:
        return None
    why = {
        EndReason.IDLE: "expired because it was idle",
        EndReason.LIFETIME: "reached its maximum lifetime",
        EndReason.LOST: f"was lost ({previous.detail})",
        EndReason.SHUTDOWN: "ended when the server was stopped",
    }.get(previous.reason, "was deleted")
    return f"This is a fresh sandbox: the thread's earlier session {previous.session_id} {why}, and its files are gone."
