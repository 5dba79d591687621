"""WebSockets: commands, attaching to them, terminals.

The server sends JSON texts: `started`, `output`, `result`, `error`, `keepalive`; a terminal's output comes as
binary messages instead. The client sends binary messages for standard input, or JSON texts: `stdin`
(`data` or `data_base64`), `close_stdin`, `signal`, `resize` (`rows`, `columns`), `kill`.

Two tasks per socket: one reads the process and waits until the client has taken what it was sent, the other reads
the client and waits until the process has taken its input. Whichever ends first ends the other. A client that
goes away ends a command of `exec`; what it was only attached to goes on, and it may come back.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import anyio
from fastapi import Query
from starlette.websockets import WebSocket, WebSocketDisconnect

from warren.http.context import Context, Ctx, Runner, new_router
from warren.http.event_streams import error_values
from warren.interfaces.sandbox import Process
from warren.model.errors import InvalidRequest, WarrenError
from warren.model.operations import Stream, TerminalSize
from warren.sessions.operations.commands import foreground
from warren.sessions.operations.sockets import apply_message, open_terminal, read_message
from warren.sessions.output_events import Encoder, with_keepalives
from warren.sessions.request_context import note_end
from warren.sessions.schemas import ExecBody, data_of, end_view
from warren.sessions.validation import validated

router = new_router(prefix="/api/sessions/{session_id}")

_FIRST_MESSAGE_S: Final = 30.0
_CLOSE_BASE: Final = 4000  # a close code is this plus the HTTP status


@router.websocket("/exec")
async def exec_socket(socket: WebSocket, session_id: str, context: Ctx, tenant: Runner, encoding: str = "text") -> None:
    """The first message says what to run, as the body of POST /exec does."""
    async with _told_errors(socket):
        Encoder(encoding)
        body = await _first_message(socket)
        body.timeout_s = context.limited_timeout(body.timeout_s)
        stdin = data_of(body.stdin, body.stdin_base64)
        async with context.sessions.using(tenant, session_id) as (session, sandbox):
            command = body.to_command(session)
            async with foreground(sandbox, command, None) as process:
                if stdin:
                    await process.write(stdin)
                await _bridge(socket, process, context, encoding, 0, noted=None)


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
    async with _told_errors(socket):
        Encoder(encoding)
        async with context.sessions.using(tenant, session_id, counts=False) as (_, sandbox):
            process = await sandbox.process(process_id)
            noted = _noting(context, tenant, session_id)
            await _bridge(socket, process, context, encoding, offset, noted)


@router.websocket("/terminal")
async def terminal_socket(
    socket: WebSocket,
    session_id: str,
    context: Ctx,
    tenant: Runner,
    process_id: Annotated[str, Query(description="Of a terminal to come back to")] = "",
    offset: Annotated[int, Query(ge=0, lt=1 << 62)] = 0,
    rows: int = 24,
    columns: int = 80,
    command: str = "",
    cwd: str = "",
) -> None:
    """A new terminal with a shell (or `command`) in it, or one that is there, from an offset of its output on."""
    async with _told_errors(socket):
        size = TerminalSize(rows, columns)
        async with context.sessions.using(tenant, session_id, counts=False) as (session, sandbox):
            process = await open_terminal(session, sandbox, size, process_id=process_id, command=command, cwd=cwd)
            noted = _noting(context, tenant, session_id)
            await noted()
            await _bridge(socket, process, context, "", offset, noted)


def _noting(context: Context, tenant: str, session_id: str) -> Callable[[], Awaitable[None]]:
    async def noted() -> None:
        await context.sessions.record_use(tenant, session_id)

    return noted


@contextlib.asynccontextmanager
async def _told_errors(socket: WebSocket) -> Any:
    """Accepts; an error is told in words before the socket is closed."""
    await socket.accept()
    try:
        try:
            yield
            code, why = 1000, ""
        except WarrenError as exc:
            await _say(socket, "error", error_values(exc))
            code, why = _CLOSE_BASE + exc.http_status, exc.code
        await socket.close(code, why)
    except (WebSocketDisconnect, RuntimeError, OSError):
        return  # it has gone away itself


async def _first_message(socket: WebSocket) -> ExecBody:
    try:
        async with asyncio.timeout(_FIRST_MESSAGE_S):
            values = read_message(await socket.receive_text())
    except TimeoutError:
        raise InvalidRequest(
            f"no command came within {_FIRST_MESSAGE_S:g} s", remedy="send it as the first message, as JSON"
        ) from None
    except KeyError:
        raise InvalidRequest("the first message must be a text: the command as JSON") from None
    return validated(ExecBody, values)


async def _bridge(
    socket: WebSocket,
    process: Process,
    context: Context,
    encoding: str,
    offset: int,
    noted: Callable[[], Awaitable[None]] | None,
) -> None:
    await _say(socket, "started", {"process_id": process.id, "offset": offset})
    talk = asyncio.create_task(_talk(socket, process, context, encoding, offset))
    listen = asyncio.create_task(_listen(socket, process, noted))
    tasks = [talk, listen]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (exc := task.exception()) is not None:
            raise exc


async def _talk(socket: WebSocket, process: Process, context: Context, encoding: str, offset: int) -> None:
    encoder = Encoder(encoding or "text")
    async for chunk in with_keepalives(process.output(offset), context.keepalive_s):
        if chunk is None:
            await _say(socket, "keepalive", {})
        elif chunk.stream is Stream.TERMINAL and not encoding:
            await socket.send_bytes(chunk.data)
        else:
            await _say(socket, "output", encoder.show(chunk))
    result = await process.wait()
    note_end(result)
    await _say(socket, "result", end_view(result))


async def _listen(socket: WebSocket, process: Process, noted: Callable[[], Awaitable[None]] | None) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        if noted is not None:
            await noted()
        if (data := message.get("bytes")) is not None:
            await process.write(data)
        else:
            await apply_message(process, read_message(message["text"]))


async def _say(socket: WebSocket, kind: str, values: dict[str, Any]) -> None:
    await socket.send_text(json.dumps({"type": kind, **values}))
