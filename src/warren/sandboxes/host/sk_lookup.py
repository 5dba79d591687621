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

import errno
import os
import socket
import struct
from functools import cache
from typing import Final

from warren.sandboxes.host import bpf

SLOT_TCP, SLOT_UDP = 0, 1
_LINK_CREATE: Final = 28
_SOCKMAP, _SK_LOOKUP, _AT_SK_LOOKUP = 15, 30, 36
_PASS, _DROP = 1, 0
_LOOK_UP_ELEMENT, _SK_RELEASE, _SK_ASSIGN = 1, 86, 124
_FAMILY, _PROTOCOL, _REMOTE_PORT, _LOCAL_IP4, _LOCAL_PORT = 8, 12, 36, 40, 60  # offsets in struct bpf_sk_lookup
_DNS: Final = 53
_NEW_ROUTE, _DELETE_ROUTE = 24, 25
_REQUEST, _ACK, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x200, 0x400
_LOCAL_TABLE, _SCOPE_HOST, _LOCAL, _OUT = 255, 254, 2, 4


def new_map() -> int:
    """Makes the map of sockets and returns its descriptor. Raises OSError, as all functions here do."""
    return bpf.new_map(_SOCKMAP, key_bytes=4, value_bytes=8, entries=2)


def load_program(sockets: int) -> int:
    return bpf.load(_SK_LOOKUP, _AT_SK_LOOKUP, "warren_egress", _program(sockets))


def attach(program: int, namespace: int) -> int:
    return bpf.call(_LINK_CREATE, struct.pack("<IIII", program, namespace, _AT_SK_LOOKUP, 0))[0]


def put_socket(sockets: int, slot: int, sock: socket.socket) -> None:
    bpf.put(sockets, struct.pack("<I", slot), struct.pack("<Q", sock.fileno()))


def is_attached(namespace: int) -> bool:
    """Returns whether any sk_lookup program is attached to a namespace."""
    return bool(bpf.attached(namespace, _AT_SK_LOOKUP))


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
    return bpf.assemble(
        [
            ("", bpf.step(0xBF, 6, 1)),  # r6 = context
            ("", bpf.step(0x61, 2, 6, _FAMILY)),
            ("", (jump_not, 2, socket.AF_INET, "pass")),
            ("", bpf.step(0x61, 2, 6, _LOCAL_IP4)),
            ("", bpf.step(0x54, 2, imm=0xFF)),  # the first octet of the address
            ("", (jump, 2, 127, "pass")),
            ("", bpf.step(0xB7, 7, imm=SLOT_TCP)),
            ("", bpf.step(0x61, 2, 6, _PROTOCOL)),
            ("", (jump, 2, socket.IPPROTO_TCP, "assign")),
            ("", bpf.step(0x61, 2, 6, _REMOTE_PORT)),
            ("", (jump, 2, socket.htons(_DNS), "pass")),
            ("", bpf.step(0x61, 2, 6, _LOCAL_PORT)),
            ("", (jump_not, 2, _DNS, "drop")),
            ("", bpf.step(0xB7, 7, imm=SLOT_UDP)),
            ("assign", bpf.step(0x63, 10, 7, -4)),  # the map's key, on the stack
            ("", bpf.step(0x18, 1, 1, imm=sockets) + bpf.step(0)),  # r1 = the map
            ("", bpf.step(0xBF, 2, 10)),
            ("", bpf.step(0x07, 2, imm=-4)),
            ("", bpf.step(0x85, imm=_LOOK_UP_ELEMENT)),
            ("", (jump, 0, 0, "drop")),
            ("", bpf.step(0xBF, 7, 0)),
            ("", bpf.step(0xBF, 1, 6)),
            ("", bpf.step(0xBF, 2, 0)),
            ("", bpf.step(0xB7, 3)),
            ("", bpf.step(0x85, imm=_SK_ASSIGN)),
            ("", bpf.step(0xBF, 8, 0)),
            ("", bpf.step(0xBF, 1, 7)),
            ("", bpf.step(0x85, imm=_SK_RELEASE)),
            ("", (jump_not, 8, 0, "drop")),  # the kernel did not assign it
            ("pass", bpf.leave(_PASS)),
            ("drop", bpf.leave(_DROP)),
        ]
    )
