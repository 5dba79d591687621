"""A TLS socket that one thread may read while another writes, as threads of a WebSocket do.

OpenSSL does only one of both at a time. On a plain `ssl.SSLSocket` they meet when a thread reads what a server sends
after the handshake, and another writes the request: on a busy machine the reader is told now and then that the
connection has ended. Some versions of Python have a lock against that, and then the writer waits for as long as
nothing comes.
"""

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


class TlsSocket:
    """What a WebSocket connection needs of a socket. TLS must have been agreed on already."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        self._socket = connected
        self._timeout_s: float | None = None
        self._turn = threading.Lock()
        connected.setblocking(False)

    def recv(self, most: int) -> bytes:
        return self._in_turns(self._socket.recv, most)

    def sendall(self, data: bytes) -> None:
        sent = 0
        with memoryview(data) as view:
            while sent < len(view):
                sent += self._in_turns(self._socket.send, view[sent:])

    def settimeout(self, seconds: float | None) -> None:
        self._timeout_s = seconds

    def fileno(self) -> int:
        return self._socket.fileno()

    def getsockname(self) -> object:
        return self._socket.getsockname()

    def getpeername(self) -> object:
        return self._socket.getpeername()

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self._socket, how)  # that of SSLSocket forgets TLS: the rest would be read encrypted

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)  # ends the waiting of another thread
        with self._turn:
            self._socket.close()

    def _in_turns(self, operation: Callable[[_Argument], _Result], argument: _Argument) -> _Result:
        until = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        while True:
            try:
                with self._turn:
                    return operation(argument)
            except ssl.SSLWantReadError:
                awaited = select.POLLIN
            except ssl.SSLWantWriteError:
                awaited = select.POLLOUT
            poll = select.poll()
            poll.register(self._socket, awaited)
            if not poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000):
                raise TimeoutError("the connection stands still")
