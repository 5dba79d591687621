"""The connections to all workers, and how to ask over them."""

import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from warren.cluster.http_client.exchange import Body, Exchange, Gone, WorkerResponse
from warren.cluster.http_client.headers import Header
from warren.cluster.http_client.pool import ConnectionPool

__all__ = ["Body", "Gone", "Header", "WorkerClient", "WorkerResponse"]


class WorkerClient:
    """Asks workers; for many tasks of one event loop.

    A connection on which an answer was complete is kept for the next request to the same address: `max_idle` of
    them, each for `idle_s` (workers close them later than that). `tls` is what connections to `https://` addresses
    and to those without a scheme are made with; without it, an address without a scheme is spoken to in the clear.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = 2.0,
        idle_s: float = 30.0,
        max_idle: int = 64,
    ) -> None:
        self._pool = ConnectionPool(tls, connect_timeout_s, idle_s, max_idle)

    def __repr__(self) -> str:
        return repr(self._pool)

    def asked(
        self,
        address: str,
        method: str,
        target: bytes,
        headers: Sequence[Header],
        body: Body = b"",
        *,
        head_timeout_s: float | None = None,
        gone: Gone | None = None,
    ) -> AbstractAsyncContextManager[WorkerResponse]:
        """Sends the request; the context begins when the head of the answer is there.

        `address` is `host:port`, an IPv6 host in brackets, with or without `http://` or `https://` before it.
        `target` is sent as it is, and so are `headers` (their names in lower case), but for those that frame the
        body. A body that is an iterator is sent as it comes: with the content-length that is in `headers`, else in
        chunks. It is not touched before there is a connection.

        Raises `Unreachable` and `Broken`; so does reading the answer. A kept connection that turns out to be closed
        before a byte of an answer came is replaced, once, for GET and HEAD. Without `head_timeout_s` the head of the
        answer may take any time.

        `gone` is awaited once the body is sent, if the answer is not there in a moment: when it returns, whoever
        asked has gone. An exception that it raises, or the iterator of the body, ends the exchange at once, and is
        raised to whoever waits for the answer.

        A worker that refuses (300 and above) before it has taken the whole body is sent no more of it. Leaving the
        context before the answer is complete closes the connection, so that the worker notices.
        """
        return Exchange(self._pool, address, method, target, headers, body, head_timeout_s, gone)

    async def close(self) -> None:
        """Ends all connections, also those in use. Whoever asks afterwards gets `Unreachable`."""
        await self._pool.close()
