"""Code contexts, and the cells that run in them: the whole execution at the end, or its events as they come."""

import base64
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio

from warren.interfaces.sandbox import Process, Sandbox
from warren.kernel.answer_memory import SHORT_BYTES, require_room
from warren.kernel.pacing import Pace
from warren.model.code import CELL_LOST, CellExecution, CellReader, CodeResult, Language, language_of, read_execution
from warren.model.command_output import STDERR, CommandOutput, Shown
from warren.model.errors import CommandRefused, ContextLost, ProcessNotFound, WarrenError
from warren.model.operations import Chunk, Command, ExecResult, OutputStream, ProcessStatus, Reason
from warren.model.session import Session
from warren.sessions.contexts import (
    PLAIN,
    Beginning,
    Contexts,
    cell_command,
    cell_request,
    check_started,
    context_and_language,
    context_of_cell,
    context_view,
    new_cell_id,
    with_keeper,
)
from warren.sessions.idempotency import exec_once
from warren.sessions.long_values import LongList, LongObject, LongText
from warren.sessions.operations.call import Call, Handler, Values
from warren.sessions.operations.code_artifacts import CellArtifacts
from warren.sessions.operations.commands import EVENTS, foreground
from warren.sessions.output_events import Events, Lines, OutputEvent, close_source, with_keepalives
from warren.sessions.refused_process import RefusedProcess, refused_result
from warren.sessions.request_context import keep_secret, note, note_end
from warren.sessions.schemas import CodeBody, ContextBody, ContextList, ContextView, ExecutionView

_SHORT: Final = 64 * 1024
_TAIL: Final = 4096
_NO_PROCESS: Final = (Reason.REFUSED, Reason.SANDBOX_LOST)


# -- contexts


async def create_context(call: Call, body: ContextBody | None) -> Values:
    """Answers when the interpreter is ready. It lives until it is deleted, was idle for too long, or its session ends,
    also over a restart of the server."""
    body = body or ContextBody.model_validate({})
    created = await call.context.contexts.create(
        call.sandbox,
        call.session,
        body.language,
        cwd=body.cwd,
        env=body.env,
        idle_s=body.idle_timeout_s,
        image=_image(call),
    )
    return context_view(created)


async def list_contexts(call: Call) -> Values:
    """Those that were created, and the default ones that cells have started. Looking does not count as use."""
    return {"contexts": [context_view(context) for context in await call.context.contexts.list(call.sandbox)]}


async def delete_context(call: Call) -> None:
    """Ends its interpreter and everything that its code has started."""
    await call.context.contexts.delete(call.sandbox, call.context_id)


async def restart_context(call: Call) -> Values:
    """The same context with nothing in it: a cell that runs is lost, its id and settings stay."""
    contexts = call.context.contexts
    return context_view(await contexts.restart(call.sandbox, call.session, call.context_id, _image(call)))


async def interrupt_context(call: Call) -> Values:
    """As Ctrl-C does: the cell that runs ends with an error, its context keeps what it holds. Without a running cell
    nothing happens."""
    return context_view(await call.context.contexts.interrupt(call.sandbox, call.context_id))


def _image(call: Call) -> str:
    return call.sessions.image_of(call.session)


# -- cells


@dataclass(slots=True)
class _Cell:
    """A cell that is to run; `with_keeper` adds the keeper to its `command`."""

    context_id: str
    language: Language
    command: Command
    code: str
    env: dict[str, str]

    def execution(self, cell_id: str) -> CellExecution:
        return CellExecution(cell_id, self.context_id, self.language.name, self.command.timeout_s)

    def request(self, session: Session) -> bytes:
        keep_secret(session.env.values())
        return cell_request(session, self.context_id, self.code, self.env)


def _cell_of(call: Call, body: CodeBody) -> _Cell:
    context_id, language = context_and_language(body.context, body.language)
    timeout_s = call.context.limited_timeout(body.timeout_s)
    note(context=context_id)
    command = cell_command(context_id, language, body.code, body.env, timeout_s)
    return _Cell(context_id, language, command, body.code, body.env)


async def run_code(call: Call, body: CodeBody) -> Values:
    """Runs a cell to its end and answers with the execution. Cells of one context wait for each other.

    What the code raises is an `error` in the execution, not an error of the request. As a stream
    (`Accept: text/event-stream`) it answers with the events `started`, `stdout`, `stderr`, `result`, `error` and `end`.
    The cell is interrupted if the caller disconnects, unless the caller gave an Idempotency-Key. A WebSocket at the
    same address takes the body as its first message, and `{"type": "interrupt"}` after it.
    """
    artifacts = CellArtifacts(call, body)
    execution = await run_to_end(call, body)
    for result in execution.results:
        await artifacts.take(execution.id, result)
    return {**execution_view(execution), **await artifacts.view()}


