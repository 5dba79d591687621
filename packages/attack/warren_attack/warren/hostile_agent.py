"""An agent in an attacker's hands: it listens where a sandbox's agent would, greets the worker and then does one thing.

usage: python -m warren_attack.warren.hostile_agent DIRECTORY ATTACK

A process of its own, so that what it keeps open, and the time that it takes, are not the worker's.
"""

import array
import ctypes
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from warren.sandboxes.agent.dialling import SOCKET_NAME
from warren.sandboxes.agent.wire import HEADER, MAX_FRAME_IN, VERSION, WireResponse, WireTag, fields

LINGER_S: Final = 5
_MEMORY: Final = 512 << 20
_MOST: Final = 253  # descriptors of one message
_CHUNK: Final = 1 << 20
_DIE_WITH_PARENT: Final = 1
_libc = ctypes.CDLL(None)


def _frame(kind: int, channel: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload), channel, kind) + payload


_NOTHING: Final = _frame(WireResponse.DATA, 1)
_STRAY: Final = _frame(WireResponse.DATA, 1, b"x")


def linger(link: socket.socket) -> None:
    """Sends sockets whose close waits for a peer that never reads."""
    _in_children(link, _lingering_socket, 4)


def urgent_files(link: socket.socket) -> None:
    """The same with urgent bytes, which a reader that does not ask for them skips, and has closed what they carry."""
    _in_children(link, _lingering_socket, 4, socket.MSG_OOB)


def memory_files(link: socket.socket) -> None:
    """Sends large files of memory, which is freed by whoever closes them last."""
    _in_children(link, _memory_file, 2)


def descriptors(link: socket.socket) -> None:
    """Sends as many descriptors as fit, message by message, to fill the worker's table."""
    _begin_frame(link)
    for _ in range(64):
        _pass_on(link, [0] * _MOST)


def empty_frames(link: socket.socket) -> None:
    _send_for_ever(link, _NOTHING)


def stray_frames(link: socket.socket) -> None:
    link.recv(_CHUNK)  # the worker gives its request up
    _send_for_ever(link, _STRAY)


def greetings(link: socket.socket) -> None:
    _send_for_ever(link, _greeting())


def unknown_frames(link: socket.socket) -> None:
    _send_for_ever(link, _frame(0x7F, 1))


def endless_frame(link: socket.socket) -> None:
    """Sends the longest frame, a byte at a time."""
    link.sendall(HEADER.pack(MAX_FRAME_IN, 1, WireResponse.DATA))
    while True:
        link.send(b"x")


def fields_without_end(link: socket.socket) -> None:
    _send_for_ever(link, _frame(WireResponse.DONE, 1, b"\xc8\0\0\0\0" * (MAX_FRAME_IN // 5)))


def silence(link: socket.socket) -> None:
    """Reads nothing and says nothing."""


ATTACKS: Final[dict[str, Callable[[socket.socket], None]]] = {
    attack.__name__: attack
    for attack in (
        *(linger, urgent_files, memory_files, descriptors, silence),
        *(empty_frames, stray_frames, greetings, unknown_frames, endless_frame, fields_without_end),
    )
}


def _greeting() -> bytes:
    return _frame(WireResponse.HELLO, 0, fields([(WireTag.VERSION, VERSION)]))


def _begin_frame(link: socket.socket) -> None:
    """Begins a frame in which as many bytes may follow as descriptors are sent with."""
    link.sendall(HEADER.pack(MAX_FRAME_IN, 1, WireResponse.DATA))


def _pass_on(link: socket.socket, numbers: list[int], flags: int = 0) -> None:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))
    with suppress(PermissionError):  # the worker's socket refuses them
        link.sendmsg([b"x"], [rights], flags)


def _in_children(link: socket.socket, make: Callable[[], int], count: int, flags: int = 0) -> None:
    """Sends what several processes make, each of which closes its own at once: one of them will be before the worker,
    which then has the last."""
    _begin_frame(link)
    for _ in range(count):
        if os.fork() == 0:
            _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            fd = make()
            with suppress(OSError):
                _pass_on(link, [fd], flags)
            os.close(fd)
            signal.pause()  # the other end of a socket must stay


def _lingering_socket() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lingering = socket.create_connection(listener.getsockname())
        listener.accept()[0].detach()
    lingering.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            lingering.send(bytes(_CHUNK))
    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    lingering.setblocking(True)
    return lingering.detach()


def _memory_file() -> int:
    file, part = os.memfd_create("large"), bytes(_CHUNK)
    for _ in range(_MEMORY // _CHUNK):
        os.write(file, part)
    return file


def _send_for_ever(link: socket.socket, frame: bytes) -> None:
    data = frame * max(1, _CHUNK // len(frame))
    while True:
        link.sendall(data)


def main(directory: str, attack: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(directory, SOCKET_NAME)))
        listener.listen()
        link = listener.accept()[0]
    with link:
        link.recv(_CHUNK)  # the worker's greeting
        link.sendall(_greeting())
        link.recv(_CHUNK)  # its request
        with suppress(OSError):
            ATTACKS[attack](link)
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
