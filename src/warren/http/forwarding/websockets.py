"""Connects a client's WebSocket to a worker's, or to a server inside a sandbox. The router and previews use it.

WebSockets of the API are relayed message by message, by two tasks, one for each direction. Each reads a message only
when the other side has taken the one before, so neither side can fill the coordinator's memory. When one side closes,
the other is closed with the same code and reason. Those of previews are relayed as the bytes of their frames
(frame_stream.py): their messages may have any length.

The coordinator sends no pings of its own here. The worker's server pings the coordinator, and the websockets package
responds; the coordinator's server pings the client. So each of the two connections is watched from one end, and the
end of one is the end of the other.
"""

import asyncio
import socket
import ssl
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, ProtocolError
from websockets.frames import Close
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from warren.http.client.errors import Broken, WebSocketRefused
from warren.http.client.headers import (
    HOP_BY_HOP,
    Header,
    Passes,
    headers_for_client,
    headers_for_worker,
    request_head,
    request_target,
)
from warren.http.client.pool import (
    CONNECT_TIMEOUT_S,
    connect_error,
    open_connection,
    parse_address,
    tls_for,
    use_socket,
)
from warren.http.forwarding.frame_stream import HANDSHAKE_TIMEOUT_S, WORKER_LOST, FrameStream, relay_frames
from warren.http.server.connections import RAW

MAX_MESSAGE: Final = 1024 * 1024  # the limit of the servers on both sides
_CLOSE_TIMEOUT_S: Final = 5.0
_MAX_QUEUED_MESSAGES: Final = 1
HANDSHAKE_HEADERS: Final = frozenset(
    {
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-extensions",
        b"sec-websocket-protocol",
        b"content-length",
    }
)
_NORMAL, _NO_CODE, _NO_CLOSE_FRAME, _REFUSED = 1000, 1005, 1006, 1008


async def forward_websocket(
    address: str,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    headers: Sequence[Header] = (),
    tls: ssl.SSLContext | None = None,
    raise_on: Container[int] = (),
    passes: Passes = Passes.USUAL,
    dialled: "Dialled | None" = None,
) -> None:
    """Relays messages both ways until one side closes, then closes the other with the same code and reason.

    A worker's refusal is forwarded with status, headers and body. If its status is in `raise_on`, `WebSocketRefused` is
    raised instead. `WebSocketRefused`, `Unreachable` (nothing was sent to the worker) and `Broken` are raised only
    before the client has a response, so that another worker can be tried. If the worker is lost later, the client is
    closed with 1011.

    With `dialled`, the other side is that connection, and `address` is not used.
    """
    if dialled is not None:
        stream = await use_socket(FrameStream, dialled.socket)
        await _forward_frames(stream, dialled.handshake(scope), scope, receive, send, raise_on)
        return
    parsed = parse_address(address)
    tls = tls_for(parsed, tls)
    uri = WebSocketURI(tls is not None, parsed.host, parsed.port, "/", "")
    sent = headers_for_worker(scope, headers, without=HANDSHAKE_HEADERS, passes=passes)
    protocol = _WebSocketHandshake(uri, scope, request_target(scope), sent)
    if passes is Passes.PREVIEW:
        stream = await open_connection(FrameStream, parsed, tls, CONNECT_TIMEOUT_S)
        await _forward_frames(stream, protocol, scope, receive, send, raise_on)
        return
    worker = await open_connection(lambda: _new_connection(protocol), parsed, tls, CONNECT_TIMEOUT_S)
    try:
        refusal = await _shake_hands(worker)
        if refusal is None:
            await send({"type": "websocket.accept", "subprotocol": worker.subprotocol, "headers": []})
            await _relay(worker, receive, send)
        elif refusal.status_code in raise_on:
            raise WebSocketRefused(refusal.status_code, _response_headers(refusal))
        else:
            await _forward_refusal(scope, send, refusal)
    finally:
        worker.transport.abort()


async def _forward_frames(
    stream: FrameStream,
    handshake: "_WebSocketHandshake",
    scope: Scope,
    receive: Receive,
    send: Send,
    raise_on: Container[int],
) -> None:
    try:
        refusal = await stream.shake_hands(handshake)
        if refusal is None:
            await send({"type": "websocket.accept", "subprotocol": handshake.subprotocol, "headers": [], RAW: True})
            await relay_frames(stream, receive, send)
        elif refusal.status_code in raise_on:
            raise WebSocketRefused(refusal.status_code, _response_headers(refusal))
        else:
            await _forward_refusal(scope, send, refusal)
    finally:
        stream.transport.abort()


@dataclass(frozen=True, slots=True)
class Dialled:
    """A connection to a server other than a worker, and the head of the request for it. `headers` may contain those of
    the client's handshake, which are replaced."""

    socket: socket.socket
    target: bytes
    headers: Sequence[Header]

    def handshake(self, scope: Scope) -> "_WebSocketHandshake":
        headers = [header for header in self.headers if header[0] not in HANDSHAKE_HEADERS]
        uri = WebSocketURI(False, "localhost", 80, "/", "")
        return _WebSocketHandshake(uri, scope, self.target, headers)


