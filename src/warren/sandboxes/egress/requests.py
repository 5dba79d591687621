"""Follows the requests of an HTTP/1 connection, so that each of them names the host that the connection is for.

`feed` takes what the client sends and returns what may be passed on: everything but an incomplete head. It reads
strictly: a request that two servers could understand differently is malformed. After a server has agreed to another
protocol (101), the rest is passed on unread.
"""

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from warren.sandboxes.egress.http_syntax import (
    CHUNKED,
    MAX_HEAD,
    Fields,
    Malformed,
    read_chunk_size,
    read_fields,
    read_host,
    read_length,
    values_of,
)

_MAX_LINE: Final = 4096
_MAX_READ: Final = 8192
_BLANKS: Final = b"\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0"  # what the most lenient servers skip or split at
_BLANK_RUN: Final = re.compile(rb"[\t\v\f\x1c-\x1f \x85\xa0]+")
_WORD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]*")
_END: Final = re.compile(rb"[ \r]HTTP/(?:[0-9.]{1,20}[ \r\n]|[0-9.]{21})|\n", re.IGNORECASE)
_PREFACE: Final = b"PRI * HTTP/2.0\r"
_KEPT: Final = 64
_LONGEST: Final = 4 << 20  # of first lines that some server reads
_JUDGED: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"upgrade"})
_LINE: Final = re.compile(rb"([A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
_ABSOLUTE: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class _State(Enum):
    HEAD = auto()
    BODY = auto()
    CHUNK = auto()  # the line with the size of a chunk
    CHUNK_END = auto()
    TRAILER = auto()
    UPGRADING = auto()
    UNREAD = auto()


class Spoken(Enum):
    UNKNOWN = auto()
    HTTP1 = auto()
    HTTP2 = auto()
    OTHER = auto()


class FirstLine:
    """Tells from the first line of a connection what is spoken: a line with a version of HTTP is a request, whatever
    its method. Other protocols use the same words, but no such version.

    Servers skip empty lines before a request, some take other blanks, or a carriage return alone, for what they stand
    for, and some ignore what follows the version. So do we: what RequestGuard then finds wrong with the request is
    refused.
    """

    def __init__(self) -> None:
        self._word = b""  # how the first word begins
        self._is_word_over = False
        self._tail = b""
        self._left = _LONGEST

    def feed(self, data: bytes) -> Spoken:
        """Returns what the bytes so far begin. Takes them in linear time, however they are cut, and keeps a few."""
        self._left -= len(data)
        if self._left < 0:
            return Spoken.OTHER
        if not self._is_word_over:
            if not self._word:
                data = data.lstrip(_BLANKS)
            word = _WORD.match(data)
            assert word is not None
            self._word = (self._word + word[0])[:_KEPT]
            data = data[word.end() :]
            if not data:
                return Spoken.UNKNOWN
            if not self._word or data[:1] not in _BLANKS:
                return Spoken.OTHER
            self._is_word_over, self._tail = True, self._word
        line = _BLANK_RUN.sub(b" ", self._tail + data)
        self._tail = line[-_KEPT:]
        if (end := _END.search(line)) is None:
            return Spoken.UNKNOWN
        if end[0] == b"\n":
            return Spoken.OTHER
        return Spoken.HTTP2 if self._word == b"PRI" and line.startswith(_PREFACE) else Spoken.HTTP1


class RequestGuard:
    """Checks the requests of one connection. `check` is called with each host that a request names and its port or 0,
    and raises to refuse the request."""

    def __init__(self, check: Callable[[str, int], None]) -> None:
        self._check = check
        self._state = _State.HEAD
        self._held = bytearray()
        self._looked = self._left = 0
        self._requests = 0
        self._chunked = False

    @property
    def is_over(self) -> bool:
        """Whether the rest of the connection may pass unread."""
        return self._state is _State.UNREAD

    @property
    def awaits_answer(self) -> bool:
        """Whether the rest depends on what the server answers to an upgrade."""
        return self._state is _State.UPGRADING

    @property
    def most(self) -> int:
        """How many bytes should be fed at once: few while heads and chunks have to be parsed, many in a body."""
        return max(_MAX_READ, self._left) if self._state is _State.BODY else _MAX_READ

    def feed(self, data: bytes | memoryview) -> bytes:
        """Returns what may be passed on. Raises Malformed, and what `check` raises."""
        self._held += data
        passed = bytearray()
        while self._held and self._state is not _State.UPGRADING and self._step(passed):
            pass
        if len(self._held) > MAX_HEAD:
            raise Malformed("it does not wait for an answer")
        return bytes(passed)

    def answered(self, data: bytes | memoryview) -> bytes:
        """Takes bytes of the server's response, and returns what was held back until the server answered an upgrade."""
        if self._state is not _State.UPGRADING:
            return b""
        is_switched = re.match(rb"HTTP/1\.1 101[ \r]", bytes(data[:13]))
        self._state = _State.UNREAD if is_switched else _State.HEAD
        return self.feed(b"")

    def _step(self, passed: bytearray) -> bool:
        """Consumes what it can of the held bytes. Returns whether more may be consumed at once."""
        if self._state is _State.UNREAD:
            return self._pass(len(self._held), passed)
        if self._state in (_State.BODY, _State.CHUNK_END):
            return self._pass_body(passed)
        most = MAX_HEAD if self._state is _State.HEAD else _MAX_LINE
        mark = b"\r\n\r\n" if self._state is _State.HEAD else b"\r\n"
        end = self._held.find(mark, max(0, self._looked - len(mark)), most)
        self._check_ends_of_lines(len(self._held) if end < 0 else end + len(mark))
        self._looked = len(self._held)
        if end < 0:
            if len(self._held) >= most:
                raise Malformed("its request has no end")
            if self._state is _State.HEAD and not self._requests and not _begins_as_request(self._held):
                raise Malformed("it does not begin as a request of HTTP")
            return False
        text = bytes(self._held[:end])
        if self._state is _State.HEAD:
            self._read_head(text)
        elif self._state is _State.CHUNK:
            self._read_chunk(text)
        else:
            self._read_trailer(text)
        return self._pass(end + len(mark), passed)

    def _pass(self, count: int, passed: bytearray) -> bool:
        passed += self._held[:count]
        del self._held[:count]
        self._looked = 0
        return True

    def _check_ends_of_lines(self, end: int) -> None:
        """Refuses a lone line feed: some servers end a line there, so they would see other headers than we do."""
        at = self._held.find(b"\n", self._looked, end)
        while at >= 0:
            if self._held[at - 1 : at] != b"\r":
                raise Malformed("a line of its request ends in a line feed alone")
            at = self._held.find(b"\n", at + 1, end)

    def _pass_body(self, passed: bytearray) -> bool:
        count = min(self._left, len(self._held))
        if self._state is _State.CHUNK_END and self._held[:2] != b"\r\n"[: len(self._held[:2])]:
            raise Malformed("a chunk of its request is longer than it says")
        if self._state is _State.CHUNK_END and len(self._held) < 2:
            return False
        self._left -= count
        if not self._left:
            if self._state is _State.CHUNK_END:
                self._state = _State.CHUNK
            elif self._chunked:
                self._state, self._left = _State.CHUNK_END, 2
            else:
                self._state = _State.HEAD
        return self._pass(count, passed)

    def _read_head(self, head: bytes) -> None:
        line, *rest = head.split(b"\r\n")
        found = _LINE.fullmatch(line)
        if found is None:
            raise Malformed("it does not begin as a request of HTTP")
        method, target = found[1], found[2]
        # A head may have thousands of lines: all are read, and only those that matter are searched.
        fields = [field for field in read_fields(rest) if field[0].lower() in _JUDGED]
        if method.upper() == b"CONNECT":
            raise Malformed("it asks for a tunnel")
        self._check(*read_host(values_of(fields, b"host")))
        if (absolute := _ABSOLUTE.match(target)) is not None:
            self._check(*read_host([absolute[1]]))
        elif not target.startswith(b"/") and target != b"*":
            raise Malformed("what its request is for cannot be read")
        self._frame(fields, is_newest=found[3] == b"1")
        self._requests += 1

    def _frame(self, fields: Fields, *, is_newest: bool) -> None:
        length = read_length(fields)
        self._chunked = length == CHUNKED
        if self._chunked:
            if not is_newest:
                raise Malformed("the length of its body is ambiguous")
            self._state = _State.CHUNK
        else:
            self._left = length or 0
            self._state = _State.BODY if self._left else _State.HEAD
        if upgrades := values_of(fields, b"upgrade"):
            if self._requests or self._state is not _State.HEAD or b"h2c" in b",".join(upgrades).lower():
                raise Malformed("it wants a protocol in which hosts cannot be seen")
            self._state = _State.UPGRADING

    def _read_chunk(self, line: bytes) -> None:
        self._left = read_chunk_size(line)
        self._state = _State.BODY if self._left else _State.TRAILER

    def _read_trailer(self, line: bytes) -> None:
        if not line:
            self._state = _State.HEAD
        else:
            read_fields([line])


def _begins_as_request(data: bytearray) -> bool:
    return re.match(rb"[A-Za-z-]{1,32}(?: |\Z)", data[:33]) is not None
