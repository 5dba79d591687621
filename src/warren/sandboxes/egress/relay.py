"""Relays bytes between two connected sockets, both ways, until both sides have ended or one fails.

All connections share one buffer. Bytes that one side does not accept at once are copied, and the relay reads no more of
the other side until they are sent. If one side fails, the other is reset. The end of one direction is passed on, and
the other direction may continue.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable
from typing import Final, Protocol

BUFFER: Final = 256 << 10
_buffer = memoryview(bytearray(BUFFER))
_RESET: Final = struct.pack("ii", 1, 0)


class Guard(Protocol):
    """Checks what a client sends, and holds back what it cannot judge yet. `answered` gets what the server sends while
    the guard `awaits_answer`, and returns what was held back until then."""

    @property
    def is_over(self) -> bool: ...
    @property
    def most(self) -> int: ...
    @property
    def awaits_answer(self) -> bool: ...
    def feed(self, data: memoryview) -> bytes: ...
    def answered(self, data: memoryview) -> bytes: ...


class Budget(Protocol):
    """Limits how much is done in a second."""

    def take(self, count: float, /) -> float: ...


def reset(sock: socket.socket) -> None:
    """Closes the socket with a reset, so that the other side gets an error instead of an end."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


class Relay:
    """Relays one connection. `count` is called with the bytes read from the client and from the server, and returns for
    how long not to read that side. `work` limits the time that guards of this sandbox take. `end` is called once, with
    what the guard raised or None."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        guard: Guard | None,
        *,
        work: Budget,
        count: Callable[[int, int], float],
        end: Callable[[Exception | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._guard, self._work, self._count, self._end = guard, work, count, end
        self._up = _Direction(self, client, server)
        self._down = _Direction(self, server, client)
        self._is_over = False

    def start(self, first: bytes = b"") -> None:
        """Starts relaying. `first` was already read from the client and checked."""
        self._up.start(first)
        self._down.start(b"")

    def abort(self, why: Exception | None = None) -> None:
        """Resets both sides."""
        self._finish(reset, why)

    def most(self, way: "_Direction") -> int:
        """Returns how many bytes may be read at once."""
        return BUFFER if self._guard is None or way is not self._up else min(BUFFER, self._guard.most)

    def owed(self, way: "_Direction") -> float:
        """Returns for how many seconds not to read, because the sandbox's guards have used up their time."""
        return self._work.take(0) if self._is_guarded(way) else 0.0

    def read(self, way: "_Direction", data: memoryview) -> tuple[bytes | memoryview, float]:
        """Returns what may be passed on, and for how many seconds not to read more."""
        guard, is_up = self._guard, way is self._up
        wait = self._count(len(data), 0) if is_up else self._count(0, len(data))
        if guard is None or not self._is_guarded(way):
            return data, wait
        begun = time.thread_time()
        try:
            passed = guard.feed(data) if is_up else guard.answered(data)
        finally:
            self._work.take(time.thread_time() - begun)
        if guard.is_over:
            self._guard = None
        if is_up:
            return passed, wait
        if passed:
            self._up.send(passed)
        return data, wait

    def _is_guarded(self, way: "_Direction") -> bool:
        return self._guard is not None and (way is self._up or self._guard.awaits_answer)

    def ended(self) -> None:
        if self._up.is_done and self._down.is_done:
            self._finish(socket.socket.close, None)

    def _finish(self, close: Callable[[socket.socket], None], why: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        for way in (self._up, self._down):
            way.stop()
        close(self._up.source)
        close(self._down.source)
        self._end(why)


class _Direction:
    def __init__(self, relay: Relay, source: socket.socket, sink: socket.socket) -> None:
        self._relay, self.source, self._sink = relay, source, sink
        self._loop = asyncio.get_running_loop()
        self._unsent: bytes | memoryview = b""
        self._at_end = False
        self._pause: asyncio.TimerHandle | None = None
        self.is_done = False

    def start(self, first: bytes) -> None:
        self._loop.add_reader(self.source.fileno(), self._read)
        if first:
            self.send(first)

    def stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self.source.fileno())
        self._loop.remove_writer(self._sink.fileno())

    def send(self, data: bytes | memoryview) -> None:
        if self._unsent:
            self._unsent = bytes(self._unsent) + bytes(data)
            return
        try:
            sent = self._sink.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._relay.abort()
            return
        if sent < len(data):
            self._unsent = bytes(data[sent:])
            self._loop.remove_reader(self.source.fileno())
            self._loop.add_writer(self._sink.fileno(), self._write)

    def _read(self) -> None:
        if (owed := self._relay.owed(self)) > 0:
            self._wait(owed)
            return
        try:
            count = self.source.recv_into(_buffer, self._relay.most(self))
        except BlockingIOError:
            return
        except OSError:
            self._relay.abort()
            return
        if not count:
            self._end()
            return
        try:
            passed, wait = self._relay.read(self, _buffer[:count])
        except Exception as exc:
            self._relay.abort(exc)
            return
        if passed:
            self.send(passed)
        if wait > 0 and not self.is_done and self.source.fileno() >= 0:
            self._wait(wait)

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self.source.fileno())
        self._pause = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        if not self._unsent and not self._at_end:
            self._loop.add_reader(self.source.fileno(), self._read)

    def _write(self) -> None:
        try:
            sent = self._sink.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self._relay.abort()
            return
        self._unsent = memoryview(self._unsent)[sent:]
        if len(self._unsent):
            return
        self._unsent = b""
        self._loop.remove_writer(self._sink.fileno())
        if self._at_end:
            self._end()
        elif self._pause is None:
            self._loop.add_reader(self.source.fileno(), self._read)

    def _end(self) -> None:
        self._at_end = True
        self._loop.remove_reader(self.source.fileno())
        if self._unsent:
            return
        with contextlib.suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)
        self.is_done = True
        self._relay.ended()
