"""Byte streams of the broker: a socket, TLS over another stream, and a reader with a buffer over either."""

import asyncio
import contextlib
import socket
import ssl
from typing import Final, Protocol

CHUNK: Final = 64 * 1024


class Stream(Protocol):
    """`read` gives at most `limit` bytes, and none at the end. Both raise OSError when the connection breaks. One task
    reads and one writes at the same time. `end` says that nothing more is written. `close` may be called at any time,
    and again."""

    async def read(self, limit: int = CHUNK) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def end(self) -> None: ...
    def close(self) -> None: ...


class SocketStream:
    """A connected, non-blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._loop = asyncio.get_running_loop()

    async def read(self, limit: int = CHUNK) -> bytes:
        return await self._loop.sock_recv(self._socket, limit)

    async def write(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def end(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


class TlsStream:
    """TLS over another stream. Raises OSError (ssl.SSLError is one) for whatever is wrong with it."""

    def __init__(self, inner: Stream, context: ssl.SSLContext, *, server_hostname: str = "") -> None:
        """With a `server_hostname` it is a client, else a server."""
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=not server_hostname,
            server_hostname=server_hostname or None,
        )
        self._sending = asyncio.Lock()

    async def handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send()
                await self._receive()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._send()  # the alert that says why
                raise
            else:
                await self._send()
                return

    async def read(self, limit: int = CHUNK) -> bytes:
        while True:
            try:
                data = self._tls.read(limit)
            except ssl.SSLWantReadError:
                await self._send()
                await self._receive()
                continue
            except ssl.SSLZeroReturnError:
                return b""
            await self._send()
            return data

    async def write(self, data: bytes) -> None:
        """A write never waits for what comes in: TLS 1.3 has no renegotiation, and none is allowed in TLS 1.2."""
        view = memoryview(data)
        while view:
            sent = self._tls.write(view[:CHUNK])
            view = view[sent:]
            await self._send()

    async def end(self) -> None:
        """With a message of TLS, so that the other side can tell an end from a cut."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        await self._send()
        await self._inner.end()

    def close(self) -> None:
        self._inner.close()

    async def _receive(self) -> None:
        data = await self._inner.read(CHUNK)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()  # then the next operation raises: a cut is not an end

    async def _send(self) -> None:
        if not self._outgoing.pending:
            return
        async with self._sending:
            while self._outgoing.pending:
                await self._inner.write(self._outgoing.read(CHUNK))


class Reader:
    """Reads a stream by lines and counts, and gives back what it has read too far."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    @property
    def is_empty(self) -> bool:
        return not self._buffer

    async def fill(self) -> bool:
        """Whether there is more."""
        data = await self._stream.read()
        self._buffer += data
        return bool(data)

    async def until(self, mark: bytes, limit: int) -> bytes | None:
        """Everything up to the mark, without it; None if the stream has ended before its first byte. Raises ValueError
        if the mark is not within `limit` bytes, EOFError if the stream ends before it."""
        start = 0
        while (at := self._buffer.find(mark, start)) < 0:
            start = max(0, len(self._buffer) - len(mark) + 1)
            if len(self._buffer) > limit:
                raise ValueError("too long")
            if not await self.fill():
                if not self._buffer:
                    return None
                raise EOFError
        if at > limit:
            raise ValueError("too long")
        found = bytes(self._buffer[:at])
        del self._buffer[: at + len(mark)]
        return found

    async def some(self, limit: int = CHUNK) -> bytes:
        """At most `limit` bytes, none at the end."""
        if not self._buffer and not await self.fill():
            return b""
        data = bytes(self._buffer[:limit])
        del self._buffer[: len(data)]
        return data
