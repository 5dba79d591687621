"""BPF programs: puts one together from instructions, loads it, attaches it to a cgroup.

Programs are short and written by hand, so neither a compiler nor a library is needed. All functions raise OSError.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from typing import Final

from warren.sandboxes.host.system_calls import numbers

_MAP_CREATE, _MAP_UPDATE, _PROG_LOAD, _PROG_ATTACH, _PROG_QUERY = 0, 2, 5, 8, 16
_ALLOW_MULTI: Final = 2
_ROOM: Final = 72  # for the attributes of every call that is made here
_MAX_PROGRAMS: Final = 16

_libc = ctypes.CDLL(None, use_errno=True)

Jump = tuple[int, int, int, str]
"""Operation, register, value to compare it with, and the label to go to."""


def call(command: int, attributes: bytes) -> tuple[int, bytes]:
    """Calls the kernel, and returns the result and the attributes as the kernel has changed them."""
    try:
        number = numbers(platform.machine())["bpf"]
    except KeyError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    size = max(len(attributes), _ROOM)
    room = ctypes.create_string_buffer(attributes, size)
    result: int = _libc.syscall(number, ctypes.c_long(command), room, ctypes.c_long(size))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, room.raw


def new_map(kind: int, *, key_bytes: int, value_bytes: int, entries: int) -> int:
    return call(_MAP_CREATE, struct.pack("<IIIII", kind, key_bytes, value_bytes, entries, 0))[0]


def put(map_: int, key: bytes, value: bytes) -> None:
    key_at, value_at = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(value, len(value))
    call(_MAP_UPDATE, struct.pack("<IIQQQ", map_, 0, ctypes.addressof(key_at), ctypes.addressof(value_at), 0))


def load(kind: int, purpose: int, name: str, code: bytes) -> int:
    """Loads a program and returns its descriptor. `purpose` is where it is going to be attached."""
    text, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "<IIQQIIQII16sII",
        *(kind, len(code) // 8, ctypes.addressof(text), ctypes.addressof(licence)),
        *(0, 0, 0, 0, 0, name.encode(), 0, purpose),
    )
    return call(_PROG_LOAD, attributes)[0]


def attach(program: int, directory: int, purpose: int) -> None:
    """Attaches a program to a cgroup, beside those of others. It stays for as long as the cgroup."""
    call(_PROG_ATTACH, struct.pack("<IIII", directory, program, purpose, _ALLOW_MULTI))


def attached(target: int, purpose: int, flags: int = 0) -> list[int]:
    """Returns the numbers of the programs that are attached to a cgroup or a network namespace."""
    ids = (ctypes.c_uint32 * _MAX_PROGRAMS)()
    query = struct.pack("<IIIIQI", target, purpose, flags, 0, ctypes.addressof(ids), _MAX_PROGRAMS)
    _, answer = call(_PROG_QUERY, query)
    return ids[: struct.unpack_from("<I", answer, 24)[0]]


def step(code: int, target: int = 0, source: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | target, offset, imm)


def leave(verdict: int) -> bytes:
    return step(0xB7, 0, imm=verdict) + step(0x95)


def assemble(steps: Sequence[tuple[str, bytes | Jump]]) -> bytes:
    """Returns the program. Each step has a label, or "", and is instructions or a jump."""
    places, at = {}, 0
    for label, part in steps:
        places[label] = at
        at += len(part) // 8 if isinstance(part, bytes) else 1
    code, at = b"", 0
    for _, part in steps:
        if not isinstance(part, bytes):
            operation, register, value, label = part
            part = step(operation, register, offset=places[label] - at - 1, imm=value)
        code += part
        at += len(part) // 8
    return code
