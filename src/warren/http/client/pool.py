"""The connections to all workers: those in use, and those kept for the next request. `client` uses it.

The functions for addresses and connecting also serve `forwarding/websockets`, which has connections of its own.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from warren.http.client.connection import HIGH_WATER, PooledConnection
from warren.http.client.errors import Broken, Unreachable

_ADDRESS: Final = re.compile(r"(?:(https?)://)?(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s/:@\[\]]+)):([0-9]{1,5})/?")
CONNECT_TIMEOUT_S: Final = 2.0
_CLOSE_TIMEOUT_S: Final = 5.0
_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)
Dial = Callable[[], Awaitable[socket.socket]]
"""Returns a connected socket, for a server without an address. What it raises reaches the caller."""


class WorkerAddress(NamedTuple):
    host: str
    port: int
    scheme: str  # empty if the address has no scheme


@lru_cache(maxsize=1024)
def parse_address(text: str) -> WorkerAddress:
    """Parses `host:port`, with an IPv6 host in brackets, with or without a scheme. Raises `Unreachable` otherwise."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[4]) < 65536:
        raise Unreachable("its address is not a host and a port")
    return WorkerAddress(match[2] or match[3], int(match[4]), match[1] or "")


def tls_for(address: WorkerAddress, tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Returns the TLS context for an address; its scheme decides. Raises `Unreachable` if TLS is not set up."""
    if address.scheme == "http":
        return None
    if address.scheme == "https" and tls is None:
        raise Unreachable("its address asks for TLS, which is not set up here")
    return tls


def connect_error(exc: Exception) -> Unreachable:
    """Returns why no connection was made, without naming the address."""
    if isinstance(exc, ssl.SSLError):
        return Unreachable("no trusted TLS connection came about")
    if isinstance(exc, TimeoutError):
        return Unreachable("it did not accept the connection in time")
    if isinstance(exc, ConnectionRefusedError):
        return Unreachable("it refused the connection")
    if isinstance(exc, socket.gaierror | UnicodeError):
        return Unreachable("its name cannot be looked up")
    if isinstance(exc, ConnectionError):
        return Unreachable("it closed the connection at once")
    return Unreachable("it cannot be reached")


async def open_connection(
    new_protocol: Callable[[], _Protocol], address: WorkerAddress, tls: ssl.SSLContext | None, timeout_s: float
) -> _Protocol:
    """Connects to an address. Raises `Unreachable`."""
    try:
        async with asyncio.timeout(timeout_s):
            _, protocol = await asyncio.get_running_loop().create_connection(
                new_protocol,
                address.host,
                address.port,
                ssl=tls,
                server_hostname=address.host if tls is not None else None,
            )
    except (OSError, UnicodeError) as exc:
        raise connect_error(exc) from exc
    return protocol


async def use_socket(new_protocol: Callable[[], _Protocol], connected: socket.socket) -> _Protocol:
    """Attaches a protocol to a connected socket. Raises `Unreachable`, and closes the socket if it fails."""
    try:
        _, protocol = await asyncio.get_running_loop().create_connection(new_protocol, sock=connected)
    except BaseException as exc:
        connected.close()
        if isinstance(exc, OSError):
            raise connect_error(exc) from exc
        raise
    return protocol


class ConnectionPool:
    """Hands out each connection for one exchange, the most recently used first, so that surplus ones grow old."""

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        connect_timeout_s: float,
        idle_s: float,
        max_idle: int,
        buffer_size: int = HIGH_WATER,
    ) -> None:
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._idle_s, self._max_idle = idle_s, max_idle
        self._open: dict[str, set[PooledConnection]] = {}
        self._idle: dict[str, list[PooledConnection]] = {}
        self._buffer = memoryview(bytearray(buffer_size))
        self._is_closed = False
        self._all_closed = asyncio.Event()

    @property
    def summary(self) -> str:
        counts = (
            f"{address}: {len(connections)} open, {len(self._idle.get(address, ()))} idle"
            for address, connections in self._open.items()
        )
        return "; ".join(counts) or "no connections"

    async def acquire(self, address: str, *, new: bool, dial: Dial | None = None) -> PooledConnection:
        """Returns a connection that carries no request; one from `dial` is always new. Raises `Unreachable`."""
        if self._is_closed:
            raise Unreachable("this process is stopping")
        if dial is not None:
            return await self._use_socket(address, await dial())
        kept = None if new else self._pop_idle(address)
        return kept or await self._connect(address)

    def release(self, connection: PooledConnection) -> None:
        """Keeps the connection if it can be used again and there is room; otherwise closes it."""
        now = asyncio.get_running_loop().time()
        idle = self._idle.get(connection.address, [])
        while idle and now - idle[0].idle_since > self._idle_s:
            idle.pop(0).abort()
        if len(idle) < self._max_idle and not self._is_closed and connection.become_idle(now):
            idle.append(connection)
            self._idle[connection.address] = idle
        else:
            connection.abort()

    async def close(self) -> None:
        self._is_closed = True
        for connection in [one for connections in self._open.values() for one in connections]:
            connection.fail(Broken("this process is stopping"))
        self._all_closed.clear()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._all_closed.wait()

    def _pop_idle(self, address: str) -> PooledConnection | None:
        idle = self._idle.get(address)
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, address: str) -> PooledConnection:
        parsed = parse_address(address)
        tls = tls_for(parsed, self._tls)
        connection = PooledConnection(address, self._buffer, self._forget)
        await open_connection(lambda: connection, parsed, tls, self._connect_timeout_s)
        return self._add(connection)

    async def _use_socket(self, address: str, connected: socket.socket) -> PooledConnection:
        connection = PooledConnection(address, self._buffer, self._forget)
        await use_socket(lambda: connection, connected)
        return self._add(connection)

    def _add(self, connection: PooledConnection) -> PooledConnection:
        if self._is_closed or not connection.is_open:
            connection.abort()
            raise Unreachable("it closed the connection at once")
        self._open.setdefault(connection.address, set()).add(connection)
        return connection

    def _forget(self, connection: PooledConnection) -> None:
        connections, idle = self._open.get(connection.address), self._idle.get(connection.address)
        if idle and connection in idle:
            idle.remove(connection)
        if connections is not None:
            connections.discard(connection)
            if not connections:
                del self._open[connection.address]
                self._idle.pop(connection.address, None)
        if not self._open:
            self._all_closed.set()
