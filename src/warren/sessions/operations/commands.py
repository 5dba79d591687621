"""Commands that a caller waits for: the result at the end, or the output as it comes."""

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Annotated, Any, Final, Literal

import anyio
from pydantic import BaseModel, Field

from warren.interfaces.sandbox import Process, Sandbox
from warren.model.access import Scope
from warren.model.errors import Forbidden, InvalidRequest, ProcessNotFound, WarrenError
from warren.model.operations import Command, ExecResult
from warren.sessions.artifact_files import check_paths
from warren.sessions.idempotency import exec_once
from warren.sessions.operations.artifact_saving import save_after
from warren.sessions.operations.call import Call, Handler, Values
from warren.sessions.operations.files import check_readable
from warren.sessions.output_events import Events, close_source, process_events
from warren.sessions.request_context import current_caller, note_end
from warren.sessions.schemas import ExecBody, ExecView, data_of, exec_view, saved_view

Encoding = Annotated[
    Literal["text", "base64"],
    Field(description="How output is written: `text` replaces what is not UTF-8, `base64` gives every byte"),
]
EVENTS: Final[dict[str, Any]] = {"content": {"text/event-stream": {}}}


class EncodingQuery(BaseModel):
    encoding: Encoding = "text"


async def run_command(call: Call, query: EncodingQuery, body: ExecBody) -> Values:
    """Runs it to its end and answers with the result.

    As a stream (`Accept: text/event-stream`) it answers with the events `started`, `output` (one for each piece,
    with the byte offset it starts at) and `result` (or `error`), and a comment as a keep-alive when nothing
    happens. The command ends if the caller disconnects, unless the caller gave an Idempotency-Key: then it may come
    back for the result. A WebSocket at the same address takes the body as its first message, and standard input after
    it.
    """
    if not body.save_artifacts:
        return exec_view(await run_to_end(call, body))
    check_paths(body.save_artifacts)
    return {**exec_view(await run_to_end(call, body)), **await _save(call, body)}


def check_first(call: Call, body: ExecBody) -> None:
    """Raises what is wrong with the command of a create, before there is a session."""
    if not current_caller().may(Scope.EXEC):
        raise Forbidden(f"this key may not do that: it lacks the scope {Scope.EXEC}", remedy="leave `exec` out")
    if body.stream:
        raise InvalidRequest("the command of a create has no stream", remedy="leave out `stream`, or run it afterwards")
    call.context.limited_timeout(body.timeout_s)
    check_paths(body.save_artifacts)
    _stdin_of(body)


async def run_first(call: Call, body: ExecBody) -> Values:
    """Runs the command of a create in its session. Says in the result, instead of raising, why it could not be run."""
    try:
        return {"result": await run_command(call, EncodingQuery(), body), "error": None}
    except WarrenError as exc:
        return {"result": None, "error": {"code": exc.code, "detail": exc.message, "remedy": exc.remedy}}


async def _save(call: Call, body: ExecBody) -> Values:
    return {"saved": saved_view(await save_after(call, body.save_artifacts), call.base_url())}


async def run_to_end(call: Call, body: ExecBody) -> ExecResult:
    stdin = _stdin_of(body)
    body.timeout_s = call.context.limited_timeout(body.timeout_s)
    if call.key:
        if body.stdin_path:
            raise InvalidRequest(
                "a command with an Idempotency-Key cannot read a file as its input",
                remedy="leave out stdin_path, or the key: the file may have changed when the command is sent again",
            )
        session = await call.sessions.get(call.tenant, call.session_id)
        return await exec_once(call.sessions, call.tenant, call.session_id, body.to_command(session), stdin, call.key)
    async with call.using() as (session, sandbox):
        if body.stdin_path:
            return await _exec_with_file(sandbox, body.to_command(session), body)
        return await sandbox.exec(body.to_command(session), stdin)


def _stdin_of(body: ExecBody) -> bytes:
    stdin = data_of(body.stdin, body.stdin_base64)
    if stdin and body.stdin_path:
        raise InvalidRequest("the input came twice, as data and as a file", remedy="give one of them")
    return stdin


async def _exec_with_file(sandbox: Sandbox, command: Command, body: ExecBody) -> ExecResult:
    await check_readable(sandbox, body.stdin_path, body.user)
    stdin = sandbox.read(body.stdin_path, user=body.user)
    try:
        return await sandbox.exec(command, stdin)
    finally:
        await close_source(stdin)


async def stream_command(call: Call, query: EncodingQuery, body: ExecBody) -> Events:
    stdin = _stdin_of(body)
    check_paths(body.save_artifacts)
    body.timeout_s = call.context.limited_timeout(body.timeout_s)
    call.check_streamable()
    session = await call.sessions.get(call.tenant, call.session_id)
    command = body.to_command(session)
    async with call.using(), _foreground_of(call.sandbox, command, body, stdin) as process:
        async for event in process_events(process, 0, query.encoding, call.context.keepalive_s, note_end):
            if event is not None and event.kind == "result" and body.save_artifacts:
                event = event._replace(values={**event.values, **await _save(call, body)})
            yield event


@contextlib.asynccontextmanager
async def _foreground_of(sandbox: Sandbox, command: Command, body: ExecBody, stdin: bytes) -> AsyncIterator[Process]:
    if not body.stdin_path:
        async with foreground(sandbox, command, stdin) as process:
            yield process
        return
    await check_readable(sandbox, body.stdin_path, body.user)
    source = sandbox.read(body.stdin_path, user=body.user)
    try:
        async with foreground(sandbox, command, source) as process:
            yield process
    finally:
        await close_source(source)


@contextlib.asynccontextmanager
async def foreground(
    sandbox: Sandbox,
    command: Command,
    stdin: bytes | AsyncIterable[bytes] | None,
    process_id: str = "",
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Process]:
    """Runs a command for the time of a `with` block, then ends and forgets it. `stdin` None: stdin stays open.
    `is_over`: it has ended, and somebody else has it forgotten."""
    process = await sandbox.start(command, process_id=process_id, follow=True)
    writer = asyncio.create_task(_write_stdin(process, stdin))
    try:
        yield process
    finally:
        writer.cancel()
        with anyio.CancelScope(shield=True), contextlib.suppress(WarrenError):
            await asyncio.wait([writer])
            if not is_over():
                await _end_and_forget(sandbox, process)


async def _write_stdin(process: Process, stdin: bytes | AsyncIterable[bytes] | None) -> None:
    with contextlib.suppress(WarrenError):
        if isinstance(stdin, bytes):
            await process.write(stdin)
        elif stdin is not None:
            async for part in stdin:
                await process.write(part)
        if stdin is not None:
            await process.close_stdin()


async def _end_and_forget(sandbox: Sandbox, process: Process) -> None:
    for info in await sandbox.processes():
        if info.id == process.id and (info.running or info.background):
            if info.running:
                await process.kill()
                note_end(await process.ended())
            return
    with contextlib.suppress(ProcessNotFound):
        await sandbox.forget(process.id)


HANDLERS = (
    Handler(
        "run_command",
        run_command,
        stream_command,
        query=EncodingQuery,
        body=ExecBody,
        result=ExecView,
        other_results={200: EVENTS},
        headers=("accept", "idempotency_key"),
    ),
)
