"""A client's WebSocket tied to one of a worker.

Two tasks, one for each direction: a message is read only when the one before has been taken by the other side, so
neither side can fill our memory. Whichever side closes first, the other is closed with the same code and reason.

We send no pings of our own. The worker's server pings us, and the package answers; the coordinator's server pings
the client. Each of the two connections is watched from one end, and the end of one is the end of the other.
"""

import asyncio
import ssl
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, ProtocolError
from websockets.frames import Close
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from warren.cluster.http_client.failures import Broken, Refused
from warren.cluster.http_client.headers import (
    HOP_BY_HOP,
    Header,
    headers_for_client,
    headers_for_worker,
    request_head,
    target_of,
)
from warren.cluster.http_client.pool import read_address, tls_for, unreachable

MAX_MESSAGE: Final = 1024 * 1024  # what the servers on both sides take
_HANDSHAKE_S: Final = 30.0
_CLOSING_S: Final = 5.0
_QUEUED: Final = 1
_OF_THE_HANDSHAKE: Final = frozenset(
    {
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-extensions",
        b"sec-websocket-protocol",
        b"content-length",
    }
)
_NO_CODE, _NO_CLOSE, _NORMAL, _LOST, _REFUSED = 1005, 1006, 1000, 1011, 1008


async def forward_websocket(
    address: str,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    headers: Sequence[Header] = (),
    tls: ssl.SSLContext | None = None,
    connect_timeout_s: float = 2.0,
    elsewhere: Container[int] = (),
) -> None:
    """Passes messages both ways until one side closes, and then closes the other with the same code and reason.

    A worker that refuses is passed on: status, headers and body. If its status is in `elsewhere`, `Refused` is
    raised instead. `Refused`, `Unreachable` (nothing was sent to the worker) and `Broken` are raised only before the
    client was answered: it may be forwarded to another worker. A worker that is lost later closes the client with 1011.
    """
    link = await _dial(address, scope, headers, tls, connect_timeout_s)
    try:
        refusal = await _shake_hands(link)
        if refusal is None:
            await send({"type": "websocket.accept", "subprotocol": link.subprotocol, "headers": []})
            await _relay(link, receive, send)
        elif refusal.status_code in elsewhere:
            raise Refused(refusal.status_code, _headers_of(refusal))
        else:
            await _refuse(scope, send, refusal)
    finally:
        link.transport.abort()


class _Handshake(ClientProtocol):
    """Asks with a head that is ours byte by byte: the package would say Host itself, and write headers as UTF-8."""

    def __init__(self, uri: WebSocketURI, scope: Scope, added: Sequence[Header]) -> None:
        offered = [Subprotocol(name) for name in scope.get("subprotocols", ())]
        super().__init__(uri, subprotocols=offered or None, max_size=MAX_MESSAGE)
        headers = headers_for_worker(scope, added, without=_OF_THE_HANDSHAKE)
        headers += [
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-key", self.key.encode()),
            (b"sec-websocket-version", b"13"),
        ]
        if offered:
            headers.append((b"sec-websocket-protocol", ", ".join(offered).encode("latin-1")))
        self._head = request_head("GET", target_of(scope), headers, None)

    def send_request(self, request: Request) -> None:
        self.writes.append(self._head)


async def _dial(
    address: str, scope: Scope, headers: Sequence[Header], tls: ssl.SSLContext | None, timeout_s: float
) -> ClientConnection:
    place = read_address(address)
    tls = tls_for(place, tls)
    protocol = _Handshake(WebSocketURI(tls is not None, place.host, place.port, "/", ""), scope, headers)

    def new_link() -> ClientConnection:
        return ClientConnection(protocol, ping_interval=None, close_timeout=_CLOSING_S, max_queue=_QUEUED)

    try:
        async with asyncio.timeout(timeout_s):
            _, link = await asyncio.get_running_loop().create_connection(
                new_link, place.host, place.port, ssl=tls, server_hostname=place.host if tls is not None else None
            )
    except (OSError, UnicodeError) as exc:
        raise unreachable(exc) from exc
    return link


