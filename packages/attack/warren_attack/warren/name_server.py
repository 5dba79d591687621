"""A name server's answers: for an Internet of the attack's own (outside.py), and of the tests'."""

import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

_A, _AAAA = 1, 28
_NO_SUCH_NAME: Final = 3


def answer(query: bytes, find: Callable[[str], Sequence[str] | None]) -> bytes:
    """`find` gives the addresses of a name in lower case, or None if there is no such name."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1"))
        at += query[at] + 1
    (kind,) = struct.unpack_from(">H", query, at + 1)
    found = find(".".join(labels).lower())
    family = socket.AF_INET if kind == _A else socket.AF_INET6
    fitting = [each for each in found or () if kind in (_A, _AAAA) and (":" in each) == (kind == _AAAA)]
    packed = [socket.inet_pton(family, each) for each in fitting]
    head = query[:2] + struct.pack(">5H", 0x8580 | (_NO_SUCH_NAME if found is None else 0), 1, len(packed), 0, 0)
    records = [struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(data)) + data for data in packed]
    return head + query[12 : at + 5] + b"".join(records)
