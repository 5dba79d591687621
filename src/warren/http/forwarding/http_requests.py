"""Forwards a client's HTTP request to a worker, and the worker's response to the client. The router uses it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from warren.http.client.client import WorkerClient, WorkerResponse
from warren.http.client.headers import Header, Passes, headers_for_client, headers_for_worker, request_target
from warren.http.server.http_guard import BARE

MAX_REWIND: Final = 64 * 1024


class RequestBody(AsyncIterator[bytes]):
    """The body of a client's request, read as it arrives.

    The router may read its beginning with `fetch` to find the session it names; iterating starts at the beginning all
    the same. `rewind` allows sending it to another worker. Reading raises starlette's `ClientDisconnect` when the
    client disconnects.
    """

    __slots__ = ("_can_rewind", "_pieces", "_position", "_receive", "_size", "is_received")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._pieces: list[bytes] = []
        self._size = 0
        self._position = 0
        self._can_rewind = True
        self.is_received = False

    async def fetch(self) -> bytes:
        """Receives the next piece of the body and keeps it. It may be empty."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self.is_received = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
        return piece

    async def fetch_up_to(self, limit: int) -> AsyncIterator[bytes]:
        """Receives and keeps the body piece by piece, until `limit` bytes or its end."""
        while not self.is_received and self._size < limit:
            yield await self.fetch()

    async def fetch_all(self) -> bytes:
        while not self.is_received:
            await self.fetch()
        return b"".join(self._pieces)

    async def whole_if_received(self) -> bytes | None:
        """Returns the whole body if one piece is all of it, or all of it was fetched. Otherwise returns None:
        iterate."""
        if not self._pieces and not self.is_received:
            await self.fetch()
        if self.is_received and self._can_rewind and not self._position:
            return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        return None

    async def __anext__(self) -> bytes:
        while self._position == len(self._pieces):
            if self.is_received:
                raise StopAsyncIteration
            await self.fetch()
        piece = self._pieces[self._position]
        if self._size <= MAX_REWIND:
            self._position += 1
        else:
            del self._pieces[: self._position + 1]
            self._position, self._can_rewind = 0, False
        return piece

    def rewind(self) -> bool:
        """Goes back to the beginning. Returns False if too much was read to keep all of it."""
        if self._can_rewind:
            self._position = 0
        return self._can_rewind

    def replay(self) -> Receive:
        """Returns a `receive` for the coordinator's own app, which yields what was fetched once more."""
        fetched: list[Message] = []
        if self._pieces or self.is_received:
            body = b"".join(self._pieces)
            fetched.append({"type": "http.request", "body": body, "more_body": not self.is_received})

        async def receive() -> Message:
            return fetched.pop() if fetched else await self._receive()

        return receive

    async def wait_for_disconnect(self) -> None:
        """Raises `ClientDisconnect` when the client disconnects. Call it after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect


async def forward_request(
    worker_client: WorkerClient,
    address: str,
    scope: Scope,
    body: RequestBody,
    *,
    headers: Sequence[Header] = (),
    passes: Passes = Passes.USUAL,
) -> AbstractAsyncContextManager[WorkerResponse]:
    """Sends the client's request to a worker: `async with await forward_request(…) as response`.

    `headers` replace those of the same name that the client sent. Headers that identify the client (authorization,
    x-api-key, cookie, origin, x-warren-*) and those that concern only its connection are not forwarded, unless
    `passes` says so. Path and query
    are forwarded byte for byte. Nothing has been sent to the client when the context begins.

    Raises `Unreachable` and `Broken`, and `ClientDisconnect` as soon as the client disconnects.
    """
    whole = await body.whole_if_received()
    return worker_client.request(
        address,
        scope["method"],
        request_target(scope),
        headers_for_worker(scope, headers, passes=passes),
        body if whole is None else whole,
        wait_for_disconnect=body.wait_for_disconnect,
    )


async def forward_response(response: WorkerResponse, send: Send, *, of_sandbox: bool = False) -> None:
    """Sends the worker's response to the client as it arrives; with `of_sandbox`, with the headers that a sandbox set.

    Raises `Broken` if the response breaks off. The caller must not catch it: the server then breaks the client's
    connection, so that the client does not take a part for the whole.
    """
    headers = headers_for_client(response.status, response.headers, of_sandbox=of_sandbox)
    await send_pieces(response, headers, send, bare=of_sandbox)


async def send_pieces(response: WorkerResponse, headers: Sequence[Header], send: Send, *, bare: bool = False) -> None:
    """Sends the response with these headers, and its body as it arrives. `bare` keeps the server from adding headers.
    Raises `Broken` as `forward_response` does."""
    await send({"type": "http.response.start", "status": response.status, "headers": headers, BARE: bare})
    while piece := await response.read():
        is_last = response.is_complete
        await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
        if is_last:
            return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_response(response: WorkerResponse, body: bytes, send: Send) -> None:
    """Sends a response whose body was already read."""
    headers = headers_for_client(response.status, response.headers)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
