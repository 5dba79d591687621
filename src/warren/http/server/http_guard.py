"""The first stage of every request but previews by host: checks it, and completes its response.

For each request the guard finds the client's address (behind a proxy too), gives the request an id and its trace, and
checks

- the Host, because a web page could make its own name resolve to this machine,
- the Origin, because pages of other sites must not use the browser to reach the server,
- the size of the body.

It adds security headers to the response, logs the request, and turns exceptions into responses. It never raises, except
when cancelled: if a response fails half-way, the guard returns and the server closes the connection.

HEAD is performed as GET, and the response ends before its body. There is no CORS.

The server itself enforces the time-outs and the limits on connections, see `serving`.
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

import anyio
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from warren.http.problems import free_frames, internal_problem, is_disconnect, logged_error_id, problem
from warren.http.request import NO_ROUTE, Kind, Request, Stage
from warren.http.server.request_origin import HostRule, OriginRule, TrustedProxies, read_authority
from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.kernel.logs import get_log
from warren.kernel.tracing import NO_SPAN, OFF, TRACEPARENT, Span, Tracing, Value
from warren.model.addresses import is_loopback
from warren.model.errors import HostNotAllowed, InvalidRequest, NotFound, OriginNotAllowed, TooLarge, WarrenError

_log = get_log(__name__)

MAX_BODY = 4 * 1024 * 1024
MAX_PARAMETERS = 1000
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_CACHED_CHECKS = 256
_SESSION_ID = re.compile(r"ses_[0-9a-f]{32}")
_BEGIN_NO_TRACE = ("/health", "/ready", "/metrics", "/internal/")
"""Paths that machines ask for all the time; they begin no trace."""
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Sent with every response: what a browser must not do with it."""
DEFAULT_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
)
"""Sent with every response that does not set them itself."""
_STRICT_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")

BARE = "warren.bare"
"""In the start of a response: it comes from a sandbox, at an origin of its own, and gets no headers from the guard."""

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request being served, for logs."""


MAX_CONNECTIONS = "max_connections"
"""In the state of every scope: how many connections the server accepts."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    header_timeout_s: float = 10
    body_timeout_s: float = 30
    send_timeout_s: float = 60
    keep_alive_s: float = 75
    max_connections: int = 10_000
    max_header_bytes: int = 64 * 1024


class StreamedAnswer(StreamingResponse):
    """A response from an async generator, which is closed as soon as the response ends or fails.

    Starlette leaves that to the garbage collector, and the generator would hold its resources until then.
    """

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            close = getattr(self.body_iterator, "aclose", None)
            if close is not None:
                with anyio.CancelScope(shield=True):
                    await close()


