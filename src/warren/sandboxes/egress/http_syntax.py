"""Parses the parts of an HTTP/1 head, for both readers in this process: `RequestGuard` and the broker.

It parses strictly: what two readers could understand differently is malformed, and never repaired.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

MAX_HEAD: Final = 64 << 10
CHUNKED: Final = -1
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_HOST: Final = re.compile(r"([a-z0-9_.-]{1,254}|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.ASCII)
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")

Fields = list[tuple[bytes, bytes]]


class Malformed(Exception):
    """The bytes are not valid for their port or protocol. The message says why, and quotes none of them."""


def read_fields(lines: Iterable[bytes]) -> Fields:
    """Returns names as they were sent, and values without surrounding blanks, in linear time. Raises Malformed."""
    fields = []
    for line in lines:
        if (found := _FIELD.fullmatch(line)) is None:
            raise Malformed("a line of its head cannot be read")
        fields.append((found[1], found[2].strip(b" \t")))
    return fields


def values_of(fields: Fields, name: bytes) -> list[bytes]:
    """Returns the values of a field. `name` is in lower case."""
    return [value for each, value in fields if each.lower() == name]


def read_length(fields: Fields) -> int | None:
    """Returns the length of the body, or CHUNKED; None if the head does not say. Raises Malformed."""
    lengths, codings = values_of(fields, b"content-length"), values_of(fields, b"transfer-encoding")
    if codings:
        if lengths or [coding.lower() for coding in codings] != [b"chunked"]:
            raise Malformed("the length of its body is ambiguous")
        return CHUNKED
    if not lengths:
        return None
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]):
        raise Malformed("the length of its body is ambiguous")
    return int(lengths[0])


def read_chunk_size(line: bytes) -> int:
    found = _CHUNK.fullmatch(line)
    if found is None:
        raise Malformed("a chunk of its body cannot be read")
    return int(found[1], 16)


def read_host(values: Sequence[bytes]) -> tuple[str, int]:
    """Returns the host that a request names, in lower case, and its port or 0. `values` are those of the field Host.
    Raises Malformed."""
    if len(values) != 1:
        raise Malformed("its request names no host, or more than one")
    found = _HOST.fullmatch(values[0].decode("ascii", "replace").lower())
    if found is None or int(found[2] or 0) > 65535:
        raise Malformed("its request names a host that cannot be read")
    return found[1].strip("[]").removesuffix("."), int(found[2] or 0)
