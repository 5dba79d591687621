"""Keeps open files that an agent sends along with its bytes from being closed in the event loop.

Where the socket cannot refuse them (`host/passed_files.py`), `GuardedTransport` takes the place of the loop's own
transport: it receives them, cuts the link off, and closes them and the socket, which may hold more, in a thread of
their own.
"""

import asyncio
import contextlib
import socket
from typing import Any, Final

from warren.sandboxes.agent.frames import FrameStream
from warren.sandboxes.host.passed_files import close_in_thread, keep_urgent_bytes, receive

_VIOLATION: Final = "it sent open files"


class GuardedTransport(asyncio.Transport):
    """The part of a transport that a link uses. It owns the socket, which must not block."""

    def __init__(self, sock: socket.socket, protocol: FrameStream) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._sock, self._fd, self._protocol = sock, sock.fileno(), protocol
        self._unsent = bytearray()
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_full = False
        self._is_closing = False
        self._is_drained = False  # the agent has hung up, and everything that it sent was read
        self._received: list[int] = []
        keep_urgent_bytes(sock)
        protocol.connection_made(self)
        self._loop.add_reader(self._fd, self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = self._high if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._loop.add_reader(self._fd, self._read)

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        if not self._unsent:
            if (sent := self._send(data)) == len(data):
                return
            data = memoryview(data)[sent:]
            self._loop.add_writer(self._fd, self._flush)
        self._unsent += data
        if len(self._unsent) > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """Sends what is left, then closes."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.remove_reader(self._fd)
            if not self._unsent:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._end(None)

    def _read(self) -> None:
        buffer = self._protocol.get_buffer(-1)
        try:
            count, descriptors = receive(self._sock, buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._end(exc)
            return
        if descriptors is not None:
            self._received = descriptors
            self._protocol.cut_off(_VIOLATION)
        elif count:
            self._protocol.buffer_updated(count)
        else:
            self._is_drained = True
            self._end(None)

    def _send(self, data: Any) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as exc:
            self._end(exc)
            return len(data)

    def _flush(self) -> None:
        del self._unsent[: self._send(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._fd)
            if self._is_closing:
                self._end(None)
        if self._is_full and len(self._unsent) <= self._low:
            self._is_full = False
            self._protocol.resume_writing()

    def _end(self, exc: Exception | None) -> None:
        self._is_closing = True
        if self._fd < 0:
            return
        self._unsent.clear()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._loop.call_soon(self._lose, exc)

    def _lose(self, exc: Exception | None) -> None:
        if self._fd < 0:
            return
        self._fd = -1
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # the agent hears of it, however long the close lasts
        self._protocol.connection_lost(exc)
        if self._is_drained and not self._received:
            self._sock.close()
        else:
            close_in_thread(self._sock, self._received)
