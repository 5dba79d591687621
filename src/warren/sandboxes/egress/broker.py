"""The broker: adds the secrets of a sandbox to requests for the hosts they are bound to, outside of the sandbox. In the
same way it sets the headers of header rules, for hosts that the sandbox's network rules allow.

A sandbox reaches it in two ways. `http://NAME.broker.internal/…` is plain HTTP as far as the broker, and TLS from
there. A TLS connection for a bound host ends at the broker, with a certificate that the sandbox trusts, and the broker
opens another one to the host. Either way the broker parses every request strictly, removes the client's own value of
the header or parameter, adds the secret, and sends the request to the bound host, whose certificate it verifies. It
follows no redirect: the client gets the redirect. Anything that is not a request ends the connection.

The proxy (`proxy.py`) hands over connections for which `takes` is true. `dial` connects to a bound host under the
operator's rules.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from warren.model.header_rules import HeaderRule
from warren.model.secrets import BoundSecret, SecretKind
from warren.sandboxes.egress.broker_http import (
    UNTIL_END,
    AnswerHead,
    RequestHead,
    Scrubber,
    Work,
    format_head,
    framing,
    no_work,
    read_answer,
    read_body,
    read_request,
    with_parameter,
    write_body,
)
from warren.sandboxes.egress.broker_streams import BrokerStream, Reader, SocketStream, TlsStream
from warren.sandboxes.egress.broker_websocket import scrub_frames
from warren.sandboxes.egress.certificates import Certificates, server_context
from warren.sandboxes.egress.http_syntax import Fields, Malformed, read_host

HTTP_PORT: Final = 80
TLS_PORT: Final = 443
HANDSHAKE_S: Final = 15.0
HEAD_S: Final = 30.0  # for the rest of a head once it has begun
IDLE_S: Final = 300.0  # between two requests of one connection
SILENCE_S: Final = 900.0  # of a host that works on its response
_LINGER_S: Final = 2.0
_LINGER_READS: Final = 64
_REUSED_S: Final = 4.0  # a host may close an idle connection at any time, but few do so this early

Dial = Callable[[str, int], Awaitable[socket.socket]]
Refused = Callable[[str, int, str], None]
"""Called with the name and port of a connection, and why it was refused."""
Pay = Callable[[], Awaitable[None]]
"""Called before each request. Returns when the sandbox has time left for it."""
Addition = BoundSecret | HeaderRule
"""What requests for a host get."""


async def _no_pay() -> None:
    pass


@dataclass(frozen=True, slots=True)
class BrokerSetup:
    """The broker of one sandbox, as the worker sends it to the proxy in JSON."""

    secrets: tuple[BoundSecret, ...]
    certificates: Certificates
    headers: tuple[HeaderRule, ...] = ()

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "BrokerSetup":
        secrets = (
            BoundSecret(**{**each, "hosts": tuple(each["hosts"]), "kind": SecretKind(each["kind"])})
            for each in values["secrets"]
        )
        headers = (HeaderRule(**each) for each in values["headers"])
        return cls(tuple(secrets), Certificates(**values["certificates"]), tuple(headers))


class Broker:
    """The secrets and header rules of one sandbox. `close` ends all connections at once, so that a deleted secret stops
    working. Where both would set a header, the secret does."""

    def __init__(
        self,
        setup: BrokerSetup,
        upstream: ssl.SSLContext,
        dial: Dial,
        *,
        wall: Callable[[], float] = time.time,
        refused: Refused = lambda name, port, reason: None,
        pay: Pay = _no_pay,
        work: Work = no_work,
    ) -> None:
        self._by_name = {secret.broker_host: secret for secret in setup.secrets}
        self._by_host: dict[str, list[Addition]] = {}
        for secret in setup.secrets:
            for host in secret.hosts:
                self._by_host.setdefault(host, []).append(secret)
        self._granted = frozenset(self._by_host)
        for rule in setup.headers:
            present = self._by_host.setdefault(rule.host, [])
            if _plain(rule.header) not in {_plain(each.header) for each in present}:
                present.append(rule)
        self._certificates = setup.certificates
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._upstream = upstream
        self._dial = dial
        self._wall = wall
        self._refused = refused
        self._pay = pay
        self._work = work
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Broker of {len(self._by_name)} secrets, {len(self._tasks)} connections>"

    def knows_name(self, name: str) -> bool:
        """Returns whether the sandbox may look the name up and connect to it, whatever its network rules say. A header
        rule opens no host."""
        return name in self._by_name or name in self._granted

    def takes(self, name: str, port: int) -> bool:
        """Returns whether the broker serves connections to this name and port."""
        return (port == HTTP_PORT and name in self._by_name) or (port == TLS_PORT and name in self._by_host)

    async def serve(self, name: str, port: int, stream: BrokerStream) -> None:
        """Serves a connection for which `takes` is true to its end, and closes it. Raises only CancelledError."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self._closed:
                await self._serve(name, port, stream)
                await _linger(stream)
        except (Malformed, EOFError, OSError, TimeoutError) as exc:
            if isinstance(exc, Malformed):
                self._refused(name, port, str(exc))
        finally:
            self._tasks.discard(task)
            stream.close()

    def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()

    async def _serve(self, name: str, port: int, stream: BrokerStream) -> None:
        if port == HTTP_PORT:
            secret = self._by_name[name]
            await self._requests(name, port, secret.hosts[0], [secret], stream)
            await stream.end()
            return
        if name not in self._contexts:
            self._contexts[name] = server_context(self._certificates, name)
        tls = TlsStream(stream, self._contexts[name])
        async with asyncio.timeout(HANDSHAKE_S):
            await tls.handshake()
        await self._requests(name, port, name, self._by_host[name], tls)
        await tls.end()

    async def _requests(
        self, name: str, port: int, host: str, secrets: Sequence[Addition], client: BrokerStream
    ) -> None:
        connection = _Connection(host, secrets, client, self._open_upstream, self._work)
        try:
            while (request := await connection.next_request()) is not None:
                await self._pay()
                problem = _check(request, name, port)
                if not problem and any(secret.is_expired(self._wall()) for secret in secrets):
                    problem = 403, "the secret for this host has expired"
                if problem:
                    self._refused(name, port, problem[1])
                    await connection.answer(*problem)
                    return
                if not await connection.forward(request):
                    return
        finally:
            connection.close()

    async def _open_upstream(self, host: str) -> TlsStream:
        async with asyncio.timeout(HANDSHAKE_S):
            stream = SocketStream(await self._dial(host, TLS_PORT))
            try:
                tls = TlsStream(stream, self._upstream, server_hostname=host)
                await tls.handshake()
            except BaseException:
                stream.close()
                raise
            return tls


