"""One connection to a worker, and the one exchange that may be on it at a time.

It is in one `Phase` at a time. What comes in is read into a buffer that all connections of one event loop share (it
is parsed before the next read), and only bodies are kept, until they are asked for: beyond `HIGH_WATER` the worker
is not read from. What goes out waits in the transport; beyond as much `drain` waits. So an exchange holds little
more than twice `HIGH_WATER` in either direction, however slow one of its ends is.

The parser knows neither which method was asked for (an answer to HEAD has no body, whatever it says) nor when the
connection ended (an answer without a length ends there): these two are dealt with here.
"""

import asyncio
import ssl
from collections.abc import Callable
from enum import Enum
from typing import Final, cast

import httptools

from warren.cluster.http_client.failures import Broken, Unreachable
from warren.cluster.http_client.headers import BODILESS, HOP_BY_HOP, Header

HIGH_WATER: Final = 64 * 1024
MAX_HEAD: Final = 64 * 1024


class Phase(Enum):
    IDLE = "nothing is asked"
    HEAD = "asked; the head of the answer is awaited"
    BODY = "the body of the answer comes"
    DONE = "the answer is complete"
    FAILED = "there will be no answer, or no more of it"


class Connection(asyncio.BufferedProtocol):
    """`begin`, `write`, then `head` and `read` until it gives nothing. `lost` is called when the connection is closed.

    Afterwards `rest` says whether it can be used again. `fail` ends it with an exception for whoever waits.
    """

    def __init__(self, address: str, buffer: memoryview, lost: "Callable[[Connection], None]") -> None:
        self.address = address
        self.phase = Phase.IDLE
        self.status = 0
        self.headers: list[Header] = []
        self.idle_since = 0.0
        self.is_new = True
        self.came = False
        self._loop = asyncio.get_running_loop()
        self._buffer, self._lost = buffer, lost
        self._transport = cast(asyncio.Transport, None)
        self._parser: httptools.HttpResponseParser | None = None
        self._failure: Exception | None = None
        self._pieces: list[bytes] = []
        self._size = self._unparsed = 0
        self._head_only = self._until_eof = self._reusable = False
        self._framed = self._reading_paused = self._writing_paused = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # What the exchange does.

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    @property
    def has_all(self) -> bool:
        """Whether the answer is complete and all of it was read."""
        return self.phase is Phase.DONE and not self._pieces

    def begin(self, *, head_only: bool) -> None:
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self.phase = Phase.HEAD
        self.status, self.headers = 0, []
        self.came = self._framed = self._until_eof = self._reusable = False
        self._head_only = head_only
        self._unparsed = 0

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drain(self) -> None:
        """Returns when more may be written, or when there is no use in it."""
        while self._writing_paused and self.is_open:
            self._writer = self._loop.create_future()
            await self._writer

    async def head(self) -> None:
        """Returns when `status` and `headers` are there."""
        while self.phase is Phase.HEAD:
            await self._news()
        if self._failure is not None:
            raise self._failure

    async def read(self) -> bytes:
        """What has come of the body since the last time, at least a byte; nothing at its end."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self.phase is Phase.DONE:
                return b""
            await self._news()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._resume_reading()
        return data

    def rest(self, now: float) -> bool:
        """Whether it may be used for a next request; if so it is idle from now on."""
        unsent = self._transport.get_write_buffer_size()
        if not (self.phase is Phase.DONE and self._reusable and self.is_open and not unsent):
            return False
        self._pieces.clear()
        self._size = 0
        self._resume_reading()
        self.phase, self.is_new, self.idle_since = Phase.IDLE, False, now
        return True

    def fail(self, failure: Exception) -> None:
        """Ends the connection. An answer that is complete stays so."""
        if self.phase in (Phase.HEAD, Phase.BODY):
            self.phase, self._failure = Phase.FAILED, failure
        self.abort()
        self._wake()

    def abort(self) -> None:
        self._reusable = False
        self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self._parser = None  # which refers to us: else only the collector would free the two
        self._lost(self)

    def eof_received(self) -> None:
        self._end(None)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.phase not in (Phase.HEAD, Phase.BODY):
            self.abort()  # nobody asked
            return
        assert self._parser is not None
        self.came = True
        self._unparsed += nbytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(Broken("the worker's answer is not valid HTTP"))
        else:
            if self._unparsed > MAX_HEAD:
                self.fail(Broken("the head of the worker's answer is too large"))
        if self._head_only and self.has_all:
            self._parser = None  # it waits for a body that does not come

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.phase is not Phase.HEAD:
            self._reusable = False  # more than one answer

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not Phase.HEAD:
            return  # a trailer
        name = name.lower()
        if name == b"transfer-encoding":
            self._framed = True
            if value.lower() != b"chunked":
                raise ValueError("a transfer encoding that nobody asked for")
        elif name == b"content-length":
            self._framed = True
            self.headers.append((name, value))
        elif name not in HOP_BY_HOP and not name.startswith(b"proxy-"):
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.phase is not Phase.HEAD or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []  # not the answer yet
            return
        self.status = status
        self._unparsed = 0
        self._reusable = self._parser.should_keep_alive()
        self._until_eof = not self._framed and status not in BODILESS
        self.phase = Phase.DONE if self._head_only else Phase.BODY
        self._wake()

    def on_body(self, body: bytes) -> None:
        if self.phase is not Phase.BODY:
            self._reusable = False
            return
        self._unparsed = 0
        self._pieces.append(body)
        self._size += len(body)
        if self._size > HIGH_WATER and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self.phase is Phase.BODY:
            self.phase = Phase.DONE
            self._unparsed = 0
            self._wake()

    # Waiting.

    def _end(self, exc: Exception | None) -> None:
        self._reusable = False
        if self.phase is Phase.HEAD:
            self.phase, self._failure = Phase.FAILED, self._unanswered(exc)
        elif self.phase is Phase.BODY and self._until_eof and exc is None:
            self.phase = Phase.DONE
        elif self.phase is Phase.BODY:
            self.phase, self._failure = Phase.FAILED, Broken("the worker's answer broke off")
        self._wake()

    def _unanswered(self, exc: Exception | None) -> Exception:
        if isinstance(exc, ssl.SSLError) and self.is_new and not self.came:
            return Unreachable("no trusted TLS connection came about")  # by TLS 1.3 we hear of it only now
        return Broken("the worker closed the connection without an answer")

    def _resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            if self.is_open:
                self._transport.resume_reading()

    async def _news(self) -> None:
        self._reader = self._loop.create_future()
        await self._reader

    def _wake(self) -> None:
        for waiter in (self._reader, self._writer):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