async def run_to_end(call: Call, body: CodeBody) -> CellExecution:
    cell = _cell_of(call, body)
    if call.key:
        return await _run_once(call, cell)
    contexts, image = call.context.contexts, partial(_image, call)
    async with call.using():
        sandbox, request = call.sandbox, cell.request(call.session)
        for again in (False, True):
            cell_id = new_cell_id()
            try:
                keeper = await contexts.keeper_of(sandbox, call.session, cell.context_id, image, look=again)
                result = await sandbox.exec(with_keeper(cell.command, keeper), request, process_id=cell_id)
            except CommandRefused as exc:
                result = refused_result(exc)
            except BaseException:
                await _forget(sandbox, cell_id)
                raise
            try:
                if check_started(result):
                    return await _execution_of(contexts, sandbox, cell.execution(cell_id), result)
            finally:
                if result.reason not in _NO_PROCESS:
                    contexts.forget_later(sandbox, cell_id)
    raise _gone(cell)


async def _run_once(call: Call, cell: _Cell) -> CellExecution:
    session = await call.sessions.get(call.tenant, call.session_id)
    contexts = call.context.contexts

    async def prepare(sandbox: Sandbox, command: Command) -> Command:
        image = partial(call.sessions.image_of, session)
        return with_keeper(command, await contexts.keeper_of(sandbox, session, cell.context_id, image, look=True))

    try:
        result = await exec_once(
            call.sessions, call.tenant, call.session_id, cell.command, cell.request(session), call.key, prepare
        )
    except CommandRefused as exc:  # the policy does not allow the interpreter
        result = refused_result(exc)
    if not check_started(result):
        raise _gone(cell)
    async with call.using():
        return await _execution_of(contexts, call.sandbox, cell.execution(result.process_id), result)


def _gone(cell: _Cell) -> ContextLost:
    return ContextLost(f"the context {cell.context_id} ended when the cell was to begin", remedy="send the cell again")


async def _forget(sandbox: Sandbox, cell_id: str) -> None:
    with anyio.CancelScope(shield=True), contextlib.suppress(WarrenError):
        await sandbox.forget(cell_id)


async def _execution_of(
    contexts: Contexts, sandbox: Sandbox, execution: CellExecution, result: ExecResult
) -> CellExecution:
    reader, pace = CellReader(), Pace()
    if result.truncated and result.reason not in _NO_PROCESS:  # there was no room for all of it: take what is short
        execution.room = SHORT_BYTES
        await _read_again(await sandbox.process(result.process_id), execution, reader)
    else:
        for _ in read_execution(execution, reader, _stdout_of(result.written)):
            await pace.give_way()
    lost = await _why_lost(contexts, sandbox, execution, reader, result)
    execution.close(reader, result, result.stderr if not reader.ended else "", lost)
    return execution


async def _read_again(process: Process, execution: CellExecution, reader: CellReader) -> None:
    pace, source = Pace(), process.output()
    try:
        async for chunk in source:
            if chunk.stream is OutputStream.STDOUT:
                for event in reader.events(chunk.data):
                    if event is not None:
                        execution.add(event)
                    await pace.give_way()
    finally:
        await close_source(source)


async def _why_lost(
    contexts: Contexts,
    sandbox: Sandbox,
    execution: CellExecution,
    reader: CellReader,
    ended: ExecResult,
    *,
    is_own: bool = True,
) -> str | None:
    """Returns why the cell's context is gone; None if it lives. `is_own`: this request has started the cell, and its
    caller is the one who learns of the loss."""
    if not _has_lost(reader, ended):
        return None
    if not is_own:
        return await contexts.why_lost(sandbox, execution.context_id)
    if reader.lost is None and ended.reason is Reason.TIMEOUT:
        return await contexts.end_unheeding(sandbox, execution.id, execution.context_id)
    return await contexts.note_lost(sandbox, execution.context_id)


def _has_lost(reader: CellReader, ended: ExecResult) -> bool:
    if ended.reason is Reason.TIMEOUT and ended.signal == signal.SIGKILL and reader.begun and not reader.ended:
        return True  # nothing has answered the interrupt
    return reader.lost is not None or (ended.reason is Reason.EXITED and ended.exit_code == CELL_LOST)


