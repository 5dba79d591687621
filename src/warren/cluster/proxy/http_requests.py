"""A client's HTTP request passed on to a worker, and the worker's answer back."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from warren.cluster.http_client.client import WorkerClient
from warren.cluster.http_client.exchange import WorkerResponse
from warren.cluster.http_client.headers import Header, headers_for_client, headers_for_worker, target_of

MOST_REMEMBERED: Final = 64 * 1024


class RequestBody(AsyncIterator[bytes]):
    """The body of a client's request as it comes, beginning with what was `seen` of it already.

    `done` says that there is no more than what was seen. The beginning of it is remembered for `rewind`. A client
    that goes away makes it raise starlette's `ClientDisconnect`.
    """

    __slots__ = ("_at", "_done", "_pieces", "_receive", "_rewinds", "_size")

    def __init__(self, receive: Receive, seen: Sequence[bytes] = (), *, done: bool = False) -> None:
        self._receive = receive
        self._pieces = [piece for piece in seen if piece]
        self._size = sum(map(len, self._pieces))
        self._at = 0
        self._done = done
        self._rewinds = True

    def rewind(self) -> bool:
        """Whether it can be, and is now, read once more from its beginning: if not too much of it was read."""
        if self._rewinds:
            self._at = 0
        return self._rewinds

    async def at_once(self) -> bytes | None:
        """The whole body, if the first that comes is all of it; else nothing, and it is to be read piece by piece."""
        if not self._pieces and not self._done:
            await self._fetch()
        if self._done and self._rewinds and not self._at:
            return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        return None

    async def __anext__(self) -> bytes:
        while self._at == len(self._pieces):
            if self._done:
                raise StopAsyncIteration
            await self._fetch()
        piece = self._pieces[self._at]
        if self._size <= MOST_REMEMBERED:
            self._at += 1
        else:
            del self._pieces[: self._at + 1]
            self._at, self._rewinds = 0, False
        return piece

    async def gone(self) -> None:
        """Raises `ClientDisconnect` when the client goes away. For after the body."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    async def _fetch(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self._done = not message.get("more_body", False)
        if piece := message.get("body", b""):
            self._pieces.append(piece)
            self._size += len(piece)


class _Forwarded:
    __slots__ = ("_added", "_address", "_body", "_exchange", "_head_timeout_s", "_scope", "_worker_client")

    def __init__(
        self,
        worker_client: WorkerClient,
        address: str,
        scope: Scope,
        body: RequestBody,
        added: Sequence[Header],
        head_timeout_s: float | None,
    ) -> None:
        self._worker_client, self._address, self._scope = worker_client, address, scope
        self._body, self._added, self._head_timeout_s = body, added, head_timeout_s
        self._exchange: AbstractAsyncContextManager[WorkerResponse] | None = None

    async def __aenter__(self) -> WorkerResponse:
        whole = await self._body.at_once()
        self._exchange = self._worker_client.asked(
            self._address,
            self._scope["method"],
            target_of(self._scope),
            headers_for_worker(self._scope, self._added),
            self._body if whole is None else whole,
            head_timeout_s=self._head_timeout_s,
            gone=self._body.gone,
        )
        return await self._exchange.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        assert self._exchange is not None
        await self._exchange.__aexit__(None, None, None)


def forwarded(
    worker_client: WorkerClient,
    address: str,
    scope: Scope,
    body: RequestBody,
    *,
    headers: Sequence[Header] = (),
    head_timeout_s: float | None = None,
) -> AbstractAsyncContextManager[WorkerResponse]:
    """Asks the worker what the client asked. Nothing has been sent to the client when the context begins.

    `headers` replace those of the same name that the client sent. What tells who the client is (authorization,
    x-api-key, cookie, origin, x-warren-*) and what concerns only its connection is not passed on. Path and query go
    byte by byte.

    Raises `Unreachable` and `Broken`, and `ClientDisconnect` as soon as the client goes away.
    """
    return _Forwarded(worker_client, address, scope, body, headers, head_timeout_s)


async def pass_on(answer: WorkerResponse, send: Send) -> None:
    """Sends the answer to the client as it comes.

    If it breaks off, `Broken` is raised with the client's answer incomplete: let it pass, the server then breaks
    the client's connection, and nobody takes a part for the whole.
    """
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": headers_for_client(answer.status, answer.headers),
        }
    )
    while piece := await answer.read():
        complete = answer.is_complete
        await send({"type": "http.response.body", "body": piece, "more_body": not complete})
        if complete:
            return
    await send({"type": "http.response.body", "body": b"", "more_body": False})
