"""WebSockets: commands, attaching to them, terminals, cells of code.

The server sends JSON texts: `started`, `output`, `result`, `error`, `keepalive`; a terminal's output comes as
binary messages instead. The client sends binary messages for standard input, or JSON texts: `stdin`
(`data` or `data_base64`), `close_stdin`, `signal`, `resize` (`rows`, `columns`), `kill`. Of a terminal the server also
sends `size`, when one of several clients has changed it, and `gap`, the offset at which the output goes on after a part
that was not kept. A client that opened a terminal with `window` sends `shown`, the offset up to which it has shown the
output; the server sends no more than `window` bytes beyond it.

Two tasks per socket: one reads the process and waits until the client has taken what it was sent, the other reads
the client and waits until the process has taken its input. The task that ends first ends the other. When a
client disconnects, the command of `exec` ends; a process that it was attached to goes on, and it may come back.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import anyio
from fastapi import Query
from pydantic import BaseModel
from starlette.websockets import WebSocket, WebSocketDisconnect

from warren.http.context import Context, Ctx, Runner, new_router
from warren.http.event_streams import error_values
from warren.http.request import request_of
from warren.interfaces.sandbox import Process
from warren.model.code import CellExecution, CellReader
from warren.model.errors import InvalidRequest, PortClosed, PortFailed, RequestTimedOut, WarrenError
from warren.model.operations import OutputStream, TerminalSize
from warren.model.preview import read_port
from warren.sessions.long_values import LongObject, json_pieces
from warren.sessions.operations.call import Call
from warren.sessions.operations.code import cell_events, started_cell
from warren.sessions.operations.commands import foreground
from warren.sessions.operations.sockets import apply_message, number_in, open_terminal, read_message
from warren.sessions.output_events import Encoder, Events, with_keepalives
from warren.sessions.request_context import note_end
from warren.sessions.schemas import CodeBody, ExecBody, data_of, end_view
from warren.sessions.terminal_viewers import TerminalViewer
from warren.sessions.validation import validated

router = new_router(prefix="/api/sessions/{session_id}")

B = TypeVar("B", bound=BaseModel)
_RecordUse = Callable[[], Awaitable[None]]
_FIRST_MESSAGE_S: Final = 30.0
_TCP_BUFFER: Final = 256 * 1024
_RECORD_S: Final = 1.0
_SHOWN_S: Final = 30.0
_SIZES_REST_S: Final = 0.1
EOF: Final = "eof"
_CLOSE_BASE: Final = 4000  # a close code is this plus the HTTP status


@router.websocket("/exec")
async def exec_socket(socket: WebSocket, session_id: str, context: Ctx, tenant: Runner, encoding: str = "text") -> None:
    """The first message says what to run, as the body of POST /exec does."""
    async with _send_errors(socket):
        Encoder(encoding)
        body = await _first_message(socket, ExecBody)
        body.timeout_s = context.limited_timeout(body.timeout_s)
        stdin = data_of(body.stdin, body.stdin_base64)
        _refuse_saving(bool(body.save_artifacts), "exec")
        async with context.sessions.using(tenant, session_id) as (session, sandbox):
            command = body.to_command(session)
            async with foreground(sandbox, command, None) as process:
                if stdin:
                    await process.write(stdin)
                await _bridge(socket, process, context, encoding, 0, record_use=None)


@router.websocket("/code")
async def code_socket(socket: WebSocket, session_id: str, context: Ctx, tenant: Runner) -> None:
    """The first message says what to run, as the body of POST /code does; the answers are the events of its stream."""
    async with _send_errors(socket):
        body = await _first_message(socket, CodeBody)
        _refuse_saving(bool(body.save_artifacts) or body.save_results, "code")
        call = Call(context, tenant, session_id)
        async with started_cell(call, body) as (process, execution):
            reader = CellReader()
            sender = asyncio.create_task(_send_events(socket, cell_events(call, process, execution, reader)))
            receiver = asyncio.create_task(_apply_interrupts(socket, call, process, execution, reader))
            await _until_one_ends(sender, receiver)


def _refuse_saving(is_asked_for: bool, route: str) -> None:
    if is_asked_for:
        remedy = f"POST …/{route} does, or POST …/artifacts afterwards"
        raise InvalidRequest("a WebSocket saves no artifacts", remedy=remedy)


async def _send_events(socket: WebSocket, events: Events) -> None:
    async with contextlib.aclosing(events):
        async for event in events:
            if event is None:
                await _send(socket, "keepalive", {})
            else:
                await _send(socket, event.kind, event.values)


async def _apply_interrupts(
    socket: WebSocket, call: Call, process: Process, execution: CellExecution, reader: CellReader
) -> None:
    while True:
        received = await socket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received.get("code", 1006))
        kind = read_message(received.get("text") or "{}").get("type")
        if kind != "interrupt":
            raise InvalidRequest(f"there is no message {str(kind)[:80]!r}", remedy='{"type": "interrupt"}')
        if reader.begun:
            await call.context.contexts.interrupt(call.sandbox, execution.context_id)
        else:  # it waits for another cell, which is not to be interrupted
            await process.kill()


@router.websocket("/processes/{process_id}/attach")
async def attach_socket(
    socket: WebSocket,
    session_id: str,
    process_id: str,
    context: Ctx,
    tenant: Runner,
    offset: Annotated[int, Query(ge=0, lt=1 << 62)] = 0,
    encoding: str = "text",
) -> None:
    async with _send_errors(socket):
        Encoder(encoding)
        async with context.sessions.using(tenant, session_id, counts=False) as (_, sandbox):
            process = await sandbox.process(process_id)
            record_use = _use_recorder(context, tenant, session_id)
            with _viewed(context, session_id, process_id) as terminal:
                await _bridge(socket, process, context, encoding, offset, record_use, terminal)


@router.websocket("/terminal")
async def terminal_socket(
    socket: WebSocket,
    session_id: str,
    context: Ctx,
    tenant: Runner,
    process_id: Annotated[str, Query(description="Of a terminal to come back to")] = "",
    offset: Annotated[int, Query(ge=0, lt=1 << 62)] = 0,
    rows: Annotated[int | None, Query(description="24, or as many as the terminal has that is there")] = None,
    columns: Annotated[int | None, Query(description="80, or as many as the terminal has that is there")] = None,
    command: str = "",
    cwd: str = "",
    window: Annotated[int, Query(ge=0, lt=1 << 30, description="Bytes on their way; 0 if nothing is acknowledged")] = 0,
    existing: Annotated[bool, Query(description="Whether to start none if it is not there")] = False,
) -> None:
    """A new terminal with a shell (or `command`) in it, or one that is there, from an offset of its output on."""
    async with _send_errors(socket):
        size = _size_of(rows, columns)
        async with context.sessions.using(tenant, session_id, counts=False) as (session, sandbox):
            process = await open_terminal(
                session, sandbox, size, process_id=process_id, command=command, cwd=cwd, existing_only=existing
            )
            record_use = _use_recorder(context, tenant, session_id)
            await record_use()
            with _viewed(context, session_id, process.id, _Window(window, offset)) as terminal:
                if size is not None:
                    terminal.resized(size)
                await _bridge(socket, process, context, "", offset, record_use, terminal)


def _size_of(rows: int | None, columns: int | None) -> TerminalSize | None:
    usual = TerminalSize()
    if rows is columns is None:
        return None
    return TerminalSize(usual.rows if rows is None else rows, usual.columns if columns is None else columns)


class _Window:
    """Bounds the output that is on its way to a client that says what it has shown. A size of 0 bounds nothing."""

    def __init__(self, size: int, offset: int) -> None:
        self._size = size
        self._shown = offset
        self._moved = asyncio.Event()

    def note_shown(self, offset: int) -> None:
        self._shown = max(self._shown, offset)
        self._moved.set()

    def skip(self, size: int) -> None:
        self._shown += size

    async def wait_for_room(self, sent: int) -> None:
        """Waits until less than the window is on its way. Raises RequestTimedOut if the client shows nothing for too
        long."""
        while self._size and sent - self._shown >= self._size:
            self._moved.clear()
            try:
                async with asyncio.timeout(_SHOWN_S):
                    await self._moved.wait()
            except TimeoutError:
                raise RequestTimedOut(
                    f"nothing of the output was shown for {_SHOWN_S:g} s", remedy="come back from an offset of it"
                ) from None


@dataclass(frozen=True, slots=True)
class _Terminal:
    """What a socket needs for a process that may have a terminal."""

    viewer: TerminalViewer
    resized: Callable[[TerminalSize], None]
    window: _Window

    async def send_sizes(self, socket: WebSocket) -> None:
        while True:
            size = await self.viewer.next_size()
            await _send(socket, "size", {"rows": size.rows, "columns": size.columns})
            await asyncio.sleep(_SIZES_REST_S)  # every change goes to all viewers: quick changes go as one


@contextlib.contextmanager
def _viewed(context: Context, session_id: str, process_id: str, window: _Window | None = None) -> Iterator[_Terminal]:
    viewers = context.terminal_viewers
    with viewers.viewing(session_id, process_id) as viewer:

        def resized(size: TerminalSize) -> None:
            viewers.resized(session_id, process_id, size, viewer)

        yield _Terminal(viewer, resized, window or _Window(0, 0))


@router.websocket("/forward/{port}")
async def forward_socket(socket: WebSocket, session_id: str, port: str, context: Ctx, tenant: Runner) -> None:
    """One TCP connection to a port of the sandbox: binary messages are its bytes. The text `eof` ends one direction."""
    number = read_port(port)
    with context.port_connections.counted(session_id):
        async with context.sessions.using(tenant, session_id, counts=False) as (_, sandbox):
            try:
                connected = await sandbox.dial(number)
            except (PortClosed, PortFailed):
                request_of(socket).from_sandbox = True
                raise
            reader, writer = await asyncio.open_connection(sock=connected, limit=_TCP_BUFFER)
            record_use = _use_recorder(context, tenant, session_id)
            try:
                await socket.accept()
                await _relay_tcp(socket, reader, writer, record_use)
                await socket.close(1000)
            except (WebSocketDisconnect, RuntimeError, OSError):
                return  # one side has gone
            finally:
                writer.transport.abort()


async def _relay_tcp(
    socket: WebSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record_use: _RecordUse
) -> None:
    """Returns when both directions have ended; raises when one side goes away."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_tcp_to_socket(reader, socket))
        tasks.create_task(_socket_to_tcp(socket, writer, record_use))


