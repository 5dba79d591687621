"""Passes the frames of a WebSocket on as they come, for previews: messages of any length, and those that never end.

Nobody here reads the messages: after the handshakes both sides speak the same protocol, so the bytes of their frames
are relayed unread. Each direction holds one piece (what one read of a socket gave, 256 KiB at most) and reads the next
when the other side has taken it. What it holds counts as memory of the request's tenant (kernel/answer_memory.py); a
WebSocket for whose piece there is no room is closed.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Final, cast

from starlette.types import Receive, Send
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from warren.http.client.errors import Broken
from warren.http.client.pool import connect_error
from warren.kernel.answer_memory import hold_room

HANDSHAKE_TIMEOUT_S: Final = 30.0
WORKER_LOST: Final = 1011
_CLOSE_TIMEOUT_S: Final = 5.0
_MAX_HEAD: Final = 64 * 1024


class FrameStream(asyncio.Protocol):
    """A connection to a server of WebSockets. It reads only while `read` waits."""

    def __init__(self) -> None:
        self._piece = b""
        self._is_ended = False
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._piece += data
        self.transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        self._is_ended = True
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = exc
        self._is_ended = True
        self._changed.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def read(self) -> bytes:
        """Returns the next piece; nothing at the end."""
        if not self._piece and not self._is_ended:
            self._changed.clear()
            self.transport.resume_reading()
            await self._changed.wait()
        piece, self._piece = self._piece, b""
        return piece

    async def write(self, data: bytes) -> bool:
        """Returns when the other side has taken most of it, and whether it is still there."""
        if not self.transport.is_closing():
            self.transport.write(data)
            await self._writable.wait()
        return not self.transport.is_closing()

    async def end(self) -> None:
        """Announces that nothing more comes, and waits a while for the other side to end."""
        if self.transport.is_closing() or not self.transport.can_write_eof():
            return
        self.transport.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while await self.read():
                    pass

    async def shake_hands(self, protocol: ClientProtocol) -> Response | None:
        """Performs the handshake. Returns None if the server accepts the WebSocket, otherwise its refusal. Raises
        `Unreachable`, `Broken`."""
        protocol.send_request(protocol.connect())
        self.transport.writelines(protocol.data_to_send())
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                response = await self._read_response(protocol)
        except TimeoutError:
            raise Broken(f"it did not respond within {HANDSHAKE_TIMEOUT_S:g} s") from None
        exc = protocol.handshake_exc
        if isinstance(exc, InvalidStatus):
            return exc.response
        if exc is not None or response is None:
            if isinstance(self._error, ssl.SSLError):
                raise connect_error(self._error) from exc  # TLS 1.3 reports a refused certificate only now
            raise Broken("its response to the WebSocket handshake is not valid") from exc
        return None

    async def _read_response(self, protocol: ClientProtocol) -> Response | None:
        """Gives the protocol the response alone: what follows an acceptance are frames."""
        head = b""
        while (end := head.find(b"\r\n\r\n") + 4) < 4:
            data = await self.read()
            if not data or len(head) > _MAX_HEAD:
                return None
            head += data
        self._piece = head[end:]
        protocol.receive_data(head[:end])
        while not (events := protocol.events_received()) and protocol.handshake_exc is None:
            if data := await self.read():
                protocol.receive_data(data)
            else:
                protocol.receive_eof()
                events = protocol.events_received()
                break
        return next((event for event in events if isinstance(event, Response)), None)


async def relay_frames(server: FrameStream, receive: Receive, send: Send) -> None:
    """Relays pieces both ways until one side ends, and then ends the other."""
    to_server = asyncio.create_task(_relay_to_server(receive, server))
    to_client = asyncio.create_task(_relay_to_client(server, send))
    tasks = [to_server, to_client]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if to_server.done() and to_server.result():
            to_client.cancel()
            await asyncio.wait([to_client])
            await server.end()
        else:
            await to_client  # what the server sent before it ended still reaches the client
            # The connection knows whether a close frame has passed, and sends this one if none has.
            await send({"type": "websocket.close", "code": WORKER_LOST, "reason": "the worker was lost"})
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()


async def _relay_to_server(receive: Receive, server: FrameStream) -> bool:
    """Returns whether the client has ended; otherwise the server has."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return True
        if message["type"] == "websocket.receive":
            data = message["bytes"]
            with hold_room(len(data)):
                if not await server.write(data):
                    return False


async def _relay_to_client(server: FrameStream, send: Send) -> None:
    while data := await server.read():
        with hold_room(len(data)):
            await send({"type": "websocket.send", "bytes": data})
