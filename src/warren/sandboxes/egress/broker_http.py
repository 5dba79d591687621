"""HTTP/1.1 for the broker. It parses strictly, because two readers must not see different requests.

Anything that is not exactly a request raises Malformed and is never repaired: bare line ends, folded lines, spaces
before colons, two lengths, a length beside chunks, other transfer codings, another version (http_syntax.py).
"""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_plus

from warren.sandboxes.egress.broker_streams import CHUNK, BrokerStream, Reader
from warren.sandboxes.egress.http_syntax import (
    CHUNKED,
    MAX_HEAD,
    Fields,
    Malformed,
    read_chunk_size,
    read_fields,
    read_length,
    values_of,
)

MAX_HEADERS: Final = 200
UNTIL_END: Final = -2
_MAX_CHUNK_LINE: Final = 1024
_COMPARED: Final = 64
_SCRUBBED_AT_ONCE: Final = 16 << 10
# CPython looks for short texts in less than 30,000 bytes in a way that takes the product of both lengths if they are
# chosen for it. So what is not short is made as long.
_SHORT, _LONG = 512, 30_000
_CHUNKS_AT_ONCE: Final = 64
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([\x21\x22\x24-\x7e]{1,32768}) HTTP/1\.1")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\x20\x09\x21-\x7e\x80-\xff]*))?")
# Headers of one connection, which are not passed on.
_OF_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"}
    | {b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"content-length"}
)


@dataclass(slots=True)
class Head:
    """The headers of a request or response. `length` may be CHUNKED, or UNTIL_END if the connection's end is the
    end."""

    headers: Fields
    length: int = 0
    keeps_alive: bool = True

    def values(self, name: bytes) -> list[bytes]:
        """Returns the values of a header. `name` is in lower case."""
        return values_of(self.headers, name)

    def tokens(self, name: bytes) -> set[bytes]:
        return {part.strip().lower() for value in self.values(name) for part in value.split(b",") if part.strip()}

    @property
    def is_websocket(self) -> bool:
        return self.tokens(b"upgrade") == {b"websocket"} and b"upgrade" in self.tokens(b"connection")

    def end_to_end(self) -> Fields:
        """Returns the headers that are passed on."""
        dropped = _OF_CONNECTION | self.tokens(b"connection")
        return [(name, value) for name, value in self.headers if name.lower() not in dropped]


@dataclass(slots=True)
class RequestHead(Head):
    method: bytes = b""
    target: bytes = b""


@dataclass(slots=True)
class AnswerHead(Head):
    status: int = 0
    reason: bytes = b""


async def read_request(reader: Reader) -> RequestHead | None:
    """Returns the head of the next request; None if the client has ended. Raises Malformed, EOFError."""
    lines = await _read_lines(reader)
    if lines is None:
        return None
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        raise Malformed("the first line is not that of an HTTP/1.1 request")
    fields = read_fields(lines[1:])
    head = RequestHead(fields, read_length(fields) or 0, method=match[1], target=match[2])
    head.keeps_alive = b"close" not in head.tokens(b"connection")
    return head


async def read_answer(reader: Reader, method: bytes) -> AnswerHead | None:
    """Returns the head of the response; None if the server has closed the connection. Raises Malformed, EOFError."""
    lines = await _read_lines(reader)
    if lines is None:
        return None
    match = _STATUS_LINE.fullmatch(lines[0])
    if match is None:
        raise Malformed("the first line is not that of an HTTP/1.1 answer")
    fields = read_fields(lines[1:])
    length = read_length(fields)
    head = AnswerHead(fields, UNTIL_END if length is None else length, status=int(match[2]), reason=match[3] or b"")
    head.keeps_alive = match[1] == b"1" and b"close" not in head.tokens(b"connection")
    if method == b"HEAD" or head.status < 200 or head.status in (204, 304):
        head.length = 0
    if head.length == UNTIL_END:
        head.keeps_alive = False
    return head


async def _read_lines(reader: Reader) -> list[bytes] | None:
    try:
        raw = await reader.until(b"\r\n\r\n", MAX_HEAD)
    except ValueError:
        raise Malformed(f"the head is longer than {MAX_HEAD} bytes") from None
    if raw is None:
        return None
    lines = raw.split(b"\r\n")
    if len(lines) > MAX_HEADERS + 1:
        raise Malformed(f"there are more than {MAX_HEADERS} headers")
    return lines


async def read_body(reader: Reader, length: int) -> AsyncIterator[bytes]:
    """Yields the bytes of a body, without chunk framing. Raises Malformed, or EOFError if it breaks off."""
    if length == UNTIL_END:
        while data := await reader.some():
            yield data
    elif length == CHUNKED:
        async for data in _read_chunks(reader):
            yield data
    else:
        async for data in _read_exactly(reader, length):
            yield data


async def _read_exactly(reader: Reader, length: int) -> AsyncIterator[bytes]:
    while length:
        data = await reader.some(min(length, CHUNK))
        if not data:
            raise EOFError
        length -= len(data)
        yield data


