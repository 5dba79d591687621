"""One request to a worker and its answer.

The task that enters the context waits for the answer and reads it. What is sent after the head, and the watch over
whoever asked, is one task beside it, which ends with the context. A task costs as much as the rest of a short exchange
together: where everything was sent at once it is begun only if the answer takes longer than most.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from warren.cluster.http_client.connection import Connection, Phase
from warren.cluster.http_client.failures import Broken
from warren.cluster.http_client.headers import Header, framing_of, request_head, stated_length
from warren.cluster.http_client.pool import ConnectionPool

Body = bytes | AsyncIterator[bytes]
Gone = Callable[[], Awaitable[None]]

_IN_ONE_WRITE: Final = 64 * 1024
_SAFE_TO_REPEAT: Final = frozenset({"GET", "HEAD"})
_CHUNKED: Final = (b"transfer-encoding", b"chunked")
_REFUSALS: Final = 300
_UNWATCHED_S: Final = 0.02


class WorkerResponse:
    """What a worker answers, to be read inside of `async with`.

    The names of `headers` are in lower case; those that concern only the connection are left out.
    """

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: Connection) -> None:
        self.status: int = connection.status
        self.headers: list[Header] = connection.headers
        self._connection: Connection | None = connection

    def __repr__(self) -> str:
        return f"<Answer {self.status}>"

    @property
    def is_complete(self) -> bool:
        """Whether all of it was read."""
        return self._connection is not None and self._connection.has_all

    def header(self, name: bytes) -> bytes | None:
        """The first of this name, which is given in lower case."""
        return next((value for found, value in self.headers if found == name), None)

    async def read(self) -> bytes:
        """What has come of the body since the last time, at least a byte; nothing at its end.

        Raises `Broken` if the answer breaks off.
        """
        if self._connection is None:
            raise RuntimeError("the answer is read after its exchange has ended")
        return await self._connection.read()

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises `Broken` if it breaks off."""
        return _Chunks(self)

    async def all(self, limit: int) -> bytes:
        """The whole body, or `Broken` if it is longer than `limit` bytes or breaks off."""
        pieces, size = [], 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise Broken(f"the worker's answer is longer than {limit} bytes")
        return b"".join(pieces)

    def end(self) -> None:
        self._connection = None  # it may be somebody else's from now on


class _Chunks(AsyncIterator[bytes]):
    """Not a generator: those that are left early wait for the collector."""

    __slots__ = ("_answer",)

    def __init__(self, answer: WorkerResponse) -> None:
        self._answer = answer

    async def __anext__(self) -> bytes:
        if piece := await self._answer.read():
            return piece
        raise StopAsyncIteration


class Exchange:
    """A context that begins when the head of the answer is there; see `Links.asked` for what holds."""

    def __init__(
        self,
        pool: ConnectionPool,
        address: str,
        method: str,
        target: bytes,
        headers: Sequence[Header],
        body: Body,
        head_timeout_s: float | None,
        gone: Gone | None,
    ) -> None:
        self._pool, self._address = pool, address
        self._method, self._body, self._gone = method, body, gone
        self._head_timeout_s = head_timeout_s
        self._length: int | None = None
        framing: Header | None
        if isinstance(body, bytes):
            framing = framing_of(method, body)
        else:
            self._length = stated_length(headers)
            framing = _CHUNKED if self._length is None else (b"content-length", b"%d" % self._length)
        self._head = request_head(method, target, headers, framing)
        self._is_sent = False
        self._beside: asyncio.Task[None] | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._answer: WorkerResponse | None = None

    async def __aenter__(self) -> WorkerResponse:
        try:
            if not await self._ask(new=False):
                await self._ask(new=True)
        except BaseException:
            await self._end()
            raise
        assert self._connection is not None
        self._answer = WorkerResponse(self._connection)
        return self._answer

    async def __aexit__(self, *exc: object) -> None:
        await self._end()

    async def _ask(self, *, new: bool) -> bool:
        """Whether there is an answer; if not, a kept connection was closed, and it is right to ask on a new one."""
        connection = self._connection = await self._pool.take(self._address, new=new)
        self._send_first(connection)
        try:
            await self._await_head(connection)
        except Broken:
            if connection.is_new or connection.came or not self._may_repeat:
                raise
            await self._end()
            return False
        if connection.status >= _REFUSALS and not self._is_sent and self._beside is not None:
            self._beside.cancel()
        return True

    @property
    def _may_repeat(self) -> bool:
        return self._method in _SAFE_TO_REPEAT and isinstance(self._body, bytes)

    def _send_first(self, connection: Connection) -> None:
        connection.begin(head_only=self._method == "HEAD")
        if not isinstance(self._body, bytes):
            connection.write(self._head)
        elif len(self._body) <= _IN_ONE_WRITE:
            connection.write(self._head + self._body)
        else:
            connection.write(self._head)
            connection.write(self._body)
        self._is_sent = isinstance(self._body, bytes)
        if not self._is_sent:
            self._begin_beside(connection)
        elif self._gone is not None:
            loop = asyncio.get_running_loop()
            self._watching = loop.call_later(_UNWATCHED_S, self._begin_beside, connection)

    def _begin_beside(self, connection: Connection) -> None:
        self._beside = asyncio.get_running_loop().create_task(self._send_rest(connection))

    async def _await_head(self, connection: Connection) -> None:
        if self._head_timeout_s is None:
            await connection.head()
            return
        try:
            async with asyncio.timeout(self._head_timeout_s):
                await connection.head()
        except TimeoutError:
            raise Broken(f"the worker did not answer within {self._head_timeout_s:g} s") from None

    async def _send_rest(self, connection: Connection) -> None:
        try:
            if not isinstance(self._body, bytes):
                await self._send_body(connection, self._body)
                self._is_sent = True
            if self._gone is not None:
                await self._gone()
                raise Broken("whoever asked has gone")
        except Exception as exc:
            # The server says that the client is gone also when its answer is complete; then that is no failure.
            if self._connection is connection and connection.phase is not Phase.DONE:
                connection.fail(exc)

    async def _send_body(self, connection: Connection, body: AsyncIterator[bytes]) -> None:
        left = self._length
        async for piece in body:
            if not connection.is_open:
                return
            if left is None:
                if piece:  # an empty chunk would be the last
                    connection.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            else:
                left -= len(piece)
                if left < 0:
                    raise Broken("the body of the request is longer than its content-length")
                connection.write(piece)
            await connection.drain()
        if left:
            raise Broken("the body of the request is shorter than its content-length")
        if left is None:
            connection.write(b"0\r\n\r\n")

    async def _end(self) -> None:
        """The connection goes back or is closed at once; then the task beside is waited for."""
        connection, self._connection = self._connection, None
        beside, self._beside = self._beside, None
        if self._watching is not None:
            self._watching.cancel()
        if self._answer is not None:
            self._answer.end()
        if connection is not None:
            if self._is_sent:
                self._pool.give_back(connection)
            else:
                connection.abort()
        if beside is not None and not beside.done():
            beside.cancel()
            await asyncio.wait([beside])