def _stdout_of(written: CommandOutput) -> Iterator[bytes]:
    """Yields the bytes that the cell's program wrote. An answer that was kept for a key has them as text."""
    found = False
    for piece in written.pieces():
        found = True
        if piece.stream != STDERR:
            yield piece.data
    if not found:
        exact = "".join(written.base64_if_broken(Shown.STDOUT))
        yield base64.b64decode(exact) if exact else written.text(Shown.STDOUT).encode()


# -- events


async def stream_code(call: Call, body: CodeBody) -> Events:
    artifacts = CellArtifacts(call, body)
    async with started_cell(call, body) as (process, execution):
        on_result = partial(artifacts.take, execution.id)
        async for event in cell_events(call, process, execution, CellReader(), on_result=on_result):
            if event is not None and event.kind == "end":
                event = event._replace(values={**event.values, **await artifacts.view()})
            yield event


@contextlib.asynccontextmanager
async def started_cell(
    call: Call, body: CodeBody, beginning: Beginning = PLAIN, *, look: bool = True
) -> AsyncIterator[tuple[Process, CellExecution]]:
    """Runs a cell for the time of a `with` block, then interrupts it. Without `look` a context that is remembered is
    taken for granted; if it is gone nothing has run, and `cell_events` raises ContextLost."""
    call.check_streamable()
    cell, cell_id = _cell_of(call, body), new_cell_id()
    async with call.using():
        try:
            keeper = await call.context.contexts.keeper_of(
                call.sandbox, call.session, cell.context_id, partial(_image, call), look=look, beginning=beginning
            )
        except CommandRefused as exc:
            yield RefusedProcess(refused_result(exc)), cell.execution(cell_id)
            return
        command, request = with_keeper(cell.command, keeper), cell.request(call.session)
        execution = cell.execution(cell_id)
        async with foreground(
            call.sandbox, command, request, process_id=cell_id, is_over=lambda: execution.reason != "running"
        ) as process:
            yield process, execution
        if execution.reason != "running":
            call.context.contexts.forget_later(call.sandbox, cell_id)


async def cell_events(
    call: Call,
    process: Process,
    execution: CellExecution,
    reader: CellReader,
    *,
    is_own: bool = True,
    on_result: Callable[[CodeResult], Awaitable[None]] | None = None,
    keepalive_s: float | None = None,
    line_s: float = 0.0,
) -> Events:
    """Yields the events of a cell, from its beginning until it has ended. `is_own`: this request has started it.
    `line_s`: how long text that does not end a line waits for the rest of it."""
    pace, said, at, lines = Pace(), b"", 0, Lines(line_s)
    silence_s = keepalive_s or call.context.keepalive_s
    yield OutputEvent(
        "started", {"id": execution.id, "context_id": execution.context_id, "language": execution.language}
    )
    async for chunk in with_keepalives(process.output(), lambda: lines.left_s(silence_s)):
        if chunk is None:
            yield lines.take()
            continue
        if chunk.offset != at:
            reader.break_off()
        at = chunk.offset + len(chunk.data)
        if chunk.stream is OutputStream.STDERR:
            said = (said + chunk.data)[-_TAIL:]
            continue
        for event in reader.events(chunk.data):
            if event is not None and event.kind != "begin":
                is_long = event.kind == "result" and event.size > _SHORT
                if on_result is not None and event.kind == "result":
                    await on_result(event.values)
                shown = OutputEvent(event.kind, _long_result(event.values) if is_long else event.values)
                for ready in lines.add(shown):
                    yield ready
            await pace.give_way()
    for last in reader.finish():
        for ready in lines.add(OutputEvent(last.kind, last.values)):
            yield ready
    if (rest := lines.take()) is not None:
        yield rest
    ended = await process.ended()
    if is_own:
        note_end(ended)
    if not check_started(ended):
        raise ContextLost(
            f"the context {execution.context_id} ended when the cell was to begin", remedy="send the cell again"
        )
    lost = await _why_lost(call.context.contexts, call.sandbox, execution, reader, ended, is_own=is_own)
    execution.close(reader, ended, said.decode(errors="replace"), lost)
    if execution.error is not None:
        yield OutputEvent("error", _error_view(execution) or {})
    yield OutputEvent("end", end_of_cell(execution))


# -- executions of before


