"""Keeps open files that a stranger's process sends along with its bytes out of the worker.

A unix socket carries open files (SCM_RIGHTS). A reader that does not ask for them has the kernel close them in its own
thread, at the latest when it closes the socket, and a close lasts as long as the sender has prepared: until the data of
a lingering TCP socket is sent, until the pages of a large memory file are freed. No program that the worker reads from
has a reason to send any. From Linux 6.16 on a socket can refuse them (SO_PASSRIGHTS), and the sender gets an error.
Before, a reader has to receive them, end the connection, and close everything in a thread of its own.
"""

import array
import os
import socket
import threading
from collections.abc import Iterable
from typing import Any, Final

_SO_PASSRIGHTS: Final = 83
_MAX_DESCRIPTORS: Final = 253  # the kernel passes no more in one message, and no two messages in one read
_ROOM: Final = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)


def refuse_descriptors(sock: socket.socket) -> bool:
    """Returns whether the socket refuses open files from now on; call it before connecting. False before Linux 6.16."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True


def keep_urgent_bytes(sock: socket.socket) -> None:
    """Has `receive` see urgent bytes (MSG_OOB) like all others. By default the kernel skips them, and closes in the
    reader's thread what came with them."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)


def receive(sock: socket.socket, buffer: Any) -> tuple[int, list[int] | None]:
    """Receives into the buffer, from a socket with `keep_urgent_bytes`. Returns the number of bytes, and the open files
    that came along; None if none did. Whoever gets some passes them and the socket to `close_in_thread`."""
    count, control, flags, _ = sock.recvmsg_into([buffer], _ROOM, socket.MSG_CMSG_CLOEXEC)
    came = control or flags & socket.MSG_CTRUNC
    return count, list(_descriptors(control)) if came else None


def close_in_thread(sock: socket.socket, descriptors: Iterable[int] = ()) -> None:
    """Closes the socket, which may hold more open files, and descriptors that were received. Does not wait for it."""
    # A daemon: the process may end before the close does.
    threading.Thread(target=_close_all, args=(sock, descriptors), daemon=True).start()


def _descriptors(control: Iterable[tuple[int, int, bytes]]) -> Iterable[int]:
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            yield from numbers


def _close_all(sock: socket.socket, descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)
    sock.close()
