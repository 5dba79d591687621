"""One connection to a worker, which carries one exchange at a time. `pool` opens it, `client` uses it.

A connection is in one `ResponsePhase` at a time. Incoming bytes go into a buffer that all connections of an event loop
share, because it is parsed before the next read. Only bodies are kept until they are read: beyond `HIGH_WATER` the
connection stops reading from the worker. Outgoing bytes wait in the transport; beyond the same amount `drain` waits. So
an exchange holds little more than twice `HIGH_WATER` in either direction, however slow one of its ends is.

The parser knows neither the method of the request (a response to HEAD has no body, whatever it says) nor when the
connection ended (which ends a response without a length): this module deals with both.
"""

import asyncio
import ssl
from collections.abc import Callable
from enum import Enum
from typing import Final, cast

import httptools

from warren.http.client.errors import Broken, Unreachable
from warren.http.client.headers import HOP_BY_HOP, STATUSES_WITHOUT_BODY, Header

HIGH_WATER: Final = 64 * 1024
MAX_HEAD: Final = 64 * 1024


class ResponsePhase(Enum):
    IDLE = "carries no request"
    HEAD = "waits for the head of the response"
    BODY = "receives the body of the response"
    DONE = "the response is complete"
    FAILED = "there will be no response, or no more of it"


class PooledConnection(asyncio.BufferedProtocol):
    """One connection. Call `start_request`, `write`, `wait_for_head`, and then `read` until it returns nothing.

    Afterwards `become_idle` says whether the connection can be used again. `fail` closes it with an exception for the
    task that waits. `on_close` is called when it is closed.
    """

    def __init__(self, address: str, buffer: memoryview, on_close: "Callable[[PooledConnection], None]") -> None:
        self.address = address
        self.phase = ResponsePhase.IDLE
        self.status = 0
        self.headers: list[Header] = []
        self.idle_since = 0.0
        self.is_new = True
        self.has_received = False
        self._loop = asyncio.get_running_loop()
        self._buffer, self._on_close = buffer, on_close
        self._transport = cast(asyncio.Transport, None)
        self._parser: httptools.HttpResponseParser | None = None
        self._failure: Exception | None = None
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._bytes_without_progress = 0
        self._is_head = self._ends_with_connection = self._is_reusable = False
        self._has_framing = self._reading_paused = self._writing_paused = False
        self._read_waiter: asyncio.Future[None] | None = None
        self._write_waiter: asyncio.Future[None] | None = None

    # Called by the exchange.

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    @property
    def is_fully_read(self) -> bool:
        """Whether the response is complete and all of it was read."""
        return self.phase is ResponsePhase.DONE and not self._pieces

    def start_request(self, *, is_head: bool) -> None:
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self.phase = ResponsePhase.HEAD
        self.status, self.headers = 0, []
        self.has_received = self._has_framing = self._ends_with_connection = self._is_reusable = False
        self._is_head = is_head
        self._bytes_without_progress = 0

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drain(self) -> None:
        """Returns when more may be written, or when the connection is closing."""
        while self._writing_paused and self.is_open:
            self._write_waiter = self._loop.create_future()
            await self._write_waiter

    async def wait_for_head(self) -> None:
        """Returns when `status` and `headers` are set. Raises the failure if there is no response."""
        while self.phase is ResponsePhase.HEAD:
            await self._wait_for_change()
        if self._failure is not None:
            raise self._failure

    async def read(self) -> bytes:
        """Returns what has arrived of the body since the last call, at least a byte; empty at the end. Raises
        Broken."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self.phase is ResponsePhase.DONE:
                return b""
            await self._wait_for_change()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._clear_buffered()
        return data

    def become_idle(self, now: float) -> bool:
        """Marks the connection idle if it can carry another request, and returns whether it can."""
        unsent = self._transport.get_write_buffer_size()
        if not (self.phase is ResponsePhase.DONE and self._is_reusable and self.is_open and not unsent):
            return False
        self._clear_buffered()
        self.phase, self.is_new, self.idle_since = ResponsePhase.IDLE, False, now
        return True

    def fail(self, failure: Exception) -> None:
        """Closes the connection. A complete response stays complete."""
        if self.phase in (ResponsePhase.HEAD, ResponsePhase.BODY):
            self.phase, self._failure = ResponsePhase.FAILED, failure
        self.abort()
        self._wake()

    def abort(self) -> None:
        self._is_reusable = False
        self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_of_input(exc)
        self._parser = None  # breaks a reference cycle that only the garbage collector would free
        self._on_close(self)

    def eof_received(self) -> None:
        self._end_of_input(None)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.phase not in (ResponsePhase.HEAD, ResponsePhase.BODY):
            self.abort()  # no request asked for these bytes
            return
        assert self._parser is not None
        self.has_received = True
        self._bytes_without_progress += nbytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(Broken("its response is not valid HTTP"))
        else:
            if self._bytes_without_progress > MAX_HEAD:
                self.fail(Broken("the head of its response is too large"))
        if self._is_head and self.is_fully_read:
            self._parser = None  # the parser would wait for a body that never comes

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.phase is not ResponsePhase.HEAD:
            self._is_reusable = False  # a second response

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not ResponsePhase.HEAD:
            return  # a trailer
        name = name.lower()
        if name == b"transfer-encoding":
            self._has_framing = True
            if value.lower() != b"chunked":
                raise ValueError("a transfer encoding that the request did not allow")
        elif name == b"content-length":
            self._has_framing = True
            self.headers.append((name, value))
        elif name not in HOP_BY_HOP and not name.startswith(b"proxy-"):
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.phase is not ResponsePhase.HEAD or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []  # an interim response
            return
        self.status = status
        self._bytes_without_progress = 0
        self._is_reusable = self._parser.should_keep_alive()
        self._ends_with_connection = not self._has_framing and status not in STATUSES_WITHOUT_BODY
        self.phase = ResponsePhase.DONE if self._is_head else ResponsePhase.BODY
        self._wake()

    def on_body(self, body: bytes) -> None:
        if self.phase is not ResponsePhase.BODY:
            self._is_reusable = False
            return
        self._bytes_without_progress = 0
        self._pieces.append(body)
        self._buffered += len(body)
        if self._buffered > HIGH_WATER and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self.phase is ResponsePhase.BODY:
            self.phase = ResponsePhase.DONE
            self._bytes_without_progress = 0
            self._wake()

    def _end_of_input(self, exc: Exception | None) -> None:
        self._is_reusable = False
        if self.phase is ResponsePhase.HEAD:
            self.phase, self._failure = ResponsePhase.FAILED, self._no_response_error(exc)
        elif self.phase is ResponsePhase.BODY and self._ends_with_connection and exc is None:
            self.phase = ResponsePhase.DONE
        elif self.phase is ResponsePhase.BODY:
            self.phase, self._failure = ResponsePhase.FAILED, Broken("its response broke off")
        self._wake()

    def _no_response_error(self, exc: Exception | None) -> Exception:
        if isinstance(exc, ssl.SSLError) and self.is_new and not self.has_received:
            return Unreachable("no trusted TLS connection came about")  # TLS 1.3 reports a refused certificate only now
        return Broken("it closed the connection without a response")

    def _clear_buffered(self) -> None:
        self._pieces.clear()
        self._buffered = 0
        if self._reading_paused:
            self._reading_paused = False
            if self.is_open:
                self._transport.resume_reading()

    async def _wait_for_change(self) -> None:
        self._read_waiter = self._loop.create_future()
        await self._read_waiter

    def _wake(self) -> None:
        for waiter in (self._read_waiter, self._write_waiter):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
