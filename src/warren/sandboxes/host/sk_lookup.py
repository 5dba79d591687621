"""The kernel's part of a sandbox's network: a route that keeps every packet inside, a program that chooses sockets.

With the route `local 0.0.0.0/0 dev lo` every IPv4 address is one of the sandbox's own. The kernel asks a program of the
type sk_lookup, attached to the network namespace, which socket gets a new connection or datagram, before it looks for
listeners:

    to 127.0.0.0/8, or IPv6     as ever: the sandbox's own servers
    TCP                         the socket SLOT_TCP of the map, whatever the port
    UDP to port 53              the socket SLOT_UDP
    UDP from port 53            as ever: an answer to a program of the sandbox
    other UDP                   refused

A slot without a socket refuses. The kernel empties a slot when the last descriptor of its socket is closed, and takes
the program away when the last descriptor of its link is closed.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
from functools import cache
from typing import Final

SLOT_TCP, SLOT_UDP = 0, 1
_SYSTEM_CALL: Final = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_UPDATE, _PROG_LOAD, _PROG_QUERY, _LINK_CREATE = 0, 2, 5, 16, 28
_SOCKMAP, _SK_LOOKUP, _AT_SK_LOOKUP = 15, 30, 36
_PASS, _DROP = 1, 0
_LOOK_UP_ELEMENT, _SK_RELEASE, _SK_ASSIGN = 1, 86, 124
_FAMILY, _PROTOCOL, _REMOTE_PORT, _LOCAL_IP4, _LOCAL_PORT = 8, 12, 36, 40, 60  # offsets in struct bpf_sk_lookup
_DNS: Final = 53
_NEW_ROUTE, _DELETE_ROUTE = 24, 25
_REQUEST, _ACK, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x200, 0x400
_LOCAL_TABLE, _SCOPE_HOST, _LOCAL, _OUT = 255, 254, 2, 4

_libc = ctypes.CDLL(None, use_errno=True)


def new_map() -> int:
    """Makes the map of sockets and returns its descriptor. Raises OSError, as all functions here do."""
    return _bpf(_MAP_CREATE, struct.pack("<IIIII", _SOCKMAP, 4, 8, 2, 0))


def load_program(sockets: int) -> int:
    code = _program(sockets)
    text, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    return _bpf(
        _PROG_LOAD,
        struct.pack(
            "<IIQQIIQII16sII",
            *(_SK_LOOKUP, len(code) // 8, ctypes.addressof(text), ctypes.addressof(licence)),
            *(0, 0, 0, 0, 0, b"warren_egress", 0, _AT_SK_LOOKUP),
        ),
    )


def attach(program: int, namespace: int) -> int:
    return _bpf(_LINK_CREATE, struct.pack("<IIII", program, namespace, _AT_SK_LOOKUP, 0))


def put_socket(sockets: int, slot: int, sock: socket.socket) -> None:
    key, value = ctypes.c_uint32(slot), ctypes.c_uint64(sock.fileno())
    _bpf(_MAP_UPDATE, struct.pack("<IIQQQ", sockets, 0, ctypes.addressof(key), ctypes.addressof(value), 0))


def is_attached(namespace: int) -> bool:
    """Returns whether any sk_lookup program is attached to a namespace."""
    ids = (ctypes.c_uint32 * 8)()
    attr = ctypes.create_string_buffer(struct.pack("<IIIIQI", namespace, _AT_SK_LOOKUP, 0, 0, ctypes.addressof(ids), 8))
    _call(_PROG_QUERY, attr)
    return bool(struct.unpack_from("<I", attr, 24)[0])


def set_route(*, is_there: bool) -> None:
    """Adds or removes the route, in the namespace of this thread. Idempotent."""
    flags = _REQUEST | _ACK | (_CREATE | _EXCLUSIVE if is_there else 0)
    body = struct.pack("BBBBBBBBI", socket.AF_INET, 0, 0, 0, _LOCAL_TABLE, 3, _SCOPE_HOST, _LOCAL, 0)
    body += struct.pack("HHI", 8, _OUT, socket.if_nametoindex("lo"))
    head = struct.pack("IHHII", 16 + len(body), _NEW_ROUTE if is_there else _DELETE_ROUTE, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.send(head + body)
        (code,) = struct.unpack_from("i", netlink.recv(4096), 16)
    # These errors say that the route was there, or gone, already.
    if code and -code != (errno.EEXIST if is_there else errno.ESRCH):
        raise OSError(-code, os.strerror(-code))


@cache
def why_not_here() -> str:
    """Returns why this machine cannot run the program; "" if it can."""
    try:
        sockets = new_map()
        try:
            os.close(load_program(sockets))
        finally:
            os.close(sockets)
    except OSError as exc:
        return f"the kernel does not take a BPF program of the type sk_lookup: {exc.strerror}"
    return ""


def _program(sockets: int) -> bytes:
    jump, jump_not = 0x15, 0x55
    end = {"pass": _exit(_PASS), "drop": _exit(_DROP)}
    steps: list[tuple[str, bytes | tuple[int, int, int, str]]] = [
        ("", _step(0xBF, 6, 1)),  # r6 = context
        ("", _step(0x61, 2, 6, _FAMILY)),
        ("", (jump_not, 2, socket.AF_INET, "pass")),
        ("", _step(0x61, 2, 6, _LOCAL_IP4)),
        ("", _step(0x54, 2, imm=0xFF)),  # the first octet of the address
        ("", (jump, 2, 127, "pass")),
        ("", _step(0xB7, 7, imm=SLOT_TCP)),
        ("", _step(0x61, 2, 6, _PROTOCOL)),
        ("", (jump, 2, socket.IPPROTO_TCP, "assign")),
        ("", _step(0x61, 2, 6, _REMOTE_PORT)),
        ("", (jump, 2, socket.htons(_DNS), "pass")),
        ("", _step(0x61, 2, 6, _LOCAL_PORT)),
        ("", (jump_not, 2, _DNS, "drop")),
        ("", _step(0xB7, 7, imm=SLOT_UDP)),
        ("assign", _step(0x63, 10, 7, -4)),  # the map's key, on the stack
        ("", _step(0x18, 1, 1, imm=sockets) + _step(0)),  # r1 = the map
        ("", _step(0xBF, 2, 10)),
        ("", _step(0x07, 2, imm=-4)),
        ("", _step(0x85, imm=_LOOK_UP_ELEMENT)),
        ("", (jump, 0, 0, "drop")),
        ("", _step(0xBF, 7, 0)),
        ("", _step(0xBF, 1, 6)),
        ("", _step(0xBF, 2, 0)),
        ("", _step(0xB7, 3)),
        ("", _step(0x85, imm=_SK_ASSIGN)),
        ("", _step(0xBF, 8, 0)),
        ("", _step(0xBF, 1, 7)),
        ("", _step(0x85, imm=_SK_RELEASE)),
        ("", (jump_not, 8, 0, "drop")),  # the kernel did not assign it
        ("pass", end["pass"]),
        ("drop", end["drop"]),
    ]
    places, at = {}, 0
    for label, step in steps:
        places[label] = at
        at += len(step) // 8 if isinstance(step, bytes) else 1
    code, at = b"", 0
    for _, step in steps:
        if not isinstance(step, bytes):
            operation, register, value, target = step
            step = _step(operation, register, offset=places[target] - at - 1, imm=value)
        code += step
        at += len(step) // 8
    return code


def _step(code: int, target: int = 0, source: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | target, offset, imm)


def _exit(verdict: int) -> bytes:
    return _step(0xB7, 0, imm=verdict) + _step(0x95)


def _bpf(command: int, attr: bytes) -> int:
    return _call(command, ctypes.create_string_buffer(attr.ljust(72, b"\0"), 72))


def _call(command: int, attr: "ctypes.Array[ctypes.c_char]") -> int:
    if platform.machine() not in _SYSTEM_CALL:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    result = _libc.syscall(_SYSTEM_CALL[platform.machine()], command, attr, len(attr))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
