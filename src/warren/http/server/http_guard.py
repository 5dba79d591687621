"""What every request passes before the app sees it, and every answer before it leaves.

`HttpGuard` is one ASGI middleware rather than five, because each layer costs every request time. It wraps the whole
app, from outside. For a request it finds out who asks (a proxy may stand in between), checks the Host (a web page
that had its own name resolve to this machine must not reach the server), the Origin (a web page from elsewhere must
not use the browser's reach), and the size of the body; it gives the request an id; and it sees to it that an
exception becomes an answer. It never raises, except when cancelled: an answer that broke off is returned incomplete,
and the server then closes the connection.

HEAD is GET whose answer ends before its body. There is no CORS: no page from elsewhere is ever told that it may.

The time-outs and the limits on connections are not here: the server keeps them, see `serving`.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

import anyio
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from warren.http.problems import internal_problem, is_disconnect, let_go, problem, was_logged
from warren.http.server.origins import HostRule, OriginRule, read_authority
from warren.http.server.proxies import TrustedProxies
from warren.logs import get_log
from warren.model.addresses import is_loopback
from warren.model.errors import HostNotAllowed, InvalidRequest, NotFound, OriginNotAllowed, TooLarge, WarrenError

_log = get_log(__name__)

MAX_BODY = 4 * 1024 * 1024
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_REMEMBERED = 256
CAUTION = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""On every answer: what a browser must not do with it."""
UNLESS_SAID = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""On every answer that does not say it otherwise."""
_ONLY_TLS = (b"strict-transport-security", b"max-age=31536000")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request being served, for logs."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    header_timeout_s: float = 10
    body_timeout_s: float = 30
    send_timeout_s: float = 60
    keep_alive_s: float = 75
    max_connections: int = 10_000
    max_header_bytes: int = 64 * 1024


class StreamedAnswer(StreamingResponse):
    """A body from an async generator, which is closed as soon as the answer ends, however it ends.

    Starlette leaves that to the garbage collector, which may take its time; what the generator holds waits so long.
    """

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            close = getattr(self.body_iterator, "aclose", None)
            if close is not None:
                with anyio.CancelScope(shield=True):
                    await close()


def _never(scope: Scope) -> bool:
    return False


class HttpGuard:
    """The middleware. `takes_stream` tells the requests whose body is a stream of any length, read as it comes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        listen_host: str = "127.0.0.1",
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
        trusted_proxies: Sequence[str] = (),
        max_body: int = MAX_BODY,
        takes_stream: Callable[[Scope], bool] = _never,
    ) -> None:
        self._app = app
        self._proxies = TrustedProxies(trusted_proxies)
        self._hosts = HostRule(listen_host, allowed_hosts)
        self._origins = OriginRule(allowed_origins)
        self._max_body = max_body
        self._takes_stream = takes_stream
        # The same few headers come again and again; reading them anew each time would be most of the cost.
        self._objection = lru_cache(maxsize=_REMEMBERED)(self._find_objection)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        answer = _Answer(send, _choose_id(headers.get(b"x-request-id")), self._only_tls(scope, headers))
        if self._proxies:
            self._proxies.apply(scope)
        is_head = scope["method"] == "HEAD"
        inner = {**scope, "method": "GET"} if is_head else scope
        try:
            self._check(scope, headers)
            body = self._body(scope, headers, receive)
            await self._app(inner, body, answer.send_head if is_head else answer.send)
        except WarrenError as exc:
            await answer.fail(scope, receive, exc, problem(exc))
        except Exception as exc:
            await answer.fail(scope, receive, exc, None)
        finally:
            _log_request(scope["method"], inner, answer)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        answer = _Answer(send, _choose_id(headers.get(b"x-request-id")), self._only_tls(scope, headers))
        if self._proxies:
            self._proxies.apply(scope)
        try:
            self._check(scope, headers)
        except WarrenError as exc:
            await _refuse_websocket(scope, receive, answer.send, problem(exc))
            return

        async def send_or_refuse(message: Message) -> None:
            if message["type"] == "websocket.close" and not answer.started:  # as the app does where it has no socket
                unknown = NotFound(f"there is no WebSocket at {scope['path'][:80]!r}")
                await _refuse_websocket(scope, receive, answer.send, problem(unknown))
            else:
                await answer.send(message)

        try:
            await self._app(scope, receive, send_or_refuse)
        except WarrenError as exc:
            await _break_off(scope, receive, answer.send, problem(exc))
        except Exception as exc:
            if not is_disconnect(exc):
                await _break_off(scope, receive, answer.send, internal_problem(exc))
        finally:
            _log_request("WEBSOCKET", scope, answer)

    def _only_tls(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Whether a browser is told to come by TLS from now on: if the TLS is ours, and so is the name."""
        if scope["scheme"] not in ("https", "wss"):
            return False
        asked = read_authority(headers.get(b"host", b"").decode("latin-1"))
        return asked is not None and not is_loopback(asked.host)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host")
        if len(headers) != len(scope["headers"]) and sum(name == b"host" for name, _ in scope["headers"]) > 1:
            raise InvalidRequest("the request has more than one Host header")
        if host is None and scope["http_version"] != "1.0":
            raise InvalidRequest("the request has no Host header")
        objection = self._objection(host, headers.get(b"origin"))
        if objection is not None:
            raise type(objection)(objection.message, remedy=objection.remedy)

    def _find_objection(self, host: bytes | None, origin: bytes | None) -> WarrenError | None:
        asked = None if host is None else read_authority(host.decode("latin-1"))
        if host is not None and not self._hosts.all and (asked is None or not self._hosts.allows(asked)):
            return HostNotAllowed(
                f"this server does not answer for the host {host[:80].decode('latin-1')!r}",
                remedy="if the name is yours, put it in WARREN_ALLOWED_HOSTS",
            )
        if origin is not None and not self._origins.allows(origin.decode("latin-1"), asked):
            return OriginNotAllowed(
                f"web pages from {origin[:80].decode('latin-1')!r} may not use this server",
                remedy="programs send no Origin; a page must come from the server's own address",
            )
        return None

    def _body(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """Refuses a body that says it is too large; one that does not say is counted while it comes."""
        length = headers.get(b"content-length")
        chunked = b"transfer-encoding" in headers
        if (length is None and not chunked) or self._takes_stream(scope):
            return receive
        if length is not None and int(length) > self._max_body:
            raise self._too_large()
        return self._counted(receive) if chunked else receive

    def _counted(self, receive: Receive) -> Receive:
        taken = 0

        async def count() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_body:
                raise self._too_large()
            return message

        return count

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"the body of the request is larger than {self._max_body} bytes",
            remedy="send large data as a file upload",
        )


_STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
_SWITCHED = 101
_CALLER_LEFT = 499  # no status was sent: the caller went away first


def _choose_id(given: bytes | None) -> bytes:
    chosen = given if given is not None and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8).encode()
    return chosen


def _log_request(method: str, scope: Scope, answer: "_Answer") -> None:
    """The route stands for the path, which may hold names that are nobody's business."""
    if not _log.writes(logging.INFO):
        return
    operation, caller = scope.get("operation"), scope.get("caller")
    _log.info(
        "request",
        method=method,
        route=operation[0].path if operation else getattr(scope.get("route"), "path", "unknown"),
        status=answer.status or _CALLER_LEFT,
        ms=round((time.perf_counter() - answer.began) * 1000, 2),
        tenant=caller.tenant if caller is not None and caller.scopes else None,
    )


class _Answer:
    """Sends the app's answer with our headers on it, and remembers how far it came."""

    __slots__ = ("_only_tls", "_request_id", "_send", "began", "status")

    def __init__(self, send: Send, chosen_id: bytes, only_tls: bool) -> None:
        self._send = send
        self._request_id = chosen_id
        self._only_tls = only_tls
        self.began = time.perf_counter()
        self.status = 0
        request_id.set(chosen_id.decode())

    @property
    def started(self) -> bool:
        return self.status != 0

    async def send(self, message: Message) -> None:
        if message["type"] in _STARTS:
            self.status = message["status"]
            message["headers"] = self._dressed(message.get("headers", ()))
        elif message["type"] == "websocket.accept":
            self.status = _SWITCHED
        await self._send(message)

    async def send_head(self, message: Message) -> None:
        """Without a body, and without waiting for the end of one that is a stream: for the app, the client goes."""
        if message["type"] in _STARTS:
            await self.send(message)
            return
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        if message.get("more_body"):
            raise ClientDisconnected

    def _dressed(self, headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        said = {name for name, _ in headers}
        dressed = [*headers, (b"x-request-id", self._request_id), *CAUTION]
        dressed += [header for header in UNLESS_SAID if header[0] not in said]
        if self._only_tls:
            dressed.append(_ONLY_TLS)
        return dressed

    async def fail(self, scope: Scope, receive: Receive, exc: Exception, response: Response | None) -> None:
        if is_disconnect(exc):
            return
        if self.started:
            if not was_logged(exc):
                internal_problem(exc)
            return
        answer = response or internal_problem(exc)
        let_go(exc)
        await answer(scope, receive, self.send)


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    if "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})


async def _break_off(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    try:
        await _refuse_websocket(scope, receive, send, response)
    except RuntimeError:  # it was open already
        with suppress(Exception):
            await send({"type": "websocket.close", "code": 1011})
