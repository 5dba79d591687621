"""The code interpreter of E2B's clients: code contexts under its paths, and a cell's events as lines of JSON.

A context of Python and one of JavaScript are there from the start, as at E2B. They are listed before they run: each
becomes a process with its first cell, so that a sandbox which runs no code does not pay for them. At E2B code runs as
root. Here it runs as the sandbox user, except in a context whose directory only root may enter, where root is allowed.

A line goes out as soon as there is something to say, and at least every few seconds, so that both sides notice when the
other one is gone. A client that goes away interrupts its cell.
"""

import json
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, Field, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from warren.http.context import JsonAnswer
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.sandboxes import template_of
from warren.http.e2b.errors import E2bError, is_gone, message_of
from warren.http.e2b.users import ROOT, USUAL
from warren.http.server.http_guard import StreamedAnswer
from warren.interfaces.sandbox import Sandbox
from warren.model.code import CellReader, CodeResult, ContextStatus, find_language
from warren.model.e2b import sandbox_env
from warren.model.errors import ContextLost, ContextNotFound, InvalidPath, InvalidRequest, UnknownUser, WarrenError
from warren.model.session import Session
from warren.sessions.contexts import Beginning
from warren.sessions.long_values import LongObject, LongText, json_pieces
from warren.sessions.operations.call import Call
from warren.sessions.operations.code import cell_events, started_cell
from warren.sessions.output_events import Events, OutputEvent, close_source
from warren.sessions.request_context import note
from warren.sessions.schemas import MAX_VARIABLES, CodeBody

MEDIA_TYPE: Final = "application/x-ndjson"
KEEPALIVE_S: Final = 5.0
_LINE_S: Final = 0.05  # clients of E2B are used to a line in one piece, and to text that comes a little late
_NO_IDLE_TIME: Final = 0.0  # a context lives as long as its sandbox
_FIELDS: Final = frozenset(
    {"text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript", "data", "chart", "extra"}
)
_FROM_THE_START: Final = {
    language.default_context: {"id": language.default_context, "language": language.name, "cwd": USUAL.home}
    for language in map(find_language, ("python", "javascript"))
}
_BEGINNING: Final = Beginning(USUAL.home, USUAL.env, _NO_IDLE_TIME)
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Text = Annotated[str | None, Field(max_length=4096)]
Body = TypeVar("Body", bound=BaseModel)


class E2bExecuteBody(BaseModel):
    code: str
    context_id: Text = None
    language: Text = None
    env_vars: dict[str, str] | None = Field(None, max_length=MAX_VARIABLES)


class E2bContextBody(BaseModel):
    language: Text = None
    cwd: Text = None


async def _read(call: E2bCall, kind: type[Body]) -> Body:
    try:
        return kind.model_validate(await call.json())
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise E2bError(400, f"{place[:80]}: {first['msg']}") from None


# -- contexts


async def create_context(call: E2bCall) -> Response:
    body = await _read(call, E2bContextBody)
    async with call.sandbox() as (session, sandbox):
        try:
            created = await _create(call, session, sandbox, body, USUAL.env)
        except InvalidPath as refusal:
            try:
                created = await _create(call, session, sandbox, body, ROOT.env, ROOT.name)
            except (InvalidPath, UnknownUser):
                raise refusal from None
    return JsonAnswer(_context_view(created))


async def _create(
    call: E2bCall, session: Session, sandbox: Sandbox, body: E2bContextBody, env: Mapping[str, str], user: str = ""
) -> ContextStatus:
    return await call.context.contexts.create(
        sandbox,
        session,
        (body.language or "python").lower(),
        cwd=body.cwd or USUAL.home,
        env=env,
        idle_s=_NO_IDLE_TIME,
        image=call.sessions.image_of(session),
        user=user,
    )


async def list_contexts(call: E2bCall) -> Response:
    async with call.sandbox(counts=False) as (_, sandbox):
        found = await call.context.contexts.list(sandbox)
    return JsonAnswer(list((_FROM_THE_START | {context.id: _context_view(context) for context in found}).values()))


async def restart_context(call: E2bCall) -> Response:
    async with call.sandbox() as (session, sandbox):
        image = call.sessions.image_of(session)
        with _ignoring_unstarted(call):
            await call.context.contexts.restart(sandbox, session, call.params["context_id"], image)
    return Response(status_code=204)


async def remove_context(call: E2bCall) -> Response:
    async with call.sandbox() as (_, sandbox):
        with _ignoring_unstarted(call):
            await call.context.contexts.delete(sandbox, call.params["context_id"])
    return Response(status_code=204)