async def _read_chunks(reader: Reader) -> AsyncIterator[bytes]:
    for number in itertools.count(1):
        if not number % _CHUNKS_AT_ONCE:
            await asyncio.sleep(0)  # others get their turn, however many small chunks there are
        length = read_chunk_size(await _read_line(reader))
        if not length:
            break
        async for data in _read_exactly(reader, length):
            yield data
        if await _read_line(reader):
            raise Malformed("a chunk is longer than it says")
    total = 0
    while trailer := await _read_line(reader):  # trailers are checked and dropped
        read_fields([trailer])
        total += len(trailer)
        if total > MAX_HEAD:
            raise Malformed("the trailers are too long")


async def _read_line(reader: Reader) -> bytes:
    try:
        line = await reader.until(b"\r\n", _MAX_CHUNK_LINE)
    except ValueError:
        raise Malformed("a line among the chunks is too long") from None
    if line is None:
        raise EOFError
    return line


async def write_body(stream: BrokerStream, pieces: AsyncIterator[bytes], length: int) -> None:
    async for data in pieces:
        if data:
            await stream.write(b"%x\r\n%b\r\n" % (len(data), data) if length == CHUNKED else data)
    if length == CHUNKED:
        await stream.write(b"0\r\n\r\n")


def format_head(first: bytes, headers: Fields) -> bytes:
    return b"\r\n".join([first, *(b"%b: %b" % each for each in headers), b"", b""])


def framing(length: int) -> Fields:
    if length == CHUNKED:
        return [(b"Transfer-Encoding", b"chunked")]
    return [] if length < 0 else [(b"Content-Length", b"%d" % length)]


def with_parameter(target: bytes, name: str, value: str) -> bytes:
    """Returns the request's target with this query parameter, and with no other of that name."""
    path, _, query = target.partition(b"?")
    others = [each for each in query.split(b"&") if each and unquote_plus(_name(each)) != name]
    return path + b"?" + b"&".join([*others, f"{name}={quote(value, safe='')}".encode()])


def _name(parameter: bytes) -> str:
    return parameter.partition(b"=")[0].decode("latin-1")


Work = Callable[[float], Awaitable[None]]
"""Called with the processor time that something took, in seconds. Returns when the sandbox has time left."""


async def no_work(seconds: float) -> None:
    pass


_INVERTED: Final = bytes(range(255, -1, -1))  # for each byte the one that differs in all bits


class Scrubber:
    """Replaces texts by asterisks of the same length, also where they span several pieces, and where they overlap each
    other. Holds back only the end of a piece that seems to begin such a text. `work` is told how long that took: texts
    can be chosen so that it is long."""

    def __init__(self, traces: Iterable[bytes], work: Work = no_work) -> None:
        self._traces = tuple(traces)
        self._work = work
        self._held = b""
        self._held_clean = b""

    @property
    def held(self) -> int:
        """How many bytes are held back."""
        return len(self._held)

    def feed(self, data: bytes) -> bytes:
        # Looked for in what came, not in what is left of it: one text may be a part of another, which is not all there.
        came = self._held + data
        clean = self._blot(came, self._held_clean + data)
        kept = len(came) - max((_overlap(came, trace) for trace in self._traces), default=0)
        self._held, self._held_clean = came[kept:], clean[kept:]
        return clean[:kept]

    def end(self) -> bytes:
        held, self._held, self._held_clean = self._held_clean, b"", b""
        return held

    def clean(self, data: bytes) -> bytes:
        return self._blot(data, data)

    def _blot(self, came: bytes, clean: bytes) -> bytes:
        """Returns `clean` with asterisks wherever one of the texts is in `came`. Numbers hold all bytes at once: a loop
        over the places would take a tenth of a second where many texts occur at many of them."""
        size = len(came)
        if size > _SHORT:
            came, clean = came.ljust(_LONG, b"\0"), clean.ljust(_LONG, b"\0")
        whole, blots = int.from_bytes(came), 0
        for trace in self._traces:
            if trace in came:
                blots |= int.from_bytes(came.replace(trace, trace.translate(_INVERTED))) ^ whole
        if blots:
            bare, stars = int.from_bytes(clean), int.from_bytes(b"*" * len(clean))
            clean = (bare ^ ((bare ^ stars) & blots)).to_bytes(len(clean))
        return clean[:size]

    async def feed_all(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Feeds what comes, little at once, and lets others have their turn in between."""
        async for data in source:
            for start in range(0, len(data), _SCRUBBED_AT_ONCE):
                begun = time.thread_time()
                clean = self.feed(data[start : start + _SCRUBBED_AT_ONCE])
                await self._work(time.thread_time() - begun)
                await asyncio.sleep(0)
                yield clean

    async def pieces(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for data in self.feed_all(source):
            yield data
        yield self.end()

    async def clean_all(self, data: bytes) -> bytes:
        """Does what `clean` does, little at once."""

        async def once() -> AsyncIterator[bytes]:
            yield data

        return b"".join([piece async for piece in self.pieces(once())])


def _overlap(data: bytes, trace: bytes) -> int:
    """Returns how many of the last bytes of `data` begin `trace`, without being all of it. Of a long trace only the
    beginning is compared: a trace that resembles itself would take its length squared."""
    start = max(0, len(data) - len(trace) + 1)
    if (at := data.find(trace[:_COMPARED], start)) >= 0:
        return len(data) - at
    at = data.find(trace[:1], max(start, len(data) - _COMPARED + 1))
    while at >= 0:
        if trace.startswith(data[at:]):
            return len(data) - at
        at = data.find(trace[:1], at + 1)
    return 0