async def get_execution(call: Call) -> Values:
    """From the beginning of the cell on: of one that runs (`reason`: `running`), what has come so far.

    An ended cell can be read as long as nobody has had its result, because the server was stopped while it ran.
    """
    info, execution = await _find_cell(call)
    require_room(info.bytes_total)
    process, reader, said = await call.sandbox.process(info.id), CellReader(), b""
    if info.bytes_total:
        pace, source = Pace(), process.output()
        try:
            async for chunk in source:
                said = await _take(chunk, reader, execution, said, pace)
                if chunk.offset + len(chunk.data) >= info.bytes_total:
                    break
        finally:
            await close_source(source)
    if info.running:
        execution.note(reader)
        execution.duration_ms = round(info.started_s_ago * 1000, 3)
        return execution_view(execution)
    ended = await process.ended()
    lost = await _why_lost(call.context.contexts, call.sandbox, execution, reader, ended, is_own=False)
    execution.close(reader, ended, said.decode(errors="replace"), lost)
    return execution_view(execution)


async def _take(chunk: Chunk, reader: CellReader, execution: CellExecution, said: bytes, pace: Pace) -> bytes:
    if chunk.stream is OutputStream.STDERR:
        return (said + chunk.data)[-_TAIL:]
    for event in reader.events(chunk.data):
        if event is not None:
            execution.add(event)
        await pace.give_way()
    return said


async def follow_execution(call: Call) -> Events:
    info, execution = await _find_cell(call)
    process = await call.sandbox.process(info.id)
    async for event in cell_events(call, process, execution, CellReader(), is_own=False):
        yield event


async def _find_cell(call: Call) -> tuple[ProcessStatus, CellExecution]:
    for info in await call.sandbox.processes():
        if info.id == call.execution_id and (context_id := context_of_cell(info)):
            language = language_of(context_id)
            if language is not None:
                return info, CellExecution(info.id, context_id, language.name)
    raise ProcessNotFound(
        f"there is no execution {call.execution_id[:80]!r}", remedy="its result was read, or its session is another one"
    )


# -- how it is shown


def execution_view(execution: CellExecution) -> Values:
    is_long = execution.size > _SHORT
    logs: dict[str, Any] = {"stdout": execution.stdout, "stderr": execution.stderr}
    results: Any = execution.results
    if is_long:
        logs = LongObject({name: LongList(texts) for name, texts in logs.items()})
        results = LongList(_long_result(result) for result in results)
    return {
        "id": execution.id,
        "context_id": execution.context_id,
        "language": execution.language,
        "results": results,
        "logs": logs,
        **_ending(execution),
    }


def end_of_cell(execution: CellExecution) -> Values:
    """The execution without results and logs."""
    shown = {"id": execution.id, "context_id": execution.context_id, "language": execution.language}
    return shown | _ending(execution)


def _ending(execution: CellExecution) -> Values:
    return {
        "error": _error_view(execution),
        "execution_count": execution.execution_count,
        "reason": execution.reason,
        "context_lost": execution.context_lost,
        "duration_ms": execution.duration_ms,
        "truncated": execution.truncated,
        "dropped": {"text": execution.dropped_text, "events": execution.dropped_events},
    }


def _error_view(execution: CellExecution) -> Values | None:
    error = execution.error
    return {"name": error.name, "value": error.value, "traceback": error.traceback} if error else None


def _long_result(result: CodeResult) -> LongObject:
    return LongObject(
        {
            name: LongText(partial(_split, value)) if isinstance(value, str) and len(value) > _SHORT else value
            for name, value in result.items()
        }
    )


def _split(text: str) -> Iterator[str]:
    for begin in range(0, len(text), _SHORT):
        yield text[begin : begin + _SHORT]


HANDLERS = (
    Handler("create_context", create_context, body=ContextBody, result=ContextView),
    Handler("list_contexts", list_contexts, result=ContextList),
    Handler("delete_context", delete_context),
    Handler("restart_context", restart_context, result=ContextView),
    Handler("interrupt_context", interrupt_context, result=ContextView),
    Handler(
        "run_code",
        run_code,
        stream_code,
        body=CodeBody,
        result=ExecutionView,
        other_results={200: EVENTS},
        headers=("accept", "idempotency_key"),
    ),
    Handler(
        "get_execution",
        get_execution,
        follow_execution,
        result=ExecutionView,
        other_results={200: EVENTS},
        headers=("accept",),
    ),
)