class HttpGuard:
    def __init__(
        self,
        *,
        listen_host: str = "127.0.0.1",
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
        trusted_proxies: Sequence[str] = (),
        max_body: int = MAX_BODY,
        tracing: Tracing = OFF,
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        self._recorder = recorder
        self._proxies = TrustedProxies(trusted_proxies) if trusted_proxies else None
        self._hosts = HostRule(listen_host, allowed_hosts)
        self._origins = OriginRule(allowed_origins)
        self._max_body = max_body
        self._tracing = tracing
        # The same few headers come again and again; parsing them each time would be most of the cost.
        self._find_refusal = lru_cache(maxsize=_CACHED_CHECKS)(self._check_host_and_origin)

    async def __call__(self, request: Request, receive: Receive, send: Send, serve: Stage) -> None:
        """Lets `serve` answer a request that it has nothing against."""
        scope, headers = request.scope, request.headers
        given = headers.get(b"x-request-id")
        chosen_id = given if given is not None and _REQUEST_ID.fullmatch(given) else os.urandom(8).hex().encode()
        request.id = chosen_id.decode()
        request_id.set(request.id)
        answer = _Response(send, chosen_id, tls_required=scope["scheme"] in _TLS and _is_remote(headers))
        if self._proxies is not None:
            self._proxies.apply(scope)
        handle = self._http if scope["type"] == "http" else self._websocket
        if self._tracing is OFF and TRACEPARENT not in headers:
            await handle(request, receive, answer, serve, NO_SPAN)
            return
        may_begin = not scope["path"].startswith(_BEGIN_NO_TRACE)
        with self._tracing.request(scope["headers"], headers, may_begin=may_begin) as span:
            await handle(request, receive, answer, serve, span)

    async def _http(self, request: Request, receive: Receive, answer: "_Response", serve: Stage, span: Span) -> None:
        scope = request.scope
        method, send = scope["method"], answer.send
        if method == "HEAD" and request.kind is not Kind.PREVIEW:
            request.scope, send = {**scope, "method": "GET"}, answer.send_head
        try:
            self._check(request)
            length = request.headers.get(b"content-length")
            if not request.streams and (length is not None or b"transfer-encoding" in request.headers):
                receive = self._check_body(request, length, receive)
            await serve(request, receive, send)
        except WarrenError as exc:
            await answer.fail(scope, receive, exc, problem(exc))
        except Exception as exc:
            await answer.fail(scope, receive, exc, None)
        finally:
            self._end_request(method, request, answer, span)

    async def _websocket(
        self, request: Request, receive: Receive, answer: "_Response", serve: Stage, span: Span
    ) -> None:
        scope = request.scope
        try:
            self._check(request)
        except WarrenError as exc:
            await refuse_websocket(scope, receive, answer.send, problem(exc))
            return

        async def send_or_refuse(message: Message) -> None:
            # the app closes a WebSocket that it has no route for
            if message["type"] == "websocket.close" and not answer.started:
                unknown = NotFound(f"there is no WebSocket at {scope['path'][:80]!r}")
                await refuse_websocket(scope, receive, answer.send, problem(unknown))
            else:
                await answer.send(message)

        try:
            await serve(request, receive, send_or_refuse)
        except WarrenError as exc:
            await _abort_websocket(scope, receive, answer.send, problem(exc), _CLOSE_BASE + exc.http_status)
        except Exception as exc:
            if not is_disconnect(exc):
                await _abort_websocket(scope, receive, answer.send, internal_problem(exc), 1011)
        finally:
            self._end_request("WEBSOCKET", request, answer, span)

    def _end_request(self, method: str, request: Request, answer: "_Response", span: Span) -> None:
        """Records the request, with the route instead of the path, whose names must not be logged."""
        operation = request.operation
        route = operation.path if operation is not None else _route_of(request)
        status, seconds = answer.status or CALLER_LEFT, time.perf_counter() - answer.began
        # A sandbox may respond as it likes: it must neither invent metric labels nor look like an error of the server.
        self._recorder.request_ended(route, method, _PASSED_ON if request.from_sandbox else status, seconds)
        is_known = bool(request.caller.scopes)
        if span is not NO_SPAN and span.is_recorded:
            if not is_known:
                self._tracing.distrust(span)
            if span.is_recorded:
                _note_request(span, method, route, status, request)
        tenant = request.caller.tenant if is_known else None
        _log.info("request", method=method, route=route, status=status, ms=round(seconds * 1000, 2), tenant=tenant)

    def _check(self, request: Request) -> None:
        scope, headers = request.scope, request.headers
        host = headers.get(b"host")
        if len(headers) != len(scope["headers"]) and sum(name == b"host" for name, _ in scope["headers"]) > 1:
            raise InvalidRequest("the request has more than one Host header")
        if host is None and scope["http_version"] != "1.0":
            raise InvalidRequest("the request has no Host header")
        if scope["query_string"].count(b"&") >= MAX_PARAMETERS:
            raise InvalidRequest(f"the query of the request has more than {MAX_PARAMETERS} parameters")
        refusal = self._find_refusal(host, headers.get(b"origin"))
        if refusal is not None:
            raise type(refusal)(refusal.message, remedy=refusal.remedy)

    def _check_host_and_origin(self, host: bytes | None, origin: bytes | None) -> WarrenError | None:
        authority = None if host is None else read_authority(host.decode("latin-1"))
        if host is not None and not self._hosts.all and (authority is None or not self._hosts.allows(authority)):
            name = "it" if authority is None else str(authority.host)  # the option takes no port
            return HostNotAllowed(
                f"this server does not answer for the host {host[:80].decode('latin-1')!r}",
                remedy=f"if the name is yours, put {name} in WARREN_ALLOWED_HOSTS",
            )
        if origin is not None and not self._origins.allows(origin.decode("latin-1"), authority):
            return OriginNotAllowed(
                f"web pages from {origin[:80].decode('latin-1')!r} may not use this server",
                remedy="programs send no Origin; a page must come from the server's own address",
            )
        return None

    def _check_body(self, request: Request, length: bytes | None, receive: Receive) -> Receive:
        """Refuses a body whose Content-Length is too large, and counts a body without one while it arrives."""
        chunked = b"transfer-encoding" in request.headers
        if length is not None and int(length) > self._max_body:
            raise _too_large(self._max_body)
        return limit_body(receive, self._max_body) if chunked else receive


def limit_body(receive: Receive, most: int) -> Receive:
    """Returns a `receive` that raises TooLarge instead of the message with which the body becomes too long."""
    taken = 0

    async def count() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise _too_large(most)
        return message

    return count


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body of the request is larger than {most} bytes", remedy="send large data as a file upload")


_STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
SWITCHING_PROTOCOLS = 101
_CLOSE_BASE = 4000  # a WebSocket is closed for an error with this plus the error's HTTP status
_PASSED_ON = 200
CALLER_LEFT = 499  # no status was sent: the caller disconnected first


_TLS = ("https", "wss")


def _is_remote(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a client that uses TLS is to be told to use it from now on: not for loopback."""
    authority = read_authority(headers.get(b"host", b"").decode("latin-1"))
    return authority is not None and not is_loopback(authority.host)


def _route_of(request: Request) -> str:
    """What the log shows of a request for no operation: the route of FastAPI, if one answered."""
    return request.route or getattr(request.scope.get("route"), "path", NO_ROUTE)


def _note_request(span: Span, method: str, route: str, status: int, request: Request) -> None:
    known: dict[str, Value] = {"http.request.method": method, "http.response.status_code": status}
    if route != NO_ROUTE:
        known["http.route"] = route
    span.name = f"{method} {request.action if route == NO_ROUTE else route}".strip()
    span.note(**known)
    session_id = request.session_id or request.scope.get("path_params", {}).get("session_id", "")
    if _SESSION_ID.fullmatch(session_id):
        span.note(session=session_id)
    if status >= 500:
        span.error = str(status)


class _Response:
    """Sends the app's response with the guard's headers, and remembers its status."""

    __slots__ = ("_request_id", "_send", "_tls_required", "began", "status")

    def __init__(self, send: Send, chosen_id: bytes, *, tls_required: bool) -> None:
        self._send = send
        self._request_id = chosen_id
        self._tls_required = tls_required
        self.began = time.perf_counter()
        self.status = 0

    @property
    def started(self) -> bool:
        return self.status != 0

    async def send(self, message: Message) -> None:
        if message["type"] in _STARTS:
            self.status = message["status"]
            if not message.pop(BARE, False):
                headers = message.get("headers", ())
                names = dict(headers)
                complete = [*headers, (b"x-request-id", self._request_id), *SECURITY_HEADERS]
                for header in DEFAULT_HEADERS:
                    if header[0] not in names:
                        complete.append(header)
                if self._tls_required:
                    complete.append(_STRICT_TRANSPORT)
                message["headers"] = complete
        elif message["type"] == "websocket.accept":
            self.status = SWITCHING_PROTOCOLS
        await self._send(message)

    async def send_head(self, message: Message) -> None:
        """Sends the response without its body. Ends a streamed body at once, as if the client had disconnected."""
        if message["type"] in _STARTS:
            await self.send(message)
            return
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        if message.get("more_body"):
            raise ClientDisconnected

    async def fail(self, scope: Scope, receive: Receive, exc: Exception, response: Response | None) -> None:
        if is_disconnect(exc):
            return
        if self.started:
            if not logged_error_id(exc):
                internal_problem(exc)
            return
        answer = response or internal_problem(exc)
        free_frames(exc)
        await answer(scope, receive, self.send)


async def refuse_websocket(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    if "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})


async def _abort_websocket(scope: Scope, receive: Receive, send: Send, response: Response, code: int) -> None:
    try:
        await refuse_websocket(scope, receive, send, response)
    except RuntimeError:  # the WebSocket was accepted already
        with suppress(Exception):
            await send({"type": "websocket.close", "code": code})