class _WebSocketHandshake(ClientProtocol):
    """Sends a request head of our own: the package would set Host itself, and encode headers as UTF-8."""

    def __init__(self, uri: WebSocketURI, scope: Scope, target: bytes, headers: Sequence[Header]) -> None:
        offered = [Subprotocol(name) for name in scope.get("subprotocols", ())]
        super().__init__(uri, subprotocols=offered or None, max_size=MAX_MESSAGE)
        headers = [
            *headers,
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-key", self.key.encode()),
            (b"sec-websocket-version", b"13"),
        ]
        if offered:
            headers.append((b"sec-websocket-protocol", ", ".join(offered).encode("latin-1")))
        self._head = request_head("GET", target, headers, None)

    def send_request(self, request: Request) -> None:
        self.writes.append(self._head)


def _new_connection(protocol: _WebSocketHandshake) -> ClientConnection:
    return ClientConnection(
        protocol, ping_interval=None, close_timeout=_CLOSE_TIMEOUT_S, max_queue=_MAX_QUEUED_MESSAGES
    )


async def _shake_hands(worker: ClientConnection) -> Response | None:
    """Performs the handshake. Returns None if the worker accepts the WebSocket, otherwise its refusal. Raises
    `Unreachable`, `Broken`."""
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            await worker.handshake(user_agent_header=None)
    except InvalidStatus as exc:
        return exc.response
    except TimeoutError:
        raise Broken(f"it did not respond within {HANDSHAKE_TIMEOUT_S:g} s") from None
    except (InvalidHandshake, ConnectionClosed, EOFError, OSError) as exc:
        if isinstance(worker.connection_exc, ssl.SSLError):
            raise connect_error(worker.connection_exc) from exc  # TLS 1.3 reports a refused certificate only now
        raise Broken("its response to the WebSocket handshake is not valid") from exc
    return None


async def _relay(worker: ClientConnection, receive: Receive, send: Send) -> None:
    to_worker = asyncio.create_task(_relay_to_worker(receive, worker))
    to_client = asyncio.create_task(_relay_to_client(worker, send))
    tasks = [to_worker, to_client]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        client_close = to_worker.result() if to_worker.done() else None
        if client_close is None:
            await asyncio.wait([to_client])  # messages that the worker sent before it closed still reach the client
            to_client.result()
            await _close_client(worker, send)
        else:
            await _close_worker(worker, client_close, to_client)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()


async def _relay_to_worker(receive: Receive, worker: ClientConnection) -> Close | None:
    """Returns how the client closed, or None if the worker closed."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return Close(message.get("code") or _NO_CODE, message.get("reason") or "")
        if message["type"] == "websocket.receive":
            data = message.get("bytes")
            try:
                await worker.send(message["text"] if data is None else data)
            except ConnectionClosed:
                return None


async def _relay_to_client(worker: ClientConnection, send: Send) -> None:
    """Returns when the worker has closed and all its messages were relayed."""
    while True:
        try:
            data = await worker.recv()
        except ConnectionClosed:
            return
        await send({"type": "websocket.send", "text" if isinstance(data, str) else "bytes": data})


async def _close_worker(worker: ClientConnection, close: Close, to_client: "asyncio.Task[None]") -> None:
    """Closes the worker's side as the client closed: with its code, without one, or by the caller's abort.

    Servers report a vanished client as one that gave no code; so the worker sees what it would see of the client.
    """
    to_client.cancel()
    await asyncio.wait([to_client])
    if close.code != _NO_CLOSE_FRAME:
        code, reason = (cast(int, None), "") if close.code == _NO_CODE else sendable(close)
        # the worker's close frame comes after its unread messages
        discarding = asyncio.create_task(_discard_messages(worker))
        with suppress(ConnectionClosed):
            await worker.close(code, reason)
        await discarding


async def _discard_messages(worker: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        while True:
            await worker.recv()


async def _close_client(worker: ClientConnection, send: Send) -> None:
    close = worker.protocol.close_rcvd or worker.protocol.close_sent or Close(_NO_CLOSE_FRAME, "")
    if close.code == _NO_CLOSE_FRAME:
        close = Close(WORKER_LOST, "the worker was lost")
    code, reason = sendable(close)
    await send({"type": "websocket.close", "code": code, "reason": reason})


def sendable(close: Close) -> tuple[int, str]:
    """Returns the same code and reason if a close frame may contain them, otherwise 1000."""
    try:
        close.check()
    except ProtocolError:
        return _NORMAL, ""
    return close.code, close.reason


async def _forward_refusal(scope: Scope, send: Send, refusal: Response) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": _REFUSED})
        return
    status = refusal.status_code
    headers = headers_for_client(status, _response_headers(refusal))
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": bytes(refusal.body or b""), "more_body": False})


def _response_headers(response: Response) -> list[Header]:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.raw_items()
    ]
    return [header for header in headers if header[0] not in HOP_BY_HOP and header[0] != b"content-length"]
