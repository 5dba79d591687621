"""The flat endpoints: /create_session, /execute, /upload_file … for older clients.

A caller names a session by `session_id` or by `thread_id`. A thread that has no session gets one with its
first command; when it had one before, the answer says what became of that (`notice`).
"""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from warren.http.multipart import FormPart, read_parts
from warren.interfaces.store import Page
from warren.model.access import Scope
from warren.model.errors import InvalidRequest, SessionNotFound, TooLarge
from warren.model.mismatch import describe
from warren.model.session import EndReason, Session
from warren.model.spec import USER, WORKSPACE
from warren.sessions.new_session import CreateResult, NewSession
from warren.sessions.operations import files
from warren.sessions.operations.call import Call, Handler, Values, perform, perform_stream
from warren.sessions.operations.commands import EVENTS, EncodingQuery, run_to_end, stream_command
from warren.sessions.operations.sessions import check_labels, show_page
from warren.sessions.output_events import Events, close_source
from warren.sessions.request_context import current_caller
from warren.sessions.schemas import (
    Body,
    ExecBody,
    ExecView,
    FileList,
    SessionBody,
    SessionView,
    Timeout,
    exec_view,
)

_MAX_EARLY_FILE: Final = 8 * 1024 * 1024
SessionId = Annotated[str, Field(description="The session, or give thread_id")]
ThreadId = Annotated[str, Field(description="The thread whose session it is")]
FilePath = Annotated[files.AnyText, Field(description="Relative paths start in /workspace")]


class CreatedView(BaseModel):
    session_id: str
    status: str = Field(description="`created`, or `existing` when the thread had one")
    user: str
    workspace: str
    worker: str
    thread_id: str | None
    notice: str | None


class ExecuteBody(Body):
    session_id: str = Field("", description="As create_session gave it")
    thread_id: str = Field("", description="Instead of session_id: a thread without a session gets one")
    command: str = Field(examples=["echo Hello"])
    timeout: Timeout | None = Field(None, description="Seconds", examples=[30])
    stream: bool = Field(False, description="Answer with server-sent events, as with `Accept: text/event-stream`")
    replace_lost: bool = Field(False, description="If the thread's sandbox has died: go on in a fresh one")


class ExecuteView(ExecView):
    session_id: str
    notice: str | None = Field(description="What the caller should know: that earlier files are gone")


class WhichBody(Body):
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


class DownloadQuery(BaseModel):
    path: FilePath = ""
    filename: Annotated[files.AnyText, Field(description="The same as path")] = ""
    session_id: SessionId = ""
    thread_id: ThreadId = ""


class ListFilesQuery(BaseModel):
    path: FilePath = WORKSPACE
    session_id: SessionId = ""
    thread_id: ThreadId = ""


async def create_session(call: Call, body: SessionBody | None) -> Values:
    """With `thread_id`: the thread's session, made if it has none. POST /api/sessions says more about it."""
    body = body or SessionBody()
    check_labels(call.context, body.labels)
    result = await call.sessions.create(call.tenant, await body.to_new_session(), call.key)
    session = result.session
    return {
        "session_id": session.id,
        "status": "created" if result.created or result.replayed else "existing",
        "user": USER,
        "workspace": WORKSPACE,
        "worker": call.context.worker_url or call.base_url().rstrip("/"),
        "thread_id": session.thread_id or None,
        "notice": _notice(session) if result.created else _keep_notice(result),
    }


async def execute(call: Call, query: EncodingQuery, body: ExecuteBody) -> Values:
    """To its end. A thread that has no session gets one; `notice` says if an earlier one and its files are gone.

    As a stream it answers with the events of an exec: `started`, `output`, and `result`, which has `session_id` and
    `notice` too; or `error`.
    """
    command, session, notice = await _prepare(call, body)
    return {**exec_view(await run_to_end(call, command)), "session_id": session.id, "notice": notice}


async def stream_execute(call: Call, query: EncodingQuery, body: ExecuteBody) -> Events:
    call.check_streamable()
    command, session, notice = await _prepare(call, body)
    source = stream_command(call, query, command)
    try:
        async for event in source:
            if event is not None and event.kind == "result":
                event = event._replace(values={**event.values, "session_id": session.id, "notice": notice})
            yield event
    finally:
        await close_source(source)


async def _prepare(call: Call, body: ExecuteBody) -> tuple[ExecBody, Session, str | None]:
    """Finds or makes the session. Raises what is wrong with the command before a session is made for it."""
    command = ExecBody(command=body.command, timeout_s=call.context.limited_timeout(body.timeout))
    command.to_command()
    session, notice = await find_or_create(call, body.session_id, body.thread_id, replace_lost=body.replace_lost)
    call.session_id = session.id
    return command, session, notice


async def upload_file(call: Call, data: AsyncIterator[bytes]) -> Values:
    """Streamed into the workspace. Give the fields before the file: a file that comes first may have 8 MiB."""
    fields = dict(call.fields)
    early: tuple[str, bytes] | None = None
    uploaded: Values | None = None
    async for part in read_parts(data, call.content_type):
        if part.filename is None and part.name != "file":
            fields[part.name] = await part.text()
        elif part.name == "file" and early is None and uploaded is None:
            if fields.get("session_id") or fields.get("thread_id"):
                uploaded = await _upload(call, fields, part.filename or "", part.chunks())
            else:
                early = (part.filename or "", await _read_early_file(part))
        else:
            raise InvalidRequest(f"the part {part.name!r} is not expected", remedy="send one part named `file`")
    if uploaded is None and early is not None:
        uploaded = await _upload(call, fields, early[0], early[1])
    if uploaded is None:
        raise InvalidRequest("there is no file in the form", remedy="send a part named `file`")
    return uploaded