def _check(request: RequestHead, name: str, port: int) -> tuple[int, str] | None:
    """Returns the status and sentence of a refusal, or None if a well-formed request may pass."""
    if request.method == b"CONNECT":
        return 405, "the broker is not a proxy: CONNECT is not taken"
    if not request.target.startswith(b"/") and (request.method, request.target) != (b"OPTIONS", b"*"):
        return 400, "the broker is not a proxy: send the path alone"
    named = read_host(request.values(b"host"))
    return None if named in ((name, 0), (name, port)) else (421, "its Host is not the host of the connection")


class _Connection:
    """A client's connection, with its connection to the bound host."""

    def __init__(
        self,
        host: str,
        secrets: Sequence[Addition],
        client: BrokerStream,
        open_upstream: Callable[[str], Awaitable[TlsStream]],
        work: Work,
    ) -> None:
        self._host = host
        self._secrets = secrets
        self._client = client
        self._from_client = Reader(client)
        self._open_upstream = open_upstream
        self._work = work
        self._upstream: tuple[TlsStream, Reader] | None = None
        self._free_since = 0.0
        self._scrubs = any(secret.scrub for secret in secrets)
        traces = [(secret.scrub, secret.traces) for secret in secrets]
        self._traces = [trace for scrub, those in traces if scrub for trace in those]
        # Headers are always scrubbed, whatever the secret says about bodies.
        self._head_traces = [trace for _, those in traces for trace in those]

    async def next_request(self) -> RequestHead | None:
        if self._from_client.is_empty:
            async with asyncio.timeout(IDLE_S):
                if not await self._from_client.fill():
                    return None
        async with asyncio.timeout(HEAD_S):
            return await read_request(self._from_client)

    async def forward(self, request: RequestHead) -> bool:
        """Sends the request to the host and the response back. Returns whether the connection continues."""
        while True:
            is_reused = self._upstream is not None and time.monotonic() - self._free_since < _REUSED_S
            try:
                stream, reader = await self._connect()
            except (OSError, TimeoutError) as exc:
                await self.answer(502, f"{self._host} cannot be reached: {_reason(exc)}")
                return False
            sending = asyncio.create_task(self._send(request, stream))
            try:
                answer = await self._first_answer(request, reader, sending)
                if answer is None:
                    # The host closed an idle connection before it saw the request.
                    if is_reused and request.length == 0 and request.method in (b"GET", b"HEAD", b"OPTIONS"):
                        self._close_upstream()
                        continue
                    await self.answer(502, f"{self._host} closed the connection")
                    return False
                if answer.status == 101:
                    await self._splice(request, answer, stream, reader)
                    return False
                return await self._return(request, answer, reader, sending)
            except Malformed as exc:
                if not sending.done() or sending.exception() is None:
                    await self.answer(502, f"{self._host} did not answer in HTTP: {exc}")
                raise
            finally:
                await _end(sending)

    async def _connect(self) -> tuple[TlsStream, Reader]:
        if self._upstream is not None and time.monotonic() - self._free_since >= _REUSED_S:
            self._close_upstream()
        if self._upstream is None:
            stream = await self._open_upstream(self._host)
            self._upstream = stream, Reader(stream)
        return self._upstream

    async def _send(self, request: RequestHead, upstream: BrokerStream) -> None:
        await upstream.write(self._request_head(request))
        await write_body(upstream, read_body(self._from_client, request.length), request.length)

    def _request_head(self, request: RequestHead) -> bytes:
        target = request.target
        # The client must not be able to send its own value beside the secret, nor learn the secret from a response that
        # is compressed, or from parts of one.
        taken = {_plain(secret.header) for secret in self._secrets if secret.header}
        taken |= {"host", *(_WHOLE if self._scrubs else ())}
        headers: Fields = [(b"Host", self._host.encode())]
        for name, value in request.end_to_end():
            if _plain(name.decode()) not in taken:
                headers.append((name, value))
        for secret in self._secrets:
            if secret.header:
                headers.append((secret.header.encode(), secret.carried.encode()))
            else:
                target = with_parameter(target, secret.query, secret.carried)
        if self._scrubs:
            headers.append((b"Accept-Encoding", b"identity"))
        if request.length or request.values(b"content-length"):
            headers += framing(request.length)
        if request.is_websocket:
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        return format_head(b"%b %b HTTP/1.1" % (request.method, target), headers)

    async def _first_answer(
        self, request: RequestHead, reader: Reader, sending: asyncio.Task[None]
    ) -> AnswerHead | None:
        """Returns the first response that is not an interim one; passes interim responses on. Returns None if the host
        closed the connection. Raises what is wrong with the request's body, if that is found first."""
        while True:
            reading = asyncio.ensure_future(read_answer(reader, request.method))
            try:
                async with asyncio.timeout(SILENCE_S):
                    await asyncio.wait([reading, sending], return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done() and isinstance(sending.exception(), Malformed | EOFError):
                        sending.result()
                    # A host may respond before it has read the whole request, and then close.
                    answer = await reading
            except (OSError, EOFError):
                if reading.done() and not isinstance(_error_of(sending), Malformed | EOFError):
                    return None
                raise
            finally:
                await _end(reading)
            if answer is None or answer.status >= 200 or answer.status == 101:
                return answer
            await self._client.write(await self._answer_head(request, answer, b""))

    async def _return(
        self, request: RequestHead, answer: AnswerHead, reader: Reader, sending: asyncio.Task[None]
    ) -> bool:
        codings = answer.tokens(b"content-encoding") - {b"identity"}
        if self._scrubs and codings and answer.length:
            await self.answer(502, f"{self._host} sends a compressed answer, {_unchecked(self._secrets)}")
            return False
        if self._scrubs and answer.status in _PARTIAL:
            await self.answer(502, f"{self._host} sends a part of an answer, {_unchecked(self._secrets)}")
            return False
        keeps = request.keeps_alive and answer.length != UNTIL_END
        await self._client.write(await self._answer_head(request, answer, b"keep-alive" if keeps else b"close"))
        pieces = _timed(read_body(reader, answer.length))
        if self._traces:
            pieces = Scrubber(self._traces, self._work).pieces(pieces)
        await write_body(self._client, pieces, answer.length)
        if not sending.done():
            return False  # the host did not want the rest of the request
        self._free_since = time.monotonic()
        if not answer.keeps_alive or sending.exception() is not None:
            self._close_upstream()
        return keeps and sending.exception() is None

    async def _answer_head(self, request: RequestHead, answer: AnswerHead, connection: bytes) -> bytes:
        headers = answer.end_to_end()
        if answer.status >= 200:
            if request.method == b"HEAD" or answer.status == 304:
                headers += [(b"Content-Length", value) for value in answer.values(b"content-length")]
            elif answer.status != 204:
                headers += framing(answer.length)
            headers.append((b"Connection", connection))
        elif answer.status == 101:
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        first = b"HTTP/1.1 %d %b" % (answer.status, answer.reason)
        return await Scrubber(self._head_traces, self._work).clean_all(format_head(first, headers))

    async def _splice(self, request: RequestHead, answer: AnswerHead, upstream: BrokerStream, reader: Reader) -> None:
        """Relays both ways after an upgrade, until one side ends. Raises Malformed if it is no WebSocket."""
        if not request.is_websocket or answer.tokens(b"upgrade") != {b"websocket"}:
            raise Malformed("the host changed to a protocol that nobody asked for")
        await self._client.write(await self._answer_head(request, answer, b""))
        scrubber = Scrubber(self._traces, self._work)
        back = scrub_frames(reader, scrubber) if self._traces else read_body(reader, UNTIL_END)
        tasks = [
            asyncio.create_task(write_body(self._client, back, UNTIL_END)),
            asyncio.create_task(write_body(upstream, read_body(self._from_client, UNTIL_END), UNTIL_END)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                await _end(task)

    async def answer(self, status: int, sentence: str) -> None:
        """Responds in place of the host; the connection ends afterwards."""
        body = f"Warren's broker: {sentence}\n".encode()
        headers = [
            (b"Content-Type", b"text/plain; charset=utf-8"),
            (b"Content-Length", b"%d" % len(body)),
            (b"Connection", b"close"),
        ]
        with contextlib.suppress(OSError):
            await self._client.write(format_head(b"HTTP/1.1 %d %b" % (status, _REASONS[status]), headers) + body)

    def _close_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream[0].close()
            self._upstream = None

    def close(self) -> None:
        self._close_upstream()


# What a client asks for an answer other than the whole of it, which alone can be scrubbed.
_WHOLE: Final = frozenset({"accept-encoding", "a-im", "if-range", "range", "request-range", "sec-websocket-extensions"})
_PARTIAL: Final = (206, 226)
_REASONS: Final = {
    400: b"Bad Request",
    403: b"Forbidden",
    405: b"Method Not Allowed",
    421: b"Misdirected Request",
    502: b"Bad Gateway",
}


def _unchecked(additions: Sequence[Addition]) -> str:
    """Returns what such an answer cannot be checked for, and what to do about it."""
    kinds = {type(each) for each in additions if each.scrub}
    reasons = {
        BoundSecret: ("secrets", "set a secret without scrub"),
        HeaderRule: ("headers that network rules set", "leave out the rules for this host"),
    }
    whats, remedies = zip(*(reason for kind, reason in reasons.items() if kind in kinds), strict=True)
    return f"which cannot be checked for {' and for '.join(whats)}: {', and '.join(remedies)}"


def _plain(header: str) -> str:
    """Returns the header's name as CGI-like servers see it: to them `X_Key` and `X-Key` are the same."""
    return header.lower().replace("_", "-")


def _reason(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({exc.verify_message})"
    if isinstance(exc, ssl.SSLError):
        return "it does not speak TLS as it should"
    if isinstance(exc, TimeoutError):
        return "it does not answer"
    return exc.strerror or "the connection failed" if isinstance(exc, OSError) else "the connection failed"


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


async def _linger(stream: BrokerStream) -> None:
    """Reads what still arrives: closing earlier would reset the connection, and the client lose the response."""
    async with asyncio.timeout(_LINGER_S):
        for _ in range(_LINGER_READS):
            if not await stream.read():
                return


async def _timed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(SILENCE_S):
            data = await anext(pieces, None)
        if data is None:
            return
        yield data


async def _end(task: "asyncio.Future[Any]") -> None:
    """Cancels a task and ignores its outcome."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
