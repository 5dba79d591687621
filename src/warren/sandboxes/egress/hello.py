"""The name that a TLS client asks for in its first message (the extension server_name).

It is parsed strictly: a message that two readers could understand differently is malformed.
"""

import re
from typing import Final

from warren.sandboxes.egress.http_syntax import Malformed

MAX_HELLO: Final = 32 << 10
_NAME: Final = re.compile(r"[a-z0-9_.-]{1,253}", re.ASCII)
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_MAX_RECORD: Final = 16384


def may_be_tls(data: bytes | bytearray) -> bool:
    return not data or (data[0] == _HANDSHAKE and (len(data) < 2 or data[1] == 3))


def read_server_name(data: bytes | bytearray) -> str | None:
    """Returns the name in lower case, "" if there is none; None while the message is incomplete. Raises Malformed."""
    message, at = bytearray(), 0
    while len(data) - at >= 5:
        length = int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at] != _HANDSHAKE or data[at + 1] != 3 or not 0 < length <= _MAX_RECORD:
            raise Malformed("it does not begin as TLS")
        message += data[at + 5 : at + 5 + length]
        if message and message[0] != _CLIENT_HELLO:
            raise Malformed("its first message of TLS is no hello")
        if len(message) >= 4:
            end = 4 + int.from_bytes(message[1:4], "big")
            if end > MAX_HELLO:
                raise Malformed("its hello of TLS is too long")
            if len(message) >= end:
                return _find_name(_Reader(bytes(message[4:end])))
        at += 5 + length
    if at <= len(data) and not may_be_tls(data[at : at + 2]):
        raise Malformed("it does not begin as TLS")
    return None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise Malformed("its hello of TLS is cut short")
        data, self._at = self._data[self._at : end], end
        return data

    def take_all(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def prefixed(self, size: int) -> "_Reader":
        """Reads a length of `size` bytes, and returns a reader of the bytes that follow it."""
        return _Reader(self.take(self.number(size)))


def _find_name(hello: _Reader) -> str:
    hello.take(2 + 32)  # version, random
    hello.prefixed(1)  # session id
    hello.prefixed(2)  # cipher suites
    hello.prefixed(1)  # compression methods
    if not hello:
        return ""
    extensions, found = hello.prefixed(2), None
    if hello:
        raise Malformed("its hello of TLS goes on after its end")
    while extensions:
        kind, body = extensions.number(2), extensions.prefixed(2)
        if kind == 0:
            if found is not None:
                raise Malformed("its hello of TLS names a server twice")
            found = _read_names(body)
    return found or ""


def _read_names(body: _Reader) -> str:
    names = body.prefixed(2)
    if body or not names or names.number(1) != 0:
        raise Malformed("its hello of TLS names no host")
    name = names.prefixed(2).take_all()
    if names:
        raise Malformed("its hello of TLS names a server twice")
    text = name.decode("ascii", "replace").lower()
    if not _NAME.fullmatch(text):
        raise Malformed("its hello of TLS names no host")
    return text
