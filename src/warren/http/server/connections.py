"""Connections with limits on time and memory.

`HttpConnection` and `WebSocketConnection` are uvicorn's protocols with the limits that uvicorn does not have. A
connection is in one `RequestPhase` at a time. The server calls `check_timeouts` on each connection several times per
time-out. The connection then checks how long its client has kept it waiting: for the rest of a request's head, for the
rest of a body, or for the client to read what was sent. So requests need no timers, and one place handles every way in
which a client can stall.

When the maximum of connections is open, a new one replaces an unused one of the owner with the most. No tenant can use
all of them at once, see `Admission`; so there is always a place for another tenant.

The memory of a connection is bounded: the head by `max_header_bytes`, the body by uvicorn's flow control (64 KiB, then
reading pauses), pipelined requests by `MAX_PIPELINED`, and output by the transport's high-water mark. Incoming
bytes are parsed in turns with everything else on the event loop: a read may hold tens of thousands of tiny chunks or
frames, and no more is read while some of it is unparsed. The frames of previews are passed on unparsed (RAW). Of other
WebSockets a message is held whole, and counts in its tenant's share of the memory for answers. When a
client disconnects or is dropped, the app's `send` raises and its `receive` returns `http.disconnect`, so that streams
end.
"""

import asyncio
import math
import select
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, cast

import httptools
from starlette.types import Message
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS

from warren.http.problems import problem
from warren.http.request import REQUEST, Request
from warren.http.server.frame_borders import FrameBorders
from warren.http.server.http_guard import DEFAULT_HEADERS, SECURITY_HEADERS, HttpLimits
from warren.http.server.tls_hellos import TLS_HELLOS, TlsHellos
from warren.kernel.answer_memory import AnswerRoom, answer_room
from warren.kernel.fair_share import FairShare
from warren.kernel.logs import get_log
from warren.kernel.pacing import TURN_S
from warren.model.errors import (
    HeadTooLarge,
    InvalidHttp,
    NoCapacity,
    RequestTimedOut,
    Stopping,
    WarrenError,
)

MAX_PIPELINED = 8
MAX_FRAGMENTS = 1024
_HTTP_STEP = 8 * 1024  # bytes parsed before the clock is read: 1,400 chunks, or a part of one
_FRAMES_STEP = 1024  # bytes: 170 frames, or a part of one
_MAX_EARLY = 64 * 1024  # bytes that a client sends before it was accepted
_SMALL_MESSAGE = 16 * 1024  # bytes of a WebSocket's message that are not counted
_PING = b"\x89\x00"
_MAX_REFUSED = 256  # connections over the limit that get a response; the others are just closed
_EVICTED_PART = 100  # closes 1 % of the connections at a time, because choosing them is slow
BODY_IS_NEXT = "warren.body_is_next"
"""In the start of a response: the next message is the whole body, so both are written at once."""
RAW = "warren.raw"
"""In the acceptance of a WebSocket: from then on messages carry the bytes of its frames, as they come. `receive` reads
only when it is called, and `send` returns when the client has taken most of it."""
_log = get_log(__name__)


class RequestPhase(Enum):
    IDLE = "between two requests"
    HEAD = "the head of a request is awaited"
    OPEN = "a request is being served"
    LAST = "being served; no further request is read"
    DRAINING = "answered; the rest of the body is thrown away"
    LINGERING = "refused; what still comes is thrown away until the client has read why"


_EVICTABLE = frozenset({RequestPhase.IDLE, RequestPhase.HEAD, RequestPhase.DRAINING, RequestPhase.LINGERING})
_LAST_REQUEST_S = 0.5  # for the first request of a client that connected before the server stopped
_PHASE_LIMITS_S = {RequestPhase.DRAINING: 5.0, RequestPhase.LINGERING: 2.0}


class _StallTimer:
    """Measures for how long a number has not changed. None means that nothing is awaited."""

    __slots__ = ("_figure", "_since")

    def __init__(self) -> None:
        self._figure: int | None = None
        self._since = 0.0

    def stalled_s(self, figure: int | None, now: float) -> float:
        if figure is None or figure != self._figure:
            self._figure, self._since = figure, now
        return now - self._since


