"""Requests to workers and coordinators over kept connections; the router and `PeerCalls` use it.

The task that enters the context of a request waits for the response and reads it. A second task sends what follows
the head of the request and watches for a client that disconnects; it ends with the context. A task costs as much as
the rest of a short exchange, so a request that was sent in one write starts its second task only if the response
takes longer than most.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from warren.http.client.connection import HIGH_WATER, PooledConnection, ResponsePhase
from warren.http.client.errors import Broken
from warren.http.client.headers import Header, content_length, framing_of, request_head
from warren.http.client.pool import CONNECT_TIMEOUT_S, ConnectionPool, Dial

Body = bytes | AsyncIterator[bytes]
WaitForDisconnect = Callable[[], Awaitable[None]]
"""Returns or raises when the client for whom the request is made has disconnected."""

_MAX_SINGLE_WRITE: Final = 64 * 1024
_SAFE_TO_REPEAT: Final = frozenset({"GET", "HEAD"})
_CHUNKED: Final = (b"transfer-encoding", b"chunked")
_FIRST_REFUSAL_STATUS: Final = 300
_WATCH_AFTER_S: Final = 0.02


class WorkerClient:
    """Sends requests to workers, for many tasks of one event loop.

    A connection on which a response was complete is kept for the next request to the same address: at most `max_idle`
    of them, each for `idle_s`, which is shorter than workers keep them. `tls` is used for `https://` addresses and for
    those without a scheme; without `tls`, an address without a scheme is used in the clear.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        idle_s: float = 30.0,
        max_idle: int = 64,
        buffer_size: int = HIGH_WATER,
    ) -> None:
        self._pool = ConnectionPool(tls, connect_timeout_s, idle_s, max_idle, buffer_size)

    def __repr__(self) -> str:
        return f"<WorkerClient {self._pool.summary}>"

    def request(
        self,
        address: str,
        method: str,
        target: bytes,
        headers: Sequence[Header],
        body: Body = b"",
        *,
        head_timeout_s: float | None = None,
        wait_for_disconnect: WaitForDisconnect | None = None,
        dial: Dial | None = None,
    ) -> AbstractAsyncContextManager["WorkerResponse"]:
        """Sends a request; the context begins when the head of the response has arrived.

        `address` is `host:port`, an IPv6 host in brackets, with or without `http://` or `https://` before it.
        `target` is sent unchanged, and so are `headers` (names in lower case), except those that frame the body. A
        body that is an iterator is sent as it comes, with the content-length in `headers` or else in chunks. It is not
        touched before there is a connection.

        Raises `Unreachable` and `Broken`; so does reading the response. A kept connection that turns out to be closed
        before a byte of the response arrived is replaced once, for GET and HEAD. Without `head_timeout_s` the worker
        may take any time for the head of the response. That time begins anew with each piece of the body that is sent.

        `wait_for_disconnect` is awaited once the body is sent, if the response takes longer than a moment. What it or
        the body's iterator raises ends the exchange at once, and is raised to the task that waits for the response.

        With `dial` the request goes over the connection that it makes, and `address` is only a name for it.

        When a worker refuses (status 300 and above) before it has read the whole body, the rest is not sent. Leaving
        the context before the response is complete closes the connection, so that the worker notices.
        """
        return _Exchange(self._pool, address, method, target, headers, body, head_timeout_s, wait_for_disconnect, dial)

    async def close(self) -> None:
        """Closes all connections, also those in use. Later requests raise `Unreachable`."""
        await self._pool.close()


class WorkerResponse:
    """A worker's response, to be read inside of `async with`.

    Header names are in lower case; headers that concern only the connection are left out.
    """

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: PooledConnection) -> None:
        self.status: int = connection.status
        self.headers: list[Header] = connection.headers
        self._connection: PooledConnection | None = connection

    def __repr__(self) -> str:
        return f"<WorkerResponse {self.status}>"

    @property
    def is_complete(self) -> bool:
        """Whether the whole body was read."""
        return self._connection is not None and self._connection.is_fully_read

    def header(self, name: bytes) -> bytes | None:
        """Returns the value of the first header of this name, which must be in lower case; None if there is none."""
        return next((value for header_name, value in self.headers if header_name == name), None)

    async def read(self) -> bytes:
        """Returns what has arrived of the body since the last call, at least a byte; empty at the end.

        Raises `Broken` if the response breaks off.
        """
        if self._connection is None:
            raise RuntimeError("the response is read after its exchange has ended")
        return await self._connection.read()

    async def read_all(self, limit: int) -> bytes:
        """Returns the whole body. Raises `Broken` if it is longer than `limit` bytes or breaks off."""
        pieces, size = [], 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise Broken(f"its response is longer than {limit} bytes")
        return b"".join(pieces)

    def detach(self) -> None:
        """Lets go of the connection, which may serve another exchange from now on."""
        self._connection = None