@contextmanager
def _ignoring_unstarted(call: E2bCall) -> Iterator[None]:
    """Ignores that a context which is there from the start has no process yet: it holds nothing."""
    try:
        yield
    except ContextNotFound:
        if call.params["context_id"] not in _FROM_THE_START:
            raise


async def check_health(call: E2bCall) -> Response:
    await call.check_awake()
    async with call.sandbox(counts=False):
        return Response("OK", media_type="text/plain")


def _context_view(context: ContextStatus) -> dict[str, str]:
    return {"id": context.id, "language": context.language, "cwd": context.cwd}


# -- cells


async def execute(call: E2bCall) -> Response:
    body = await _read(call, E2bExecuteBody)
    if body.context_id and body.language:
        raise InvalidRequest("a cell has a context or a language, not both", remedy="leave out one of them")
    session = await call.sessions.get(call.tenant, call.session_id)
    cell = CodeBody(
        code=body.code,
        context=body.context_id or "",
        language=(body.language or "").lower(),
        env={**sandbox_env(session.id, template_of(call, session)), **(body.env_vars or {})},
        timeout_s=0,  # the client leaves when its own time is up
    )
    events = _events(Call(call.context, call.tenant, call.session_id), cell)
    await anext(events)  # it has started; what is wrong is raised before the answer begins
    return StreamedAnswer(_lines(events), media_type=MEDIA_TYPE, headers=_HEADERS)


async def _lines(events: Events) -> AsyncGenerator[bytes, None]:
    try:
        async for event in events:
            if event is not None and isinstance(event.values, LongObject):
                async for piece in json_pieces(LongObject({"type": event.kind, **_result(event.values)})):
                    yield piece
            elif line := _line(event):
                yield line
    except WarrenError as exc:
        if is_gone(exc):
            raise ClientDisconnect from exc  # drops the connection: the end of a cell would be a lie
        note(error=exc.code)
        yield _encode({"type": "error", "name": type(exc).__name__, "value": message_of(exc), "traceback": ""})
    finally:
        await close_source(events)
    yield _encode({"type": "end_of_execution"})


async def _events(call: Call, body: CodeBody) -> Events:
    """Yields the events of a cell, and tries it again if the context is gone before anything has run. The first look at
    a default context that has ended reports the loss, the next one starts a fresh context; a named context stays
    lost."""
    tries = 2 if body.context else 3
    for attempt in range(tries):
        try:
            async with started_cell(call, body, _BEGINNING, look=attempt > 0) as (process, execution):
                async for event in cell_events(
                    call, process, execution, CellReader(), keepalive_s=KEEPALIVE_S, line_s=_LINE_S
                ):
                    yield event
            return
        except ContextLost:
            if attempt + 1 == tries:
                raise


def _line(event: OutputEvent | None) -> bytes:
    if event is None:
        return _encode({"type": "keepalive"})
    values = event.values
    if event.kind in ("stdout", "stderr"):
        return _encode({"type": event.kind, "text": values["text"], "timestamp": time.time_ns()})
    if event.kind == "result":
        return _encode({"type": "result", **_result(values)})
    if event.kind == "error":
        return _encode({"type": "error", **values})
    return _end(values) if event.kind == "end" else b""


def _end(values: dict[str, Any]) -> bytes:
    """E2B has no field for output that was too much, so a line of stderr tells of it."""
    lines, dropped = b"", values["dropped"]
    if values["truncated"]:
        told = f"[{dropped['text']} bytes of output and {dropped['events']} results were too much, and left out]\n"
        lines += _encode({"type": "stderr", "text": told, "timestamp": time.time_ns()})
    if values["execution_count"] is not None:
        lines += _encode({"type": "number_of_executions", "execution_count": values["execution_count"]})
    return lines


def _result(result: CodeResult) -> CodeResult:
    """Keeps the formats that E2B knows. A text that is a quoted string loses its quotes."""
    shown = {name: value for name, value in result.items() if name in _FIELDS}
    text = shown.get("text")
    if isinstance(text, LongText):
        text = "".join(text.pieces())
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        shown["text"] = text[1:-1]
    return {**shown, "is_main_result": result["is_main_result"]}


def _encode(values: dict[str, Any]) -> bytes:
    """Writes ASCII: clients split lines at every character that Unicode calls the end of one."""
    return json.dumps(values).encode() + b"\n"


HANDLERS: Mapping[str, Run] = {
    "e2b_check_interpreter": check_health,
    "e2b_run_code": execute,
    "e2b_create_context": create_context,
    "e2b_list_contexts": list_contexts,
    "e2b_restart_context": restart_context,
    "e2b_remove_context": remove_context,
}