class _ResponseTransport:
    """The transport that uvicorn writes a response to.

    `close` calls the connection: closing a socket while a body still arrives would reset it, and the client would lose
    the response. The head of a response waits for the first piece of the body if that comes at once: two writes cost
    twice as much, and wake the client twice.
    """

    def __init__(
        self, transport: asyncio.Transport, close: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport, self._close, self._loop = transport, close, loop
        self._head = b""
        self.is_closing = transport.is_closing
        self.in_head = False

    def write(self, data: bytes) -> None:
        if self.in_head:
            self.in_head, self._head = False, data
            self._loop.call_soon(self._flush)
        elif self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._close()


class _Flow(FlowControl):
    """Pauses reading while the app has enough, and while bytes that were read are not yet parsed."""

    is_parsing = False

    def pause_reading(self) -> None:
        if self.is_parsing:
            self.read_paused = True
        else:
            super().pause_reading()

    def resume_reading(self) -> None:
        if self.is_parsing:
            self.read_paused = False
        else:
            super().resume_reading()

    def begin_parsing(self) -> None:
        if not self.is_parsing and not self.read_paused:
            self._transport.pause_reading()
        self.is_parsing = True

    def end_parsing(self) -> None:
        if self.is_parsing and not self.read_paused:
            self._transport.resume_reading()
        self.is_parsing = False


class HttpConnection(HttpToolsProtocol):
    def __init__(self, *, limits: HttpLimits, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._rest = memoryview(b"")
        self._limits = limits
        self._phase, self._since = RequestPhase.HEAD, self.loop.time()
        self._in_head = False
        self._is_last = False
        self._received = 0
        self._unparsed = 0
        self._body_left = 0  # of a body whose length was given: all of it is one call, however much is parsed at once
        self._refusal: WarrenError | None = None
        self._active: RequestResponseCycle | None = None
        self._sending, self._reading = _StallTimer(), _StallTimer()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._enter(RequestPhase.HEAD)  # counted from now on: the TLS handshake had a time-out of its own
        self.flow = self._flow = _Flow(transport)
        self._response_transport = _ResponseTransport(transport, self._close_after_response, self.loop)
        excess = len(self.connections) - self._limits.max_connections
        if excess > 0:
            excess -= self._evict_unused()
        if excess > _MAX_REFUSED:
            transport.abort()
        elif excess > 0:
            self._refuse(NoCapacity(f"{self._limits.max_connections} connections are open already", retry_after_s=1))

    def _evict_unused(self) -> int:
        """Closes unused connections to make room for this one, and returns their number."""
        others = cast(set[HttpConnection | WebSocketConnection], self.connections - {self})
        chosen = choose_unused(others, max(1, self._limits.max_connections // _EVICTED_PART))
        for connection in chosen:
            self.connections.discard(connection)
            connection.abort()
        if chosen:
            _log.warning("unused_connections_closed", count=len(chosen), owner=chosen[0].owner)
        return len(chosen)

    @property
    def owner(self) -> str:
        """The tenant of the last identified request; before there is one, the client's network."""
        return _owner_of(self._active.scope if self._active is not None else None, self.transport)

    @property
    def unused_since(self) -> tuple[bool, float] | None:
        """A key that sorts unused connections: those with nothing to send first, then the longest unused. None if a
        request is being served."""
        if self._phase not in _EVICTABLE:
            return None
        return self.transport.get_write_buffer_size() > 0, self._since

    def eof_received(self) -> None:
        """Tells the app that the client has gone: a response that is still ready in time would reach nobody."""
        self._notify_disconnect()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        self._notify_disconnect()

    def data_received(self, data: bytes) -> None:
        if self._phase in (RequestPhase.LINGERING, RequestPhase.LAST):
            return
        if self._phase is RequestPhase.IDLE:
            self._phase, self._since = RequestPhase.HEAD, self.loop.time()
        self._unset_keepalive_if_required()
        self._received += len(data)
        if self._rest:  # TLS may deliver bytes that it had already read
            self._rest = memoryview(bytes(self._rest) + data)
        else:
            if len(data) <= max(_HTTP_STEP, self._body_left) and not self.transport.is_closing():
                self._unparsed += len(data)
                self._parse(data)
                return
            self._rest = memoryview(data)
            self._parse_for_a_turn()

    def _parse_for_a_turn(self) -> None:
        until = time.perf_counter() + TURN_S
        while (
            self._rest
            and self._phase not in (RequestPhase.LINGERING, RequestPhase.LAST)
            and not self.transport.is_closing()
        ):
            step = max(_HTTP_STEP, self._body_left)
            data, self._rest = bytes(self._rest[:step]), self._rest[step:]
            self._unparsed += len(data)
            self._parse(data)
            if self._rest and time.perf_counter() >= until:
                self._flow.begin_parsing()
                self.loop.call_soon(self._parse_for_a_turn)
                return
        self._rest = memoryview(b"")
        if self._flow.is_parsing and not self.transport.is_closing():
            self._flow.end_parsing()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._upgrade(data[exc.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._refusal or self._explain(data))
        else:
            if self._unparsed > self._limits.max_header_bytes:
                self._refuse(self._head_too_large())

    def _explain(self, data: bytes) -> WarrenError:
        hellos: TlsHellos | None = self.app_state.get(TLS_HELLOS)
        client = str(self.client[0]) if self.client else ""
        if hellos is not None and self._active is None and hellos.note(data, client):
            return InvalidHttp("this port speaks plain HTTP, and the client speaks TLS", remedy="use http://")
        return InvalidHttp("this is not a valid HTTP request")

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._unparsed > self._limits.max_header_bytes and self._head_size() > self._limits.max_header_bytes:
            self._refusal = self._head_too_large()
            raise self._refusal
        if not self.url.isascii():
            raise InvalidHttp("the target of the request is not ASCII")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise InvalidHttp("too many requests were sent ahead")  # the client sends them again
        if self.parser.get_method() == b"CONNECT":
            raise InvalidHttp("this server is no proxy")
        is_upgrade = self.parser.should_upgrade()
        if is_upgrade and self._ignores_upgrade():
            return
        self._in_head, self._unparsed = False, 0
        self._body_left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        if self._phase is RequestPhase.HEAD:
            self._phase, self._since = RequestPhase.OPEN, self.loop.time()
        super().on_headers_complete()
        if not is_upgrade:
            self.headers = []  # for trailers, which nobody gets: all checks were made before they come
        if self._is_last and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._body_left = max(0, self._body_left - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and self._ignores_upgrade():
            return
        self._unparsed = 0
        if self.cycle is not None:
            self.cycle.more_body = False
        super().on_message_complete()
        if self._phase is RequestPhase.DRAINING:
            self._enter(RequestPhase.IDLE)

    def on_response_complete(self) -> None:
        if self._phase is RequestPhase.LINGERING:
            self.flow.resume_reading()
            return
        more_body = self._active is not None and self._active.more_body
        queued = bool(self.pipeline)
        super().on_response_complete()
        if more_body:
            self._enter(RequestPhase.DRAINING)
        elif not queued and self._phase is not RequestPhase.LAST:
            self._phase, self._since = RequestPhase.HEAD if self._in_head else RequestPhase.IDLE, self.loop.time()

    def check_timeouts(self, now: float) -> None:
        """Ends the connection if its client has stalled for too long."""
        limits = self._limits
        if self._sending.stalled_s(self.transport.get_write_buffer_size() or None, now) > limits.send_timeout_s:
            self.transport.abort()
        elif self._phase is RequestPhase.HEAD and now - self._since > limits.header_timeout_s:
            self._refuse_slow_client(f"the head of the request was not complete after {limits.header_timeout_s:g} s")
        elif now - self._since > _PHASE_LIMITS_S.get(self._phase, math.inf):
            self.transport.abort()
        elif self._reading.stalled_s(self._body_progress(), now) > limits.body_timeout_s:
            self._refuse_slow_client(f"nothing of the body came for {limits.body_timeout_s:g} s")

    def abort(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        """Answers the request that is arriving, or will arrive in a moment, as the last one."""
        if self._phase is RequestPhase.HEAD:
            self._is_last = True
            self.loop.call_later(_LAST_REQUEST_S, self._close_if_no_request)
        else:
            super().shutdown()

    def _close_if_no_request(self) -> None:
        if self._phase is RequestPhase.HEAD:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        scope = cast(dict[str, Any], cycle.scope)
        scope[REQUEST] = Request(scope, has_left=self._has_left)
        cycle.transport = cast(asyncio.Transport, self._response_transport)
        task = self.loop.create_task(self._serve(cycle, app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _serve(self, cycle: RequestResponseCycle, app: Any) -> None:
        transport = self._response_transport
        start: Message | None = None

        async def send(message: Message) -> None:
            nonlocal start
            if BODY_IS_NEXT in message:
                start = message
                return
            if start is not None:
                head, start = start, None
                if self._write_response(cycle, head, message["body"]):
                    return
                transport.in_head = True
                await cycle.send(cast(Any, head))
            transport.in_head = message["type"] == "http.response.start"
            await cycle.send(cast(Any, message))
            # After a failed write, uvicorn sets `disconnected` only once the app lets the event loop run.
            if cycle.disconnected or (self.transport.is_closing() and not cycle.response_complete):
                raise ClientDisconnected

        try:
            await app(cycle.scope, cycle.receive, send)
        except asyncio.CancelledError:
            if not (cycle.disconnected or cycle.response_complete):
                self._refuse_and_close(Stopping("the server is being stopped"))
        except ClientDisconnected:
            pass
        except Exception as exc:
            _log.error("app_failed", exc=exc)
        finally:
            cycle.on_response = lambda: None
            if not cycle.response_complete and not cycle.disconnected:
                self.transport.close()

    def _has_left(self) -> bool:
        if self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def _write_response(self, cycle: RequestResponseCycle, start: Message, body: bytes) -> bool:
        """Writes a whole response as uvicorn would, in one piece and with fewer steps.

        Returns False, and does nothing, in the cases that it leaves to uvicorn.
        """
        is_usual = cycle.keep_alive and not cycle.response_started and not cycle.flow.write_paused
        if not is_usual or cycle.disconnected or cycle.scope["method"] == "HEAD":
            return False
        headers = [*cycle.default_headers, *start["headers"]]
        lines = b"".join(map(b"%s: %s\r\n".__mod__, headers))
        if not lines.count(b"\r") == lines.count(b"\n") == len(headers) or b"\0" in lines:
            raise RuntimeError("a header of the response contains a line break or a NUL byte")
        cycle.transport.write(b"%s%s\r\n%s" % (STATUS_LINE[start["status"]], lines, body))
        cycle.waiting_for_100_continue = False
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True

    def _enter(self, phase: RequestPhase) -> None:
        self._phase, self._since = phase, self.loop.time()

    def _body_progress(self) -> int | None:
        cycle = self._active
        if self._phase is not RequestPhase.OPEN or cycle is None or not cycle.more_body:
            return None
        return None if self.flow.read_paused or self._rest or cycle.waiting_for_100_continue else self._received

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge("the head of the request is too large", remedy="send fewer or shorter headers")

    def _ignores_upgrade(self) -> bool:
        """Returns whether the request asks for a protocol other than WebSocket; it is then parsed again as a plain
        request.

        The parser takes the bytes after its head for that protocol. They may be the body: read as the next request,
        they would smuggle one past a proxy in front.
        """
        return self.parser.should_upgrade() and not self._should_upgrade()

    def _upgrade(self, rest: bytes) -> None:
        if self._ignores_upgrade():
            first = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
            lines = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
            self._parse(b"%s %s HTTP/%s\r\n%s\r\n" % (*first, b"".join(lines)) + rest)
        elif self._busy():
            self.transport.abort()
        elif len(self.headers) > MAX_NUM_HEADERS or any(len(n) + len(v) > MAX_LINE_LENGTH - 8 for n, v in self.headers):
            self._refuse(self._head_too_large())
        elif not self.url.isascii() or len(self.url) > MAX_LINE_LENGTH - 32:
            self._refuse(InvalidHttp("the target of the request is not one for a WebSocket"))
        else:
            self._rest = memoryview(b"")
            self.handle_websocket_upgrade()

    def _refuse_slow_client(self, message: str) -> None:
        if self._received:
            self._refuse(RequestTimedOut(message, remedy="send the request faster, or in smaller parts"))
        else:
            self.transport.close()

    def _refuse(self, exc: WarrenError) -> None:
        """Reads no further requests. Requests that came before are still answered."""
        if self._busy() and (self._in_head or self.pipeline):
            last = self.pipeline[0][0] if self.pipeline else self._active
            assert last is not None
            last.keep_alive = False
            self._enter(RequestPhase.LAST)
        else:
            self._refuse_and_close(exc)

    def _refuse_and_close(self, exc: WarrenError) -> None:
        """Sends the error, unless a response has begun, and ends the connection and its request."""
        if not (self._active is not None and self._busy() and self._active.response_started):
            self.transport.write(raw_response(exc, self.server_state.default_headers))
        self._notify_disconnect()
        self._linger()

    def _busy(self) -> bool:
        return self._active is not None and not self._active.response_complete

    def _close_after_response(self) -> None:
        if self._phase is RequestPhase.LAST or (self._active is not None and self._active.more_body):
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        self._enter(RequestPhase.LINGERING)
        self.pipeline.clear()
        if not self.transport.is_closing():
            # Unread bytes would turn the close into a reset, and the client would lose the response.
            self.flow.resume_reading()
            if self.transport.can_write_eof():  # TLS cannot: there the client closes, or the phase times out
                self.transport.write_eof()

    def _notify_disconnect(self) -> None:
        """Tells all requests that the client is gone: uvicorn tells only the newest, not a pipelined one before it."""
        for cycle in (self._active, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.flow.resume_writing()


class WebSocketConnection(WebSocketsSansIOProtocol):
    def __init__(self, *, limits: HttpLimits, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._limits = limits
        self._sending = _StallTimer()
        self._rest = memoryview(b"")
        self._turn: asyncio.Handle | None = None
        self._passed: FrameBorders | None = None  # of what is passed on to the client, if frames are passed on unread
        self._room: AnswerRoom | None = None
        self._messages = 0  # bytes of messages that the app has not dealt with
        self._counted = 0

    @property
    def owner(self) -> str:
        return _owner_of(getattr(self, "scope", None), self.transport)

    @property
    def unused_since(self) -> tuple[bool, float] | None:
        return None

    @property
    def _is_undecided(self) -> bool:
        """Whether the app has not yet said whether it wants messages or frames."""
        return self.handshake_initiated and not self.handshake_complete

    def check_timeouts(self, now: float) -> None:
        if self._sending.stalled_s(self.transport.get_write_buffer_size() or None, now) > self._limits.send_timeout_s:
            self.transport.abort()

    def abort(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._passed is not None:
            self._receive_frames(data)
            return
        self._rest = memoryview(bytes(self._rest) + data if self._rest else data)
        if self._is_undecided:
            if len(self._rest) > _MAX_EARLY:
                self.transport.pause_reading()
        elif self._turn is None:
            self._parse_for_a_turn()
        else:
            self.transport.pause_reading()

    def _parse_for_a_turn(self) -> None:
        """Parses until the app has messages to take; `receive` continues when it has taken them."""
        self._turn = None
        until = time.perf_counter() + TURN_S
        while self._rest and not self.read_paused and not self._is_undecided and not self.transport.is_closing():
            data, self._rest = bytes(self._rest[:_FRAMES_STEP]), self._rest[_FRAMES_STEP:]
            super().data_received(data)
            if self.conn.handshake_exc is not None and not self.handshake_initiated:
                self.transport.abort()
            elif self._rest and not self.read_paused and time.perf_counter() >= until:
                self.transport.pause_reading()
                self._turn = self.loop.call_soon(self._parse_for_a_turn)
                break
        self._count_messages()
        if not self._rest and not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _parse_later(self) -> None:
        if self._rest and not self.read_paused and self._turn is None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._turn = self.loop.call_soon(self._parse_for_a_turn)

    async def receive(self) -> Any:
        if self._passed is not None:
            if self.queue.empty() and self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()
            return await self.queue.get()
        if self._messages and self.queue.empty():
            self._messages = 0
            self._count_messages()
        message = await super().receive()
        self._parse_later()
        return message

    async def send(self, message: Any) -> None:
        if self._passed is not None:
            await self._send_frames(self._passed, message)
            return
        await super().send(message)
        if message["type"] == "websocket.accept":
            self._room = answer_room()
            if message.get(RAW):
                self._passed, early, self._rest = FrameBorders(), bytes(self._rest), memoryview(b"")
                if early:
                    self._receive_frames(early)
            else:
                self._parse_later()
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # otherwise uvicorn logs every refusal as an error of the app

    # -- the memory of messages

    def send_receive_event_to_app(self) -> None:
        self._messages += sum(map(len, self.frames))
        super().send_receive_event_to_app()

    def _count_messages(self) -> None:
        """Counts the message that comes, and those that the app has not dealt with. Closes the connection if its tenant
        has no room for them."""
        held = self._messages + len(self.conn.reader.buffer) + sum(map(len, self.frames))
        more = (held if held > _SMALL_MESSAGE else 0) - self._counted
        if self._room is None or self.close_sent or self.transport.is_closing():
            return
        if more > 0 and not self._room.hold_now(more):
            self.conn.fail(4503, "the messages that are not read yet use all the memory there is for them")
            self.handle_parser_exception()
            return
        if more < 0:
            self._room.give_back(-more)
        self._counted += more

    # -- frames that are passed on unread

    @property
    def _is_ended(self) -> bool:
        return self.disconnected or self.close_sent

    def _receive_frames(self, data: bytes) -> None:
        if self.pong_timer is not None:
            self.pong_timer.cancel()
            self.pong_timer = None
            self.schedule_ping()
        if not self.close_sent:
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
            self.read_paused = True
            self.transport.pause_reading()

    async def _send_frames(self, passed: FrameBorders, message: Any) -> None:
        if self._is_ended:
            raise ClientDisconnected
        if message["type"] == "websocket.close":
            self._close_between_frames(message.get("code", 1000), message.get("reason") or "")
            return
        if message["type"] != "websocket.send":
            raise RuntimeError(f"{message['type']!r} comes too late: the WebSocket was accepted")
        data, at = message["bytes"], 0
        while at < len(data):
            end = passed.follow(data, at)
            self.transport.write(data if end - at == len(data) else data[at:end])
            at = end
            await (self.writable.wait() if at == len(data) else asyncio.sleep(0))
            if self._is_ended:
                raise ClientDisconnected

    def _close_between_frames(self, code: int, reason: str) -> None:
        """Ends the connection: with a close frame, unless one was passed on or there is no place for it."""
        assert self._passed is not None
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.stop_keepalive()
        if self.transport.is_closing():
            return
        self.close_sent = True
        if self._passed.is_between_frames and not self._passed.is_closed:
            frame = Frame(Opcode.CLOSE, Close(code, reason).serialize())
            self.transport.write(frame.serialize(mask=False))
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # Unread bytes would turn the close into a reset, and the client would lose the frame.
        self.transport.write_eof()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(_PHASE_LIMITS_S[RequestPhase.LINGERING], self.transport.close)

    def shutdown(self) -> None:
        if self._passed is None:
            super().shutdown()
        elif not self.close_sent:
            self._close_between_frames(1012, "")
        else:
            self.transport.close()

    def send_keepalive_ping(self) -> None:
        if self._passed is None:
            super().send_keepalive_ping()
            return
        self.ping_timer = None
        self.ping_sent_at = math.inf  # nothing is missing if there was no place for a ping
        if self._passed.is_between_frames and self.writable.is_set():
            self.ping_sent_at = self.loop.time()
            self.transport.write(_PING)
        assert self.ping_timeout is not None
        self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)

    def handle_ping(self) -> None:
        """Drops pongs that the client does not read: a client that only pings would fill the memory with them."""
        pong = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(pong)

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self.conn.fail(1009, f"more than {MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()
        else:
            super().handle_cont(event)

    def keepalive_timeout(self) -> None:
        """Ignores a missing pong while the socket is not read, because the app leaves messages unread."""
        if self.read_paused or self._rest or (self._passed is not None and self.ping_sent_at == math.inf):
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
        elif self._passed is not None:
            self.transport.abort()
        else:
            super().keepalive_timeout()

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is None:  # it failed before it became a WebSocket
            self.transport.abort()
        else:
            super().handle_parser_exception()


def choose_unused(
    connections: Iterable["HttpConnection | WebSocketConnection"], most: int
) -> list["HttpConnection | WebSocketConnection"]:
    """Returns up to `most` connections that serve no request, of the owner with the most connections.

    The longest unused come first, and half of the unused ones stay: a client that has just connected is about to ask.
    """
    owners = FairShare()
    unused: dict[str, list[tuple[tuple[bool, float], HttpConnection | WebSocketConnection]]] = {}
    for connection in connections:
        owner, since = connection.owner, connection.unused_since
        owners.take(owner)
        if since is not None:
            unused.setdefault(owner, []).append((since, connection))
    if not unused:
        return []
    found = sorted(unused[owners.largest(unused)], key=lambda each: each[0])
    return [connection for _, connection in found[: min(most, (len(found) + 1) // 2)]]


def _owner_of(scope: Any, transport: asyncio.BaseTransport) -> str:
    request: Request | None = None if scope is None else scope.get(REQUEST)
    if request is not None and request.caller.scopes:
        return f"tenant {request.caller.tenant}"
    client = scope.get("client") if scope else transport.get_extra_info("peername")
    address = str(client[0]) if client else ""
    return ":".join(address.split(":")[:4]) if ":" in address else address  # IPv6: a client has a whole network


def raw_response(exc: WarrenError, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    """Returns an error response as bytes, for a connection without a valid request."""
    response = problem(exc)
    headers = [*default_headers, *response.raw_headers, *SECURITY_HEADERS, *DEFAULT_HEADERS, (b"connection", b"close")]
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return STATUS_LINE[exc.http_status] + lines + b"\r\n" + bytes(response.body)