async def _tcp_to_socket(reader: asyncio.StreamReader, socket: WebSocket) -> None:
    while data := await reader.read(_TCP_BUFFER):
        await socket.send_bytes(data)
    await socket.send_text(EOF)


async def _socket_to_tcp(socket: WebSocket, writer: asyncio.StreamWriter, record_use: _RecordUse) -> None:
    used = 0.0
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        if message.get("text") == EOF:
            writer.write_eof()
            return
        writer.write(message.get("bytes") or b"")
        await writer.drain()
        if (now := time.monotonic()) - used > _RECORD_S:
            used = now
            await record_use()


def _use_recorder(context: Context, tenant: str, session_id: str) -> _RecordUse:
    async def record_use() -> None:
        await context.sessions.uses.record(tenant, session_id)

    return record_use


@contextlib.asynccontextmanager
async def _send_errors(socket: WebSocket) -> Any:
    """Accepts the socket; sends an error as a message before it closes the socket."""
    await socket.accept()
    try:
        try:
            yield
            code, why = 1000, ""
        except WarrenError as exc:
            await _send(socket, "error", error_values(exc))
            code, why = _CLOSE_BASE + exc.http_status, exc.code
        await socket.close(code, why)
    except (WebSocketDisconnect, RuntimeError, OSError):
        return  # the client has closed it


