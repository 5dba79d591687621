"""Connect's protocol in JSON, as E2B's clients speak it: remote procedure calls as POST requests.

A unary call has one JSON object each way. A stream has frames: a byte of flags, four bytes of length (the most
significant first), and JSON. The frame with END ends the answer, and has the error if there was one; the status of a
stream is always 200.
"""

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Send
from starlette.types import Scope as RequestScope

from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.errors import ConnectError, E2bError, as_connect_error, gone_response, is_gone
from warren.http.problems import internal_problem, is_disconnect, read_json_body
from warren.kernel.pacing import Pace
from warren.model.e2b import sandbox_id_of
from warren.model.errors import WarrenError
from warren.sessions.output_events import close_source

Message = dict[str, Any]
_HEAD: Final = struct.Struct(">BI")
END: Final = 2
MAX_MESSAGE: Final = 4 * 1024 * 1024
STREAM_TYPE: Final = "application/connect+json"
_STREAM_HEAD: Final = [(b"content-type", STREAM_TYPE.encode()), (b"x-accel-buffering", b"no")]
_TIMEOUT: Final = "Connect-Timeout-Ms"
_MAX_DIGITS: Final = 12
_KEEPALIVE_S: Final = 90.0
_LAST_FRAME_S: Final = 1.0
_STOPPING: Final = "the server was stopped before the stream completed"
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def unary(call: Callable[[E2bCall, Message], Awaitable[Message]]) -> Run:
    async def run(request: E2bCall) -> Response:
        async with _deadline(request):
            return JSONResponse(await call(request, await request.json()))

    return run


def server_stream(
    call: Callable[[E2bCall, Message], AsyncIterator[Message | bytes]], keepalive: Message | None = None
) -> Run:
    """Sends the call's messages (bytes are encoded ones) as they come, until the client leaves or its deadline is over,
    and `keepalive` if nothing came for as long as the client says. If the sandbox is gone, or the server is being
    stopped, the end of the stream is an error: clients then ask whether the sandbox runs, and do not take the end for
    the end of their command."""

    async def run(request: E2bCall) -> Response:
        return _StreamAnswer(request, call, keepalive)

    return run


def client_stream(call: Callable[[E2bCall, AsyncIterator[Message]], Awaitable[Message]]) -> Run:
    async def run(request: E2bCall) -> Response:
        messages = read_messages(request.stream())
        try:
            async with _deadline(request):
                answer = await call(request, messages)
        except (ConnectError, E2bError, WarrenError) as exc:
            if is_gone(exc):
                raise
            return Response(_end(_as_connect_error(exc)), 200, None, STREAM_TYPE)
        finally:
            await close_source(messages)
        return Response(frame(answer) + _end(None), 200, None, STREAM_TYPE)

    return run


def timeout_of(request: E2bCall) -> float | None:
    """Returns the seconds after which the client wants the call to end; None: never."""
    text = request.header(_TIMEOUT)
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise ConnectError("invalid_argument", f"{_TIMEOUT} is {text[:40]!r}, it must be a number of milliseconds")
    return int(text) / 1000 or None


@contextlib.asynccontextmanager
async def _deadline(request: E2bCall) -> AsyncIterator[None]:
    limit = asyncio.timeout(timeout_of(request))
    try:
        async with limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise deadline_exceeded() from None
        raise


def deadline_exceeded() -> ConnectError:
    return ConnectError("deadline_exceeded", "the time that the client has set is over")


def stream_ended(session_id: str) -> ConnectError:
    """The end of a stream whose sandbox is gone, in E2B's words: clients look for them."""
    return ConnectError(
        "unavailable", f"the connection to sandbox {sandbox_id_of(session_id)} ended before the stream completed"
    )


