"""Connect's protocol in JSON, as E2B's clients speak it: remote procedure calls as POST requests.

A unary call has one JSON object each way. A stream has frames: a byte of flags, four bytes of length (the most
significant first), and JSON. The frame with END ends the answer, and has the error if there was one; the status of a
stream is always 200.
"""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Send
from starlette.types import Scope as RequestScope

from warren.e2b.errors import ConnectError, E2bError, as_connect_error, is_gone
from warren.e2b.routes import E2bCall, Route
from warren.http.problems import internal_problem, is_disconnect, read_json_body
from warren.model.access import Scope
from warren.model.errors import WarrenError
from warren.pacing import Pace
from warren.sessions.output_events import close_source

Message = dict[str, Any]
_HEAD: Final = struct.Struct(">BI")
END: Final = 2
MAX_MESSAGE: Final = 4 * 1024 * 1024
STREAM_TYPE: Final = "application/connect+json"
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def unary(path: str, name: str, scope: Scope, call: Callable[[E2bCall, Message], Awaitable[Message]]) -> Route:
    async def run(request: E2bCall) -> Response:
        return JSONResponse(await call(request, await request.json()))

    return Route("POST", path, name, scope, run, is_call=True)


def server_stream(
    path: str, name: str, scope: Scope, call: Callable[[E2bCall, Message], AsyncIterator[Message]]
) -> Route:
    """The call's messages are sent as they come, until the client leaves. If the sandbox is gone the connection is
    dropped: clients take an end for the end of their command."""

    async def run(request: E2bCall) -> Response:
        return _StreamAnswer(request, call)

    return Route("POST", path, name, scope, run, is_call=True)


def client_stream(
    path: str, name: str, scope: Scope, call: Callable[[E2bCall, AsyncIterator[Message]], Awaitable[Message]]
) -> Route:
    async def run(request: E2bCall) -> Response:
        messages = read_messages(request.stream())
        try:
            answer = await call(request, messages)
        except (ConnectError, WarrenError) as exc:
            if is_gone(exc):
                raise
            return Response(
                _end(exc if isinstance(exc, ConnectError) else as_connect_error(exc)), 200, None, STREAM_TYPE
            )
        finally:
            await close_source(messages)
        return Response(_frame(0, answer) + _end(None), 200, None, STREAM_TYPE)

    return Route("POST", path, name, scope, run, streams=True, is_call=True)


async def read_messages(pieces: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    """The messages of a request. Raises ConnectError for what is not framed properly."""
    data = bytearray()
    async for piece in pieces:
        data += piece
        while len(data) >= _HEAD.size:
            flags, length = _HEAD.unpack_from(data)
            if flags & ~END or length > MAX_MESSAGE:
                raise ConnectError("invalid_argument", "a frame is compressed or too long: send plain JSON in frames")
            if len(data) < _HEAD.size + length:
                break
            body = bytes(data[_HEAD.size : _HEAD.size + length])
            del data[: _HEAD.size + length]
            if flags & END:
                return
            yield await _read_message(body)
    if data:
        raise ConnectError("invalid_argument", "the body ends in the middle of a frame")


async def _read_message(body: bytes) -> Message:
    values = await read_json_body(body) if body else {}
    if not isinstance(values, dict):
        raise ConnectError("invalid_argument", "a message must be a JSON object")
    return values


class _StreamAnswer(Response):
    def __init__(self, request: E2bCall, call: Callable[[E2bCall, Message], AsyncIterator[Message]]) -> None:
        self._request, self._call = request, call

    async def __call__(self, scope: RequestScope, receive: Receive, send: Send) -> None:
        head = [(b"content-type", STREAM_TYPE.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        error: ConnectError | None = None
        try:
            await self._send_messages(receive, send)
        except ConnectError as exc:
            error = exc
        except E2bError as exc:
            error = ConnectError("invalid_argument" if exc.status == 400 else "unknown", exc.message)
        except WarrenError as exc:
            if is_gone(exc):
                raise ClientDisconnect from exc  # drops the connection
            error = as_connect_error(exc)
        except Exception as exc:
            if is_disconnect(exc):
                raise
            internal_problem(exc)
            error = ConnectError("internal", "something went wrong inside the server")
        await send({"type": "http.response.body", "body": _end(error), "more_body": False})

    async def _send_messages(self, receive: Receive, send: Send) -> None:
        request = self._request
        messages = [message async for message in read_messages(request.stream())]
        if len(messages) != 1:
            raise ConnectError("invalid_argument", "the request must have one message")
        source, pace = self._call(request, messages[0]), Pace()
        task = asyncio.current_task()
        assert task is not None
        leaving = asyncio.create_task(_cancel_when_left(receive, task), name="disconnect watch")
        try:
            async for message in source:
                await send({"type": "http.response.body", "body": _frame(0, message), "more_body": True})
                await pace.give_way()
        except asyncio.CancelledError:
            if leaving.done() and not leaving.cancelled():
                task.uncancel()
                raise ClientDisconnect from None
            raise
        finally:
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await close_source(source)


async def _cancel_when_left(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


def _frame(flags: int, message: Message) -> bytes:
    body = _encode(message).encode()
    return _HEAD.pack(flags, len(body)) + body


def _end(error: ConnectError | None) -> bytes:
    return _frame(END, {"error": {"code": error.code, "message": error.message}} if error else {})