async def _shake_hands(link: ClientConnection) -> Response | None:
    """Nothing if the worker takes the WebSocket, else what it answered instead."""
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            await link.handshake(user_agent_header=None)
    except InvalidStatus as exc:
        return exc.response
    except TimeoutError:
        raise Broken(f"the worker did not answer within {_HANDSHAKE_S:g} s") from None
    except (InvalidHandshake, ConnectionClosed, EOFError, OSError) as exc:
        if isinstance(link.connection_exc, ssl.SSLError):
            raise unreachable(link.connection_exc) from exc  # by TLS 1.3 we hear of it only now
        raise Broken("the worker's answer to the WebSocket is not a valid one") from exc
    return None


async def _relay(link: ClientConnection, receive: Receive, send: Send) -> None:
    to_worker = asyncio.create_task(_pass_to_worker(receive, link))
    to_client = asyncio.create_task(_pass_to_client(link, send))
    tasks = [to_worker, to_client]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        left = to_worker.result() if to_worker.done() else None
        if left is None:
            await asyncio.wait([to_client])  # what the worker said before it closed is still told
            to_client.result()
            await _close_client(link, send)
        else:
            await _close_worker(link, left, to_client)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()


async def _pass_to_worker(receive: Receive, link: ClientConnection) -> Close | None:
    """How the client closed; nothing if it was the worker that did."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return Close(message.get("code") or _NO_CODE, message.get("reason") or "")
        if message["type"] == "websocket.receive":
            data = message.get("bytes")
            try:
                await link.send(message["text"] if data is None else data)
            except ConnectionClosed:
                return None


async def _pass_to_client(link: ClientConnection, send: Send) -> None:
    """Returns when the worker has closed, and all that it said before was passed on."""
    while True:
        try:
            data = await link.recv()
        except ConnectionClosed:
            return
        await send({"type": "websocket.send", "text" if isinstance(data, str) else "bytes": data})


async def _close_worker(link: ClientConnection, left: Close, to_client: "asyncio.Task[None]") -> None:
    """As the client did: with its code, without one, or without a word, when our caller aborts the connection.

    Servers say of a client that vanished that it gave no code; so the worker hears what it would hear of the client.
    """
    to_client.cancel()
    await asyncio.wait([to_client])
    if left.code != _NO_CLOSE:
        code, reason = (cast(int, None), "") if left.code == _NO_CODE else sendable(left)
        swallow = asyncio.create_task(_swallow(link))  # the worker's goodbye stands behind what it said before
        with suppress(ConnectionClosed):
            await link.close(code, reason)
        await swallow


async def _swallow(link: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        while True:
            await link.recv()


async def _close_client(link: ClientConnection, send: Send) -> None:
    close = link.protocol.close_rcvd or link.protocol.close_sent or Close(_NO_CLOSE, "")
    if close.code == _NO_CLOSE:
        close = Close(_LOST, "the worker was lost")
    code, reason = sendable(close)
    await send({"type": "websocket.close", "code": code, "reason": reason})


def sendable(close: Close) -> tuple[int, str]:
    """The same code and reason, if they may stand in a frame; what says that there was no code becomes 1000."""
    try:
        close.check()
    except ProtocolError:
        return _NORMAL, ""
    return close.code, close.reason


async def _refuse(scope: Scope, send: Send, refusal: Response) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": _REFUSED})
        return
    start: dict[str, Any] = {"type": "websocket.http.response.start", "status": refusal.status_code}
    await send({**start, "headers": headers_for_client(refusal.status_code, _headers_of(refusal))})
    await send({"type": "websocket.http.response.body", "body": bytes(refusal.body or b""), "more_body": False})


def _headers_of(refusal: Response) -> list[Header]:
    found = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers.raw_items()]
    return [header for header in found if header[0] not in HOP_BY_HOP and header[0] != b"content-length"]
