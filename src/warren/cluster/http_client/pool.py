"""The connections to all workers: those in use, and those kept for the next request."""

import asyncio
import re
import socket
import ssl
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

from warren.cluster.http_client.connection import HIGH_WATER, Connection
from warren.cluster.http_client.failures import Broken, Unreachable

_ADDRESS: Final = re.compile(r"(?:(https?)://)?(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s/:@\[\]]+)):([0-9]{1,5})/?")
_CLOSING_S: Final = 5.0


class PooledSlot(NamedTuple):
    host: str
    port: int
    scheme: str  # nothing if the address does not say


@lru_cache(maxsize=1024)
def read_address(address: str) -> PooledSlot:
    """`host:port`, an IPv6 host in brackets, with or without a scheme. Raises `Unreachable` if it is none."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[4]) < 65536:
        raise Unreachable("its address is not a host and a port")
    return PooledSlot(found[2] or found[3], int(found[4]), found[1] or "")


def tls_for(place: PooledSlot, tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """What to speak to this place with: an address that names a scheme means it."""
    if place.scheme == "http":
        return None
    if place.scheme == "https" and tls is None:
        raise Unreachable("its address asks for TLS, which is not set up here")
    return tls


def unreachable(exc: Exception) -> Unreachable:
    """Says in words why no connection came about, without the address."""
    if isinstance(exc, ssl.SSLError):
        return Unreachable("no trusted TLS connection came about")
    if isinstance(exc, TimeoutError):
        return Unreachable("it did not take the connection in time")
    if isinstance(exc, ConnectionRefusedError):
        return Unreachable("it refused the connection")
    if isinstance(exc, socket.gaierror | UnicodeError):
        return Unreachable("its name cannot be looked up")
    if isinstance(exc, ConnectionError):
        return Unreachable("it closed the connection at once")
    return Unreachable("it cannot be reached")


class ConnectionPool:
    """Hands out connections for one exchange each: the one used last first, so that those too many grow old."""

    def __init__(self, tls: ssl.SSLContext | None, connect_timeout_s: float, idle_s: float, max_idle: int) -> None:
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._idle_s, self._max_idle = idle_s, max_idle
        self._open: dict[str, set[Connection]] = {}
        self._idle: dict[str, list[Connection]] = {}
        self._buffer = memoryview(bytearray(HIGH_WATER))
        self._is_closed = False
        self._empty = asyncio.Event()

    def __repr__(self) -> str:
        each = (f"{name}: {len(made)} open, {len(self._idle.get(name, ()))} idle" for name, made in self._open.items())
        return f"<Links {'; '.join(each) or 'to nobody'}>"

    async def take(self, address: str, *, new: bool) -> Connection:
        """A connection on which nothing is asked. Raises `Unreachable`."""
        if self._is_closed:
            raise Unreachable("this process is stopping")
        kept = None if new else self._kept(address)
        return kept or await self._connect(address)

    def give_back(self, connection: Connection) -> None:
        """Keeps it if it can be used again and there is room; else closes it."""
        now = asyncio.get_running_loop().time()
        idle = self._idle.get(connection.address, [])
        while idle and now - idle[0].idle_since > self._idle_s:
            idle.pop(0).abort()
        if len(idle) < self._max_idle and not self._is_closed and connection.rest(now):
            idle.append(connection)
            self._idle[connection.address] = idle
        else:
            connection.abort()

    async def close(self) -> None:
        self._is_closed = True
        for connection in [one for made in self._open.values() for one in made]:
            connection.fail(Broken("this process is stopping"))
        self._empty.clear()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING_S):
                    await self._empty.wait()

    def _kept(self, address: str) -> Connection | None:
        idle = self._idle.get(address)
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, address: str) -> Connection:
        place = read_address(address)
        tls = tls_for(place, self._tls)
        loop = asyncio.get_running_loop()
        connection = Connection(address, self._buffer, self._forget)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.create_connection(
                    lambda: connection,
                    place.host,
                    place.port,
                    ssl=tls,
                    server_hostname=place.host if tls is not None else None,
                )
        except (OSError, UnicodeError) as exc:
            raise unreachable(exc) from exc
        if self._is_closed or not connection.is_open:
            connection.abort()
            raise Unreachable("it closed the connection at once")
        self._open.setdefault(address, set()).add(connection)
        return connection

    def _forget(self, connection: Connection) -> None:
        made, idle = self._open.get(connection.address), self._idle.get(connection.address)
        if idle and connection in idle:
            idle.remove(connection)
        if made is not None:
            made.discard(connection)
            if not made:
                del self._open[connection.address]
                self._idle.pop(connection.address, None)
        if not self._open:
            self._empty.set()
