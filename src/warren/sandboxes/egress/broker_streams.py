"""Byte streams of the broker: a socket, TLS over another stream, and a reader with a buffer over either."""

import asyncio
import contextlib
import socket
import ssl
from typing import Final, Protocol

CHUNK: Final = 64 * 1024


class BrokerStream(Protocol):
    """A byte stream. `read` returns at most `limit` bytes, and none at the end; both `read` and `write` raise OSError
    if the connection breaks. One task may read while another writes. `end` announces that nothing more is written.
    `close` may be called at any time, and repeatedly."""

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
    """TLS over another stream. Raises OSError (or its subclass ssl.SSLError) for any failure."""

    def __init__(self, inner: BrokerStream, context: ssl.SSLContext, *, server_hostname: str = "") -> None:
        """Makes the client's side with a `server_hostname`, otherwise the server's."""
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
                    await self._send()  # sends the alert that says why
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
        """Writes all data. It never waits for incoming bytes: there is no renegotiation, here not even in TLS 1.2."""
        view = memoryview(data)
        while view:
            sent = self._tls.write(view[:CHUNK])
            view = view[sent:]
            await self._send()

    async def end(self) -> None:
        """Sends TLS's close_notify, by which the other side can tell an end from a cut connection."""
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
            self._incoming.write_eof()  # the next operation raises: without close_notify the connection was cut

    async def _send(self) -> None:
        if not self._outgoing.pending:
            return
        # One sender at a time: a reader may have to send too, and TLS records must stay in order.
        async with self._sending:
            while self._outgoing.pending:
                await self._inner.write(self._outgoing.read(CHUNK))


class Reader:
    """Reads a stream by lines and counts, and keeps what it has read too far for the next call."""

    def __init__(self, stream: BrokerStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    @property
    def is_empty(self) -> bool:
        return not self._buffer

    async def fill(self) -> bool:
        """Reads more into the buffer. Returns False at the end of the stream."""
        data = await self._stream.read()
        self._buffer += data
        return bool(data)

    async def until(self, mark: bytes, limit: int) -> bytes | None:
        """Returns everything up to the mark, without the mark; None if the stream ends before its first byte. Raises
        ValueError if the mark is not within `limit` bytes, EOFError if the stream ends before it."""
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

    async def exactly(self, count: int) -> bytes:
        """Returns so many bytes. Raises EOFError if the stream ends before."""
        while len(self._buffer) < count:
            if not await self.fill():
                raise EOFError
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found

    async def some(self, limit: int = CHUNK) -> bytes:
        """Returns at most `limit` bytes; none at the end."""
        if not self._buffer and not await self.fill():
            return b""
        data = bytes(self._buffer[:limit])
        del self._buffer[: len(data)]
        return data
