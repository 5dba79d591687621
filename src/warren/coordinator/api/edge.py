"""What every request passes before the app sees it, and every answer before it leaves.

`Edge` is one ASGI middleware rather than five, because each layer costs every request time. It wraps the whole
app, from outside. For a request it checks the Host (a web page that had its own name resolve to this machine must
not reach the server), the Origin (a web page from elsewhere must not use the browser's reach), and the size of
the body; it gives the request an id; and it sees to it that an exception becomes an answer. It never raises,
except when cancelled: an answer that broke off is returned incomplete, and the server then closes the connection.

The time-outs and the limits on connections are not here: the server keeps them, see `serving`.
"""

import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

import anyio
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warren.coordinator.api.problems import internal_problem, is_disconnect, let_go, problem, was_logged
from warren.model.errors import HostNotAllowed, InvalidRequest, OriginNotAllowed, TooLarge, WarrenError

MAX_BODY = 4 * 1024 * 1024
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_REMEMBERED = 256
_ALWAYS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_NO_STORE = (b"cache-control", b"no-store")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request being served, for logs."""


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    header_timeout_s: float = 10
    body_timeout_s: float = 30
    send_timeout_s: float = 60
    keep_alive_s: float = 75
    max_connections: int = 10_000
    max_header_bytes: int = 64 * 1024


class Authority(NamedTuple):
    """A host and perhaps a port, in the one spelling that can be compared."""

    host: str | IPv4Address | IPv6Address
    port: int | None


def read_authority(text: str) -> Authority | None:
    """`Example.COM.:80`, `[::1]:8000`, `127.0.0.1`; nothing if it is not written properly."""
    host, colon, port = text.strip().lower().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.strip().lower(), ""
    elif not (port.isascii() and port.isdigit() and int(port[:6]) < 65536):
        return None
    canonical = _canonical(host)
    return None if canonical is None else Authority(canonical, int(port) if port else None)


def _canonical(host: str) -> str | IPv4Address | IPv6Address | None:
    try:
        if host.startswith("["):
            address = IPv6Address(host[1:-1]) if host.endswith("]") and "%" not in host else None
            return address.ipv4_mapped or address if address is not None else None
        return ip_address(host)
    except ValueError:
        name = host.removesuffix(".")
        return name if _NAME.fullmatch(name) else None


def _is_loopback(host: str | IPv4Address | IPv6Address) -> bool:
    if isinstance(host, str):
        return host == "localhost" or host.endswith(".localhost")
    return host.is_loopback


class HostRule:
    """Which hosts a request may name: this machine's loopback, what we listen on, and what was allowed.

    An allowed entry is `example.com`, `example.com:8443`, `*.example.com` or `*`. A server that listens on all
    addresses is also reached by address: a name can be made to point here by anybody, an address cannot.
    """

    def __init__(self, listen_host: str, allowed: Sequence[str]) -> None:
        entries = [entry.strip().lower() for entry in allowed if entry.strip()]
        self.all = "*" in entries
        self._suffixes = tuple(entry[1:] for entry in entries if entry.startswith("*."))
        self._allowed = {_must_read(entry) for entry in entries if not entry.startswith("*")}
        bracketed = f"[{listen_host}]" if ":" in listen_host and not listen_host.startswith("[") else listen_host
        listen = read_authority(bracketed)
        self._all_addresses = listen is None or (not isinstance(listen.host, str) and listen.host.is_unspecified)
        if listen is not None and not self._all_addresses:
            self._allowed.add(Authority(listen.host, None))

    def allows(self, asked: Authority) -> bool:
        if (
            self.all
            or _is_loopback(asked.host)
            or asked in self._allowed
            or Authority(asked.host, None) in self._allowed
        ):
            return True
        if isinstance(asked.host, str):
            return asked.host.endswith(self._suffixes) if self._suffixes else False
        return self._all_addresses and not asked.host.is_unspecified


def _must_read(entry: str) -> Authority:
    found = read_authority(entry) or read_authority(f"[{entry}]")
    if found is None:
        raise InvalidRequest(f"{entry!r} is not a host", remedy="write it as example.com, example.com:8443 or [::1]")
    return found


class OriginRule:
    """Which web pages may send requests: those this server itself serves, and the allowed ones (`https://a.example`)."""

    def __init__(self, allowed: Sequence[str]) -> None:
        entries = [entry.strip() for entry in allowed if entry.strip()]
        self._all = "*" in entries
        self._allowed = {_must_read_origin(entry) for entry in entries if entry != "*"}

    def allows(self, origin: str, host: Authority | None) -> bool:
        if self._all:
            return True
        asking = _read_origin(origin)
        if asking is None:
            return False
        scheme, page = asking
        if asking in self._allowed:
            return True
        # The scheme of the Host is unknown behind a proxy that ends TLS, so a Host without a port is of the page's.
        return host is not None and page == Authority(host.host, host.port or _DEFAULT_PORTS[scheme])


def _read_origin(text: str) -> tuple[str, Authority] | None:
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or parts.path not in ("", "/") or parts.query or parts.fragment:
        return None
    found = read_authority(parts.netloc)
    return None if found is None else (parts.scheme, Authority(found.host, found.port or _DEFAULT_PORTS[parts.scheme]))


def _must_read_origin(entry: str) -> tuple[str, Authority]:
    found = _read_origin(entry)
    if found is None:
        raise InvalidRequest(f"{entry!r} is not an origin", remedy="write it as https://example.com")
    return found


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


class Edge:
    """The middleware. `is_upload` tells the requests whose body is a stream of any length, read as it comes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        listen_host: str = "127.0.0.1",
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
        max_body: int = MAX_BODY,
        is_upload: Callable[[Scope], bool] = _never,
    ) -> None:
        self._app = app
        self._hosts = HostRule(listen_host, allowed_hosts)
        self._origins = OriginRule(allowed_origins)
        self._max_body = max_body
        self._is_upload = is_upload
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
        answer = _Answer(send, _choose_id(headers.get(b"x-request-id")))
        try:
            self._check(scope, headers)
            await self._app(scope, self._body(scope, headers, receive), answer.send)
        except WarrenError as exc:
            await answer.fail(scope, receive, exc, problem(exc))
        except Exception as exc:
            await answer.fail(scope, receive, exc, None)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        request_id.set(_choose_id(headers.get(b"x-request-id")).decode())
        try:
            self._check(scope, headers)
        except WarrenError as exc:
            await _refuse_websocket(scope, receive, send, problem(exc))
            return
        try:
            await self._app(scope, receive, send)
        except WarrenError as exc:
            await _break_off(scope, receive, send, problem(exc))
        except Exception as exc:
            if not is_disconnect(exc):
                await _break_off(scope, receive, send, internal_problem(exc))

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
        if (length is None and not chunked) or self._is_upload(scope):
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


def _choose_id(given: bytes | None) -> bytes:
    chosen = given if given is not None and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8).encode()
    return chosen


class _Answer:
    """Sends the app's answer with our headers on it, and remembers how far it came."""

    __slots__ = ("_request_id", "_send", "started")

    def __init__(self, send: Send, chosen_id: bytes) -> None:
        self._send = send
        self._request_id = chosen_id
        self.started = False
        request_id.set(chosen_id.decode())

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = self._dressed(message.get("headers", ()))
        await self._send(message)

    def _dressed(self, headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        dressed = [*headers, (b"x-request-id", self._request_id), *_ALWAYS]
        if all(name != b"cache-control" for name, _ in headers):
            dressed.append(_NO_STORE)
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
