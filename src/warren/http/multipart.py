"""Files in a multipart/form-data body, read as they come in.

`read_parts` reads one piece of the body at a time, when the consumer asks for it. So nothing is kept in memory or on
disk, and a slow consumer slows the sender down. A part ends normally only after its closing boundary: an upload that is
cut off raises in the middle of `chunks` and never looks complete.

The names are as the client sent them. The caller decides whether `../../etc/passwd` may be a file name.
"""

import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from enum import Enum
from typing import Final
from urllib.parse import unquote_to_bytes

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError

from warren.kernel.pacing import Pace
from warren.model.errors import InvalidRequest, TooLarge

MAX_PARTS = 100
MAX_PART_HEADERS = 16 * 1024
MAX_FIELD = 64 * 1024
_MAX_HEADER_COUNT = 32
_STEP = 4 * 1024  # bytes that are parsed at once; for some bytes the parser takes a microsecond each
_ENOUGH = 64 * 1024
_PARAMETER = re.compile(r';\s*([^\s=;"]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;]*)', re.DOTALL)


class _Mark(Enum):
    PART = "a part with its headers"
    PART_END = "the end of a part"
    END = "the end of the form"


_Event = bytearray | _Mark


class FormPart:
    """One field or file. Its bytes can be read once, and only until the next part is asked for."""

    def __init__(self, form: "_Form", headers: dict[str, str]) -> None:
        self._form = form
        self._over = False
        self.headers: Final = headers
        self.name, self.filename = _read_names(headers)

    def __repr__(self) -> str:
        return f"<Part {self.name!r}, file name {self.filename!r}>"

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while not self._over:
            event = await self._form.next(f"part {self.name!r}")
            if isinstance(event, bytearray):
                yield bytes(event)
            else:
                self._over = True

    async def text(self, limit: int = MAX_FIELD) -> str:
        taken = bytearray()
        async for chunk in self.chunks():
            taken += chunk
            if len(taken) > limit:
                raise TooLarge(f"the form field {self.name!r} is larger than {limit} bytes")
        return _decode_utf8(bytes(taken), f"the form field {self.name!r}")


async def read_parts(
    stream: AsyncIterable[bytes], content_type: str, max_parts: int = MAX_PARTS
) -> AsyncIterator[FormPart]:
    """Yields the parts in their order; skips what the caller has not read of a part."""
    form = _Form(stream, _read_boundary(content_type), max_parts)
    while await form.next("the form") is not _Mark.END:
        part = FormPart(form, form.headers())
        yield part
        async for _ in part.chunks():
            pass


class _Form:
    """Turns the callbacks of the parser into a queue, and fills the queue from the stream when it is empty."""

    def __init__(self, stream: AsyncIterable[bytes], boundary: bytes, max_parts: int) -> None:
        self._stream = aiter(stream)
        self._max_parts = max_parts
        self._data, self._at = b"", 0
        self._pace = Pace()
        self._events: deque[_Event] = deque()
        self._headers: deque[dict[str, str]] = deque()
        self._parts = 0
        self._begin_part()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._part_data,
                    "on_part_end": lambda: self._events.append(_Mark.PART_END),
                    "on_end": lambda: self._events.append(_Mark.END),
                },
                max_header_count=_MAX_HEADER_COUNT,
                max_header_size=MAX_PART_HEADERS,
            )
        except FormParserError as exc:
            raise InvalidRequest(f"the boundary of the multipart body cannot be used: {exc}") from exc

    async def next(self, reading: str) -> _Event:
        while not self._events or (self._at < len(self._data) and self._is_growing()):
            if self._at >= len(self._data):
                data = await anext(self._stream, None)
                if data is None:
                    raise InvalidRequest(f"the upload ended too early: {reading} is not complete")
                self._data, self._at = data, 0
            self._feed(self._data[self._at : self._at + _STEP])
            self._at += _STEP
            await self._pace.give_way()
        return self._events.popleft()

    def _is_growing(self) -> bool:
        """Whether the next event is a short piece of a part that may still grow: tiny pieces cost the most."""
        first = self._events[0]
        return len(self._events) == 1 and isinstance(first, bytearray) and len(first) < _ENOUGH

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, bytearray):
            last += data[start:end]
        else:
            self._events.append(bytearray(data[start:end]))

    def headers(self) -> dict[str, str]:
        return self._headers.popleft()

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as exc:
            raise InvalidRequest(
                f"the multipart body is broken: {exc}", remedy="let the HTTP library make the form and its boundary"
            ) from exc

    def _begin_part(self) -> None:
        self._current: dict[str, str] = {}
        self._name, self._value, self._head_size = b"", b"", 0

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header_bytes(end - start)
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header_bytes(end - start)
        self._value += data[start:end]

    def _count_header_bytes(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_PART_HEADERS:
            raise TooLarge(f"the headers of a part of the form are larger than {MAX_PART_HEADERS} bytes")

    def _header_end(self) -> None:
        name = self._name.decode("ascii", "replace").lower()
        if name in self._current:
            raise InvalidRequest(f"a part of the form has two {name} headers")
        self._current[name] = _decode_utf8(self._value, f"the {name} header of a part of the form").strip()
        self._name, self._value = b"", b""

    def _headers_finished(self) -> None:
        self._parts += 1
        if self._parts > self._max_parts:
            raise TooLarge(f"the form has more than {self._max_parts} parts")
        self._headers.append(self._current)
        self._events.append(_Mark.PART)


def _read_boundary(content_type: str) -> bytes:
    kind, _, _ = content_type.partition(";")
    if kind.strip().lower() != "multipart/form-data":
        raise InvalidRequest(
            f"the body is {kind.strip()[:80] or 'of no stated type'!r}, a form with files was expected",
            remedy="send it as multipart/form-data",
        )
    boundary = dict(_read_parameters(content_type)).get("boundary", "")
    if not boundary or not boundary.isascii():
        raise InvalidRequest(
            "the Content-Type says multipart/form-data but names no boundary",
            remedy="let the HTTP library make the Content-Type header",
        )
    return boundary.encode("ascii")


def _read_names(headers: dict[str, str]) -> tuple[str, str | None]:
    disposition = headers.get("content-disposition", "")
    given = dict(_read_parameters(disposition))
    if disposition.partition(";")[0].strip().lower() != "form-data" or "name" not in given:
        raise InvalidRequest("a part of the form has no Content-Disposition: form-data with a name")
    filename = given.get("filename")
    if "filename*" in given:
        filename = _decode_extended(given["filename*"])
    return given["name"], filename


def _read_parameters(header: str) -> Iterator[tuple[str, str]]:
    for name, value in _PARAMETER.findall(header):
        value = value.strip()
        if value.startswith('"') and value.endswith('"') and len(value) > 1:
            value = re.sub(r'\\(["\\])', r"\1", value[1:-1])
        yield name.lower(), value


def _decode_extended(value: str) -> str:
    """Decodes `UTF-8''na%C3%AFve.txt`, as RFC 5987 writes names that are not ASCII."""
    charset, _, rest = value.partition("'")
    _, quote, encoded = rest.partition("'")
    if not quote or charset.lower() not in ("utf-8", "iso-8859-1"):
        raise InvalidRequest(f"the file name {value[:80]!r} is in an unknown notation", remedy="use filename*=UTF-8''…")
    raw = unquote_to_bytes(encoded)
    return raw.decode("latin-1") if charset.lower() == "iso-8859-1" else _decode_utf8(raw, "the file name of a part")


def _decode_utf8(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{what} is not valid UTF-8") from exc