class _Exchange:
    """One request and its response, as `WorkerClient.request` describes them."""

    def __init__(
        self,
        pool: ConnectionPool,
        address: str,
        method: str,
        target: bytes,
        headers: Sequence[Header],
        body: Body,
        head_timeout_s: float | None,
        wait_for_disconnect: WaitForDisconnect | None,
        dial: Dial | None = None,
    ) -> None:
        self._pool, self._address, self._dial = pool, address, dial
        self._method, self._body, self._wait_for_disconnect = method, body, wait_for_disconnect
        self._head_timeout_s = head_timeout_s
        self._body_length: int | None = None
        framing: Header | None
        if isinstance(body, bytes):
            framing = framing_of(method, body)
        else:
            self._body_length = content_length(headers)
            framing = _CHUNKED if self._body_length is None else (b"content-length", b"%d" % self._body_length)
        self._head = request_head(method, target, headers, framing)
        self._is_sent = False
        self._sent_at = 0.0
        self._side_task: asyncio.Task[None] | None = None
        self._side_task_timer: asyncio.TimerHandle | None = None
        self._connection: PooledConnection | None = None
        self._response: WorkerResponse | None = None

    async def __aenter__(self) -> WorkerResponse:
        try:
            if not await self._try(new_connection=False):
                await self._try(new_connection=True)
        except BaseException:
            await self._finish()
            raise
        assert self._connection is not None
        self._response = WorkerResponse(self._connection)
        return self._response

    async def __aexit__(self, *exc: object) -> None:
        await self._finish()

    async def _try(self, *, new_connection: bool) -> bool:
        """Tries one connection. Returns False if a kept connection was already closed and a new one is needed."""
        connection = self._connection = await self._pool.acquire(self._address, new=new_connection, dial=self._dial)
        self._start_sending(connection)
        try:
            await self._wait_for_head(connection)
        except Broken:
            # A kept connection may close at any moment: a GET or HEAD that got no byte back is repeated on a new one.
            if connection.is_new or connection.has_received or not self._may_repeat:
                raise
            await self._finish()
            return False
        if connection.status >= _FIRST_REFUSAL_STATUS and not self._is_sent and self._side_task is not None:
            self._side_task.cancel()
        return True

    @property
    def _may_repeat(self) -> bool:
        return self._method in _SAFE_TO_REPEAT and isinstance(self._body, bytes)

    def _start_sending(self, connection: PooledConnection) -> None:
        connection.start_request(is_head=self._method == "HEAD")
        if not isinstance(self._body, bytes):
            connection.write(self._head)
        elif len(self._body) <= _MAX_SINGLE_WRITE:
            connection.write(self._head + self._body)
        else:
            connection.write(self._head)
            connection.write(self._body)
        self._is_sent = isinstance(self._body, bytes)
        if not self._is_sent:
            self._start_side_task(connection)
        elif self._wait_for_disconnect is not None:
            loop = asyncio.get_running_loop()
            self._side_task_timer = loop.call_later(_WATCH_AFTER_S, self._start_side_task, connection)

    def _start_side_task(self, connection: PooledConnection) -> None:
        self._side_task = asyncio.get_running_loop().create_task(self._send_rest_and_watch(connection))

    async def _wait_for_head(self, connection: PooledConnection) -> None:
        if self._head_timeout_s is None:
            await connection.wait_for_head()
            return
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        while True:
            deadline = self._sent_at + self._head_timeout_s
            try:
                async with asyncio.timeout_at(deadline):
                    await connection.wait_for_head()
                return
            except TimeoutError:
                if self._sent_at + self._head_timeout_s <= loop.time():
                    raise Broken(f"it did not respond within {self._head_timeout_s:g} s") from None

    async def _send_rest_and_watch(self, connection: PooledConnection) -> None:
        try:
            if not isinstance(self._body, bytes):
                await self._send_body(connection, self._body)
                self._is_sent = True
            if self._wait_for_disconnect is not None:
                await self._wait_for_disconnect()
                raise Broken("the client has disconnected")
        except Exception as exc:
            # The server also reports a disconnect when its response is complete; that is not a failure.
            if self._connection is connection and connection.phase is not ResponsePhase.DONE:
                connection.fail(exc)

    async def _send_body(self, connection: PooledConnection, body: AsyncIterator[bytes]) -> None:
        unsent = self._body_length
        async for piece in body:
            if not connection.is_open:
                return
            if unsent is None:
                if piece:  # an empty chunk would be the last
                    connection.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            else:
                unsent -= len(piece)
                if unsent < 0:
                    raise Broken("the body of the request is longer than its content-length")
                connection.write(piece)
            await connection.drain()
            self._sent_at = asyncio.get_running_loop().time()
        if unsent:
            raise Broken("the body of the request is shorter than its content-length")
        if unsent is None:
            connection.write(b"0\r\n\r\n")

    async def _finish(self) -> None:
        """Releases or closes the connection at once, then waits for the second task to end."""
        connection, self._connection = self._connection, None
        side_task, self._side_task = self._side_task, None
        if self._side_task_timer is not None:
            self._side_task_timer.cancel()
        if self._response is not None:
            self._response.detach()
        # A connection with an unfinished request cannot be reused: the next request would be read as its body.
        if connection is not None:
            if self._is_sent:
                self._pool.release(connection)
            else:
                connection.abort()
        if side_task is not None and not side_task.done():
            side_task.cancel()
            await asyncio.wait([side_task])
