"""Limits what the UDP sockets of a sandbox hold, on cgroup v2.

There the buffers of sockets count as memory. But a datagram arrives in an interrupt of the kernel, which may not wait
for memory: since Linux 6.1 it is charged even beyond the limit, and nobody is killed for it. The next process that asks
for memory pays. If that is the agent, the kernel first kills the program that holds the buffers, but closes its sockets
only after it has looked for the next one to kill, which is then the agent.

So programs at the sandbox's cgroup count its UDP sockets, refuse more than it may have (ENOBUFS), and bound the buffer
that a program can ask for (SO_RCVBUF), as `net.core.rmem_max` does for the machine. What the sockets can hold is then
known before. TCP needs no such limit: a sender asks for memory itself, and waits.
"""

import errno
import os
import socket
import struct
from functools import cache
from pathlib import Path
from typing import Final

from warren.sandboxes.host import bpf

MAX_BUFFER: Final = 212_992
"""What a program can ask for as the buffer of a UDP socket; the kernel gives twice as much."""
LEAST_SOCKETS: Final = 64
_DATAGRAM: Final = 96 * 1024  # one more datagram than the buffer holds is let in, with the kernel's own data about it
_DEFAULT: Final = Path("/proc/sys/net/core/rmem_default")

_CGROUP_STORAGE, _CGROUP_SOCK, _CGROUP_SOCKOPT = 19, 9, 25
_AT_CREATE, _AT_RELEASE, _AT_SETSOCKOPT = 2, 34, 22
_LOCAL_STORAGE, _SET_RESULT = 81, 187  # bpf_get_local_storage, bpf_set_retval
_TYPE: Final = 8  # offsets in struct bpf_sock and struct bpf_sockopt
_SOCKET, _VALUE, _END, _LEVEL, _NAME, _LENGTH = 0, 8, 16, 24, 28, 32
_JUMP, _JUMP_NOT, _JUMP_AT_LEAST = 0x15, 0x55, 0x35


def sockets_within(size: int) -> int:
    """Returns how many UDP sockets hold at most `size` bytes, but LEAST_SOCKETS at least."""
    try:
        default = int(_DEFAULT.read_text())
    except (OSError, ValueError):  # a sandbox of the machine, say, that does not show it
        default = MAX_BUFFER
    return max(LEAST_SOCKETS, size // (max(2 * MAX_BUFFER, default) + _DATAGRAM))


def limit(directory: str, sockets: int) -> None:
    """Limits the UDP sockets of a cgroup that has none yet. Raises OSError."""
    counts, count_fewer, bound_buffers, count_more = _programs()
    cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        bpf.attach(count_fewer, cgroup, _AT_RELEASE)
        bpf.attach(bound_buffers, cgroup, _AT_SETSOCKOPT)
        bpf.put(counts, struct.pack("<Q", os.fstat(cgroup).st_ino), struct.pack("<QQ", 0, sockets))
        bpf.attach(count_more, cgroup, _AT_CREATE)
    finally:
        os.close(cgroup)


@cache
def why_not_here() -> str:
    """Returns why this machine cannot limit UDP sockets (before Linux 5.18); "" if it can."""
    try:
        _programs()
    except OSError as exc:
        return exc.strerror or str(exc)
    return ""


@cache
def _programs() -> tuple[int, int, int, int]:
    """Returns descriptors of the map and the programs, which all sandboxes share. The map has a place for each cgroup
    that a program is attached to: the number of its sockets, and the most that there may be."""
    counts = bpf.new_map(_CGROUP_STORAGE, key_bytes=8, value_bytes=16, entries=0)
    return (
        counts,
        bpf.load(_CGROUP_SOCK, _AT_RELEASE, "warren_udp_end", _release(counts)),
        bpf.load(_CGROUP_SOCKOPT, _AT_SETSOCKOPT, "warren_udp_size", _bound_buffers()),
        bpf.load(_CGROUP_SOCK, _AT_CREATE, "warren_udp_new", _create(counts)),
    )


def is_set(directory: str) -> bool:
    """Returns whether a cgroup has such a limit."""
    cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return bool(bpf.attached(cgroup, _AT_CREATE))
    finally:
        os.close(cgroup)


def _create(counts: int) -> bytes:
    """Counts a new socket, or refuses it. Processors that ask at the same moment may all get the last place."""
    return bpf.assemble(
        [
            ("", bpf.step(0x61, 2, 1, _TYPE)),
            ("", (_JUMP_NOT, 2, socket.SOCK_DGRAM, "pass")),
            ("", _find_place(counts)),
            ("", bpf.step(0x79, 2, 0) + bpf.step(0x79, 3, 0, 8)),
            ("", bpf.step(0x3D, 2, 3, offset=4)),  # to "refuse", if there are as many as there may be
            ("", _add(1)),
            ("pass", bpf.leave(1)),
            ("refuse", bpf.step(0xB7, 1, imm=-errno.ENOBUFS)),
            ("", bpf.step(0x85, imm=_SET_RESULT)),
            ("", bpf.leave(0)),
        ]
    )


def _release(counts: int) -> bytes:
    return bpf.assemble(
        [
            ("", bpf.step(0x61, 2, 1, _TYPE)),
            ("", (_JUMP_NOT, 2, socket.SOCK_DGRAM, "pass")),
            ("", _find_place(counts)),
            ("", _add(-1)),
            ("pass", bpf.leave(1)),
        ]
    )


def _bound_buffers() -> bytes:
    """Lowers the value of SO_RCVBUF; every other option, and every lower value, the kernel reads as it was given."""
    return bpf.assemble(
        [
            ("", bpf.step(0x61, 2, 1, _LEVEL)),
            ("", (_JUMP_NOT, 2, socket.SOL_SOCKET, "pass")),
            ("", bpf.step(0x61, 2, 1, _NAME)),
            ("", (_JUMP_NOT, 2, socket.SO_RCVBUF, "pass")),
            ("", bpf.step(0x79, 3, 1, _SOCKET)),
            ("", bpf.step(0x61, 2, 3, _TYPE)),
            ("", (_JUMP_NOT, 2, socket.SOCK_DGRAM, "pass")),
            ("", bpf.step(0x79, 3, 1, _VALUE)),
            ("", bpf.step(0x79, 4, 1, _END)),
            ("", bpf.step(0xBF, 5, 3) + bpf.step(0x07, 5, imm=4)),
            ("", bpf.step(0x2D, 5, 4, offset=2)),  # to "pass", if the value has less than four bytes
            ("", bpf.step(0x61, 2, 3)),
            ("", (_JUMP_AT_LEAST, 2, MAX_BUFFER + 1, "lower")),
            ("pass", bpf.step(0xB7, 2) + bpf.step(0x63, 1, 2, _LENGTH)),  # the length 0 means: as it was given
            ("", bpf.leave(1)),
            ("lower", bpf.step(0xB7, 2, imm=MAX_BUFFER) + bpf.step(0x63, 3, 2)),
            ("", bpf.leave(1)),
        ]
    )


def _find_place(counts: int) -> bytes:
    """r0 = the cgroup's place in the map"""
    return bpf.step(0x18, 1, 1, imm=counts) + bpf.step(0) + bpf.step(0xB7, 2) + bpf.step(0x85, imm=_LOCAL_STORAGE)


def _add(value: int) -> bytes:
    return bpf.step(0xB7, 2, imm=value) + bpf.step(0xDB, 0, 2)