async def read_messages(pieces: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    """Yields the messages of a request. Raises ConnectError for what is not framed properly."""
    data, pace = bytearray(), Pace()
    async for piece in pieces:
        data += piece
        while len(data) >= _HEAD.size:
            flags, length = _HEAD.unpack_from(data)
            if flags & ~END:
                raise ConnectError("invalid_argument", "a frame is compressed, or is none: send plain JSON in frames")
            if length > MAX_MESSAGE:
                raise ConnectError("invalid_argument", f"a message has up to {MAX_MESSAGE} bytes: send smaller pieces")
            if len(data) < _HEAD.size + length:
                break
            body = bytes(data[_HEAD.size : _HEAD.size + length])
            del data[: _HEAD.size + length]
            if flags & END:
                return
            yield await _read_message(body)
            await pace.give_way()
    if data:
        raise ConnectError("invalid_argument", "the body ends in the middle of a frame")


async def _read_one(request: E2bCall) -> Message:
    found: Message | None = None
    async for message in read_messages(request.stream()):
        if found is not None:
            raise ConnectError("invalid_argument", "the request must have one message, and has more")
        found = message
    if found is None:
        raise ConnectError("invalid_argument", "the request must have one message, and has none")
    return found


async def _read_message(body: bytes) -> Message:
    values = await read_json_body(body) if body else {}
    if not isinstance(values, dict):
        raise ConnectError("invalid_argument", "a message must be a JSON object")
    return values


class _StreamAnswer(Response):
    """One task sends the messages, and another waits for the client to leave, which ends the first."""

    def __init__(
        self,
        request: E2bCall,
        call: Callable[[E2bCall, Message], AsyncIterator[Message | bytes]],
        keepalive: Message | None,
    ) -> None:
        self._request, self._call, self._keepalive = request, call, keepalive

    async def __call__(self, scope: RequestScope, receive: Receive, send: Send) -> None:
        frames = _FrameSender(send)
        error: ConnectError | None = None
        try:
            await self._send_until_left(receive, frames)
        except (ConnectError, E2bError, WarrenError) as exc:
            if is_gone(exc) and not frames.begun:
                await gone_response(self._request.session_id)(scope, receive, send)
                return
            error = stream_ended(self._request.session_id) if is_gone(exc) else _as_connect_error(exc)
        except Exception as exc:
            if is_disconnect(exc):
                raise
            internal_problem(exc)
            error = ConnectError("internal", "something went wrong inside the server")
        except asyncio.CancelledError:
            if frames.begun:
                await frames.end_early(ConnectError("unavailable", _STOPPING))
            raise
        await frames.send(_end(error), last=True)

    async def _send_until_left(self, receive: Receive, frames: "_FrameSender") -> None:
        """Raises ClientDisconnect if the client leaves first."""
        work = self._send_messages(await _read_one(self._request), frames)
        sending = asyncio.create_task(work, name="sending a stream")
        leaving = asyncio.create_task(_wait_until_left(receive), name="waiting for a client to leave")
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ClientDisconnect
        finally:
            sending.cancel()
            leaving.cancel()
            await _wait_for_all(sending, leaving)
        sending.result()

    async def _send_messages(self, message: Message, frames: "_FrameSender") -> None:
        source, pace = self._call(self._request, message), Pace()
        del message  # it may be long, and the stream may last
        if self._keepalive is not None:
            frames.keep_alive(frame(self._keepalive), _keepalive_s(self._request))
        try:
            async with _deadline(self._request):
                async for item in source:
                    await frames.send(frame(item))
                    await pace.give_way()
        finally:
            await frames.stop_keepalives()
            await close_source(source)


class _FrameSender:
    """Sends frames. The head of the answer goes out with the first: if the sandbox is gone before that, the answer can
    still have another status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.begun = False

    async def send(self, data: bytes, *, last: bool = False) -> None:
        async with self._turn:
            if not self.begun:
                self.begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEAD})
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})
            self._sent_at = time.monotonic()

    async def end_early(self, error: ConnectError) -> None:
        """Ends the answer of a task that is being cancelled, unless the client is too slow to take it."""
        with anyio.move_on_after(_LAST_FRAME_S, shield=True):
            await self.send(_end(error), last=True)

    def keep_alive(self, data: bytes, every_s: float, first_s: float | None = None) -> None:
        """Sends `data` whenever nothing was sent for `every_s`."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(every_s if first_s is None else first_s, self._keep_alive_now, data, every_s)

    def _keep_alive_now(self, data: bytes, every_s: float) -> None:
        left_s = self._sent_at + every_s - time.monotonic()
        if not self.begun or self._turn.locked() or left_s > 0:
            self.keep_alive(data, every_s, left_s if self.begun and left_s > 0 else every_s)
        else:
            self._keeping = asyncio.create_task(self.send(data), name="keeping a stream alive")
            self._keeping.add_done_callback(lambda task: task.cancelled() or task.exception())
            self.keep_alive(data, every_s)

    async def stop_keepalives(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._keeping is not None:
            self._keeping.cancel()
            await _wait_for_all(self._keeping)


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _wait_for_all(*tasks: asyncio.Task[None]) -> None:
    with anyio.CancelScope(shield=True):
        await asyncio.wait(tasks)


def _keepalive_s(request: E2bCall) -> float:
    text = request.header("keepalive-ping-interval")
    return (int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else 0) or _KEEPALIVE_S


def _as_connect_error(exc: ConnectError | E2bError | WarrenError) -> ConnectError:
    if isinstance(exc, ConnectError):
        return exc
    if isinstance(exc, E2bError):
        return ConnectError("invalid_argument" if exc.status == 400 else "unknown", exc.message)
    return as_connect_error(exc)


def frame(message: Message | bytes, flags: int = 0) -> bytes:
    body = message if isinstance(message, bytes) else _encode(message).encode()
    return _HEAD.pack(flags, len(body)) + body


def _end(error: ConnectError | None) -> bytes:
    return frame({"error": {"code": error.code, "message": error.message}} if error else {}, END)
