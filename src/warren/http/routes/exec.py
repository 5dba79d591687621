"""/api/sessions/{id}/exec: a command to its end; its result, or everything it says as it says it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, TypeVar

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from warren.http.context import (
    Accept,
    Context,
    Ctx,
    Encoding,
    IdempotencyKey,
    Runner,
    SessionId,
    answer,
    data_of,
    limited_timeout,
    new_router,
)
from warren.http.event_streams import EVENT_STREAM, event, outputs, stream_events
from warren.http.schemas import ExecBody, ExecView, end_view, exec_view
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.errors import InvalidRequest, ProcessNotFound, WarrenError
from warren.model.operations import Command, ExecResult
from warren.sessions.idempotency import exec_once
from warren.sessions.request_context import note_end

router = new_router(prefix="/api/sessions/{session_id}", tags=["commands"])

_WATCH_AFTER_S = 0.25

T = TypeVar("T")


@router.post(
    "/exec", response_model=ExecView, summary="Run a command", responses={200: {"content": {EVENT_STREAM: {}}}}
)
async def run_command(
    session_id: SessionId,
    body: ExecBody,
    request: Request,
    context: Ctx,
    tenant: Runner,
    accept: Accept = "",
    encoding: Encoding = "text",
    idempotency_key: IdempotencyKey = "",
) -> Response:
    """Runs it to its end and answers with the result.

    As a stream (`Accept: text/event-stream`) it answers with the events `started`, `output` (one for each piece,
    with the byte offset it starts at) and `result` (or `error`), and a comment as a sign of life when nothing
    happens. A caller that goes away ends the command, unless it gave an Idempotency-Key: then it may come back for
    the result. A WebSocket at the same address takes the body as its first message, and standard input after it.
    """
    stdin = data_of(body.stdin, body.stdin_base64)
    body.timeout_s = limited_timeout(context, body.timeout_s)
    if body.stream or EVENT_STREAM in accept:
        if idempotency_key:
            raise InvalidRequest("a stream cannot be repeated", remedy="leave out the Idempotency-Key, or the stream")
        session = await context.sessions.get(tenant, session_id)
        return await stream_events(stream(context, tenant, session_id, body.wanted(session), stdin, encoding))
    result = await run(request, context, tenant, session_id, body, stdin, idempotency_key)
    return answer(exec_view(result))


async def run(
    request: Request, context: Context, tenant: str, session_id: str, body: ExecBody, stdin: bytes, key: str
) -> ExecResult:
    if key:
        session = await context.sessions.get(tenant, session_id)
        return await exec_once(context.sessions, tenant, session_id, body.wanted(session), stdin, key)
    async with context.sessions.using(tenant, session_id) as (session, sandbox):
        return await unless_gone(request, sandbox.exec(body.wanted(session), stdin))


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result; a caller that goes away meanwhile cancels the work. What is quick is not watched."""
    watch = _Watch(request)
    try:
        return await work
    except asyncio.CancelledError:
        if not watch.gone:
            raise
        watch.task.uncancel()
        raise ClientDisconnect from None
    finally:
        watch.end()


class _Watch:
    """Cancels the task that made it when the caller goes away. Looks only after a while: most are done before."""

    def __init__(self, request: Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.gone = False
        self._request = request
        self._watching: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._begin)

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._until_gone(), name="is the caller still there?")

    async def _until_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.task.cancel()

    def end(self) -> None:
        self._timer.cancel()
        if self._watching is not None and not self.gone:
            self._watching.cancel()


async def stream(
    context: Context, tenant: str, session_id: str, command: Command, stdin: bytes, encoding: str
) -> AsyncGenerator[bytes | None, None]:
    using = context.sessions.using(tenant, session_id)
    async with using as (_, sandbox), foreground(sandbox, command, stdin) as process:
        yield event("started", {"process_id": process.id})
        async for shown in outputs(process, 0, encoding, context.keepalive_s):
            yield None if shown is None else event("output", shown, shown["next_offset"])
        result = await process.wait()
        note_end(result)
        yield event("result", end_view(result))


@contextlib.asynccontextmanager
async def foreground(sandbox: Sandbox, command: Command, stdin: bytes | None) -> AsyncIterator[Process]:
    """A command that is ended, and forgotten, with whoever follows it. `stdin` None: it stays open."""
    process = await sandbox.start(command, follow=True)
    feeder = asyncio.create_task(_feed(process, stdin))
    try:
        yield process
    finally:
        feeder.cancel()
        with anyio.CancelScope(shield=True), contextlib.suppress(WarrenError):
            await asyncio.wait([feeder])
            await _end(sandbox, process)


async def _feed(process: Process, stdin: bytes | None) -> None:
    with contextlib.suppress(WarrenError):
        if stdin:
            await process.write(stdin)
        if stdin is not None:
            await process.close_stdin()


async def _end(sandbox: Sandbox, process: Process) -> None:
    for info in await sandbox.processes():
        if info.id == process.id and (info.running or info.background):
            if info.running:
                await process.kill()
                note_end(await process.ended())
            return
    with contextlib.suppress(ProcessNotFound):
        await sandbox.forget(process.id)
