"""Answers the DNS queries of sandboxes, without asking another server: so no data can leave inside a name.

`answer` reads one query and never raises: it returns None or an error response for what it cannot read.
"""

import re
import struct
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Final

from warren.model.errors import InvalidRequest
from warren.model.network import canonical_name

TTL_S: Final = 60
MAX_QUERY: Final = 1232

_HEAD: Final = struct.Struct(">HHHHHH")
_QUESTION_END: Final = struct.Struct(">HH")
_A, _IN = 1, 1
_QUERY, _RESPONSE = 0x8000, 0x8480  # the response bit; then with "authoritative" and "recursion available"
_OPCODE, _WISHED_RECURSION = 0x7800, 0x0100
_NO_ERROR, _FORMAT_ERROR, _NO_NAME, _NOT_DONE, _REFUSED = 0, 1, 3, 4, 5
_LABEL: Final = re.compile(rb"[A-Za-z0-9_-]{1,63}")

# Returns the address of a name, or None if the sandbox must not know the name.
LookUp = Callable[[str], IPv4Address | None]


def answer(query: bytes, look_up: LookUp) -> bytes | None:
    if len(query) < _HEAD.size or len(query) > MAX_QUERY:
        return None
    number, flags, questions, _, _, _ = _HEAD.unpack_from(query)
    if flags & _QUERY:
        return None  # answering a response could make two programs answer each other for ever
    if flags & _OPCODE:
        return _respond(number, flags, _NOT_DONE)
    question = _read_question(query) if questions == 1 else None
    if question is None:
        return _respond(number, flags, _FORMAT_ERROR)
    name, kind, family, end = question
    asked = query[_HEAD.size : end]
    if family != _IN:
        return _respond(number, flags, _REFUSED, asked)
    address = look_up(name) if name else None
    if address is None:
        return _respond(number, flags, _NO_NAME, asked)
    if kind != _A:
        return _respond(number, flags, _NO_ERROR, asked)
    record = struct.pack(">HHHIH4s", 0xC00C, _A, _IN, TTL_S, 4, address.packed)
    return _respond(number, flags, _NO_ERROR, asked, record)


def _respond(number: int, flags: int, code: int, question: bytes = b"", record: bytes = b"") -> bytes:
    flags = _RESPONSE | (flags & _WISHED_RECURSION) | code
    return _HEAD.pack(number, flags, 1 if question else 0, 1 if record else 0, 0, 0) + question + record


def _read_question(query: bytes) -> tuple[str, int, int, int] | None:
    """Returns the name ("" if no host can have it), type, class and end of the question; None if it cannot be read."""
    labels, at, is_name = [], _HEAD.size, True
    while True:
        if at >= len(query) or at - _HEAD.size > 255:
            return None
        length = query[at]
        if length == 0:
            break
        if length > 63 or at + 1 + length > len(query):
            return None
        label = query[at + 1 : at + 1 + length]
        is_name = is_name and _LABEL.fullmatch(label) is not None
        labels.append(label)
        at += 1 + length
    end = at + 1 + _QUESTION_END.size
    if end > len(query):
        return None
    kind, family = _QUESTION_END.unpack_from(query, at + 1)
    return _name_of(labels) if is_name and labels else "", kind, family, end


def _name_of(labels: list[bytes]) -> str:
    try:
        return canonical_name(b".".join(labels).decode("ascii"))
    except InvalidRequest:
        return ""
