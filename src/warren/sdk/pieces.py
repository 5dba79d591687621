"""Bytes that come piece by piece: from a file that is open, or from an iterable."""

from collections.abc import Iterable, Iterator
from typing import IO, Any

from warren.model.errors import InvalidRequest
from warren.sdk.wire import CHUNK


def read_in_pieces(source: Iterable[bytes] | IO[bytes]) -> Iterator[bytes]:
    """A file is read in chunks of our size, not line by line."""
    read = getattr(source, "read", None)
    if read is None and not isinstance(source, Iterable):
        raise InvalidRequest(
            f"the data is {type(source).__name__}", remedy="give a text, bytes, an open file, or what gives bytes"
        )
    pieces: Iterable[Any] = iter(lambda: read(CHUNK), b"") if read is not None else source
    for piece in pieces:
        yield checked(piece)


def checked(piece: Any) -> bytes:
    if isinstance(piece, (bytes, bytearray, memoryview)):
        return bytes(piece)
    raise InvalidRequest(
        f"a piece of the data is {type(piece).__name__}, not bytes", remedy="open files in binary mode, encode texts"
    )