async def _read_early_file(part: FormPart) -> bytes:
    data = bytearray()
    async for chunk in part.chunks():
        data += chunk
        if len(data) > _MAX_EARLY_FILE:
            raise TooLarge(
                f"the file came before the session_id and is longer than {_MAX_EARLY_FILE} bytes",
                remedy="send session_id or thread_id before the file",
            )
    return bytes(data)


async def _upload(call: Call, fields: dict[str, str], filename: str, data: bytes | AsyncIterator[bytes]) -> Values:
    name = filename.replace("\\", "/").rsplit("/", 1)[-1]
    path = fields.get("path") or name
    if path in ("", ".", ".."):
        raise InvalidRequest("the file has no name", remedy="send a filename with the part, or the field `path`")
    session, _ = await find_or_create(call, fields.get("session_id", ""), fields.get("thread_id", ""))
    call.session_id = session.id
    written = await perform(files.WRITE_FILE, call, files.WriteQuery(path=path), data)
    return {
        "status": "uploaded",
        "filename": name or written["name"],
        "path": written["path"],
        "size": written["size"],
    }


async def download_file(call: Call, query: DownloadQuery) -> AsyncGenerator[Any, None]:
    call.session_id = (await find_session(call, query.session_id, query.thread_id)).id
    async for item in perform_stream(files.READ_FILE, call, files.PathQuery(path=query.path or query.filename)):
        yield item


async def list_files(call: Call, query: ListFilesQuery) -> Values:
    call.session_id = (await find_session(call, query.session_id, query.thread_id)).id
    listed = await perform(files.LIST_FILES, call, files.ListQuery(path=query.path or WORKSPACE))
    return {"session_id": call.session_id, **listed}


async def cleanup(call: Call, body: WhichBody) -> Values:
    """Repeating it, or cleaning up what never was, succeeds."""
    try:
        session = await find_session(call, body.session_id, body.thread_id)
        await call.sessions.delete(call.tenant, session.id)
    except SessionNotFound:
        pass
    return {"status": "cleaned up"}


async def list_sessions(call: Call) -> Values:
    """The newest thousand, fewer if their metadata is long; /api/sessions has filters and pages."""
    shown, _ = await show_page(call, Page(limit=1000))
    return {"sessions": shown, "count": len(shown)}


async def find_session(call: Call, session_id: str, thread_id: str) -> Session:
    if bool(session_id) == bool(thread_id):
        raise InvalidRequest("give either session_id or thread_id")
    if session_id:
        return await call.sessions.get(call.tenant, session_id)
    return await call.sessions.of_thread(call.tenant, thread_id)


async def find_or_create(
    call: Call, session_id: str, thread_id: str, *, replace_lost: bool = False
) -> tuple[Session, str | None]:
    """Returns the session, created if the thread has none, and a notice for the caller if an earlier session is
    gone."""
    if session_id or not thread_id or not current_caller().may(Scope.SESSIONS):
        return await find_session(call, session_id, thread_id), None
    result = await call.sessions.create(call.tenant, NewSession(thread_id=thread_id, replace_lost=replace_lost))
    return result.session, _notice(result.session) if result.created else None


def _notice(session: Session) -> str | None:
    previous = session.previous
    if previous is None:
        return None
    why = {
        EndReason.IDLE: "expired because it was idle",
        EndReason.LIFETIME: "reached its maximum lifetime",
        EndReason.PAUSED_TOO_LONG: "was paused for too long",
        EndReason.LOST: f"was lost ({previous.detail})",
        EndReason.SHUTDOWN: "ended when the server was stopped",
        EndReason.REPLACED: f"was replaced, because {previous.detail}",
    }.get(previous.reason, "was deleted")
    return f"This is a fresh sandbox: the thread's earlier session {previous.session_id} {why}, and its files are gone."


def _keep_notice(result: CreateResult) -> str | None:
    if not result.mismatch:
        return None
    return f"This is the session that the thread has, with {describe(result.mismatch)}."


_FORM: Final[dict[str, Any]] = {
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
}
HANDLERS = (
    Handler("flat_create_session", create_session, body=SessionBody, result=CreatedView, headers=("idempotency_key",)),
    Handler(
        "flat_execute",
        execute,
        stream_execute,
        query=EncodingQuery,
        body=ExecuteBody,
        result=ExecuteView,
        other_results={200: EVENTS},
        headers=("accept", "idempotency_key"),
    ),
    Handler("flat_upload_file", upload_file, result=UploadedView, body_schema=_FORM),
    Handler(
        "flat_download_file",
        stream=download_file,
        query=DownloadQuery,
        other_results={200: {"description": "The file", "content": files.BYTES}},
    ),
    Handler("flat_list_files", list_files, query=ListFilesQuery, result=ListedView),
    Handler("flat_cleanup", cleanup, body=WhichBody, result=CleanedView),
    Handler("flat_list_sessions", list_sessions, result=SessionsView),
)