async def _first_message(socket: WebSocket, model: type[B]) -> B:
    try:
        async with asyncio.timeout(_FIRST_MESSAGE_S):
            values = read_message(await socket.receive_text())
    except TimeoutError:
        raise InvalidRequest(
            f"no command came within {_FIRST_MESSAGE_S:g} s", remedy="send it as the first message, as JSON"
        ) from None
    except KeyError:
        raise InvalidRequest("the first message must be a text: the command as JSON") from None
    return validated(model, values)


async def _bridge(
    socket: WebSocket,
    process: Process,
    context: Context,
    encoding: str,
    offset: int,
    record_use: _RecordUse | None,
    terminal: _Terminal | None = None,
) -> None:
    size = terminal.viewer.size if terminal is not None else None
    shown = {"rows": size and size.rows, "columns": size and size.columns} if terminal is not None else {}
    await _send(socket, "started", {"process_id": process.id, "offset": offset, **shown})
    tasks = [
        asyncio.create_task(_send_output(socket, process, context, encoding, offset, terminal)),
        asyncio.create_task(_apply_messages(socket, process, record_use, terminal)),
    ]
    if terminal is not None:
        tasks.append(asyncio.create_task(terminal.send_sizes(socket)))
    await _until_one_ends(*tasks)


async def _until_one_ends(*tasks: asyncio.Task[None]) -> None:
    """Waits until one task ends, cancels the others, and raises what one of them has raised."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        # Even if this is cancelled: they must not use the socket and the process after it returns.
        with anyio.CancelScope(shield=True):
            await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (exc := task.exception()) is not None:
            raise exc


async def _send_output(
    socket: WebSocket, process: Process, context: Context, encoding: str, offset: int, terminal: _Terminal | None
) -> None:
    encoder = Encoder(encoding or "text")
    async for chunk in with_keepalives(process.output(offset), context.keepalive_s):
        if chunk is None:
            await _send(socket, "keepalive", {})
        elif terminal is not None and chunk.stream is OutputStream.TERMINAL and not encoding:
            if chunk.offset > offset:
                terminal.window.skip(chunk.offset - offset)
                await _send(socket, "gap", {"offset": chunk.offset})
            await socket.send_bytes(chunk.data)
            offset = chunk.offset + len(chunk.data)
            await terminal.window.wait_for_room(offset)
        else:
            await _send(socket, "output", encoder.show(chunk))
    result = await process.ended()
    note_end(result)
    await _send(socket, "result", end_view(result))


async def _apply_messages(
    socket: WebSocket, process: Process, record_use: _RecordUse | None, terminal: _Terminal | None
) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        values = {} if message.get("bytes") is not None else read_message(message["text"])
        if terminal is not None and values.get("type") == "shown":  # looking is not use
            terminal.window.note_shown(number_in(values, "offset"))
            continue
        if record_use is not None:
            await record_use()
        if (data := message.get("bytes")) is not None:
            await process.write(data)
            continue
        await apply_message(process, values)
        if terminal is not None and values["type"] == "resize":
            terminal.resized(TerminalSize(values["rows"], values["columns"]))


async def _send(socket: WebSocket, kind: str, values: dict[str, Any]) -> None:
    message = {"type": kind, **values}
    await socket.send_text(await _long_text(message) if isinstance(values, LongObject) else json.dumps(message))


async def _long_text(message: dict[str, Any]) -> str:
    text = bytearray()
    async for piece in json_pieces(message):
        text += piece
    return text.decode()
