"""Shows the output of a process as events, with keep-alives when nothing happens.

Text is decoded incrementally, so a character that two reads have cut apart comes out whole. Callers who want the bytes
ask for base64.
"""

import asyncio
import base64
import codecs
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from warren.interfaces.sandbox import Process
from warren.model.errors import InvalidRequest
from warren.model.operations import Chunk, ExecResult, OutputStream
from warren.sessions.schemas import end_view

T = TypeVar("T")

ENCODINGS: Final = ("text", "base64")
_LONGEST_LINE: Final = 64 * 1024


class OutputEvent(NamedTuple):
    """`id` lets a caller whose stream broke go on after this event."""

    kind: str
    values: dict[str, Any]
    id: int | None = None


Events = AsyncGenerator[OutputEvent | None, None]
"""Events as they happen; None is a keep-alive."""


class Encoder:
    """Turns chunks of output into JSON values.

    The bytes of an incomplete character wait for the stream's next chunk. The offsets take that into account: a caller
    who goes on from `next_offset` gets the whole character.
    """

    def __init__(self, encoding: str) -> None:
        if encoding not in ENCODINGS:
            raise InvalidRequest(f"there is no encoding {encoding!r}", remedy=f"there are: {', '.join(ENCODINGS)}")
        self._encoding = encoding
        self._decoders: dict[OutputStream, codecs.IncrementalDecoder] = {}
        self._ends: dict[OutputStream, int] = {}

    def show(self, chunk: Chunk, *, final: bool = False) -> dict[str, Any]:
        """`final`: nothing follows, so an incomplete character is shown as a broken one."""
        begin, end = chunk.offset, chunk.offset + len(chunk.data)
        if self._encoding == "base64":
            data = base64.b64encode(chunk.data).decode()
        else:
            decoder = self._decoder(chunk.stream)
            if self._ends.get(chunk.stream) == begin:
                begin -= _held_bytes(decoder)
            self._ends[chunk.stream] = end
            data = decoder.decode(chunk.data, final)
            end -= _held_bytes(decoder)
        shown = {"stream": chunk.stream, "offset": begin, "next_offset": end, "encoding": self._encoding}
        return {**shown, "data": data}

    def _decoder(self, stream: OutputStream) -> codecs.IncrementalDecoder:
        if stream not in self._decoders:
            self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        return self._decoders[stream]


def _held_bytes(decoder: codecs.IncrementalDecoder) -> int:
    """The number of bytes of an incomplete character."""
    return len(decoder.getstate()[0])


async def process_events(
    process: Process,
    offset: int,
    encoding: str,
    keepalive_s: float,
    ended: Callable[[ExecResult], None] = lambda result: None,
) -> Events:
    """Yields `started`, an `output` for each chunk, and `result`; calls `ended` before it yields the result."""
    encoder = Encoder(encoding)
    yield OutputEvent("started", {"process_id": process.id})
    async for chunk in with_keepalives(process.output(offset), keepalive_s):
        if chunk is None:
            yield None
        else:
            shown = encoder.show(chunk)
            yield OutputEvent("output", shown, shown["next_offset"])
    result = await process.ended()
    ended(result)
    yield OutputEvent("result", end_view(result))


class Lines:
    """Joins pieces of text that are parts of one line: some programs, R for one, write a line in pieces.

    `add` holds back text that does not end a line, for `wait_s` from its first piece on, and `take` returns it. With 0
    nothing is held back.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._held: OutputEvent | None = None
        self._until = 0.0

    def left_s(self, otherwise: float) -> float:
        """Returns how long the held text may still wait; `otherwise` if there is none."""
        return otherwise if self._held is None else max(0.0, self._until - time.monotonic())

    def take(self) -> OutputEvent | None:
        held, self._held = self._held, None
        return held

    def add(self, event: OutputEvent) -> Iterator[OutputEvent]:
        held, now = self.take(), time.monotonic()
        if held is not None and held.kind == event.kind:
            event = OutputEvent(event.kind, {"text": held.values["text"] + event.values["text"]})
        else:
            self._until = now + self._wait_s
            if held is not None:
                yield held
        text = event.values["text"] if event.kind in ("stdout", "stderr") else "\n"
        if text.endswith(("\n", "\r")) or len(text) > _LONGEST_LINE or now >= self._until:
            yield event
        else:
            self._held = event


async def with_keepalives(source: AsyncIterator[T], every_s: float | Callable[[], float]) -> AsyncIterator[T | None]:
    """Yields the same items, and None whenever nothing came for `every_s`; a function is asked before each wait."""
    waiting: asyncio.Future[T] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(source))
            done, _ = await asyncio.wait([waiting], timeout=every_s() if callable(every_s) else every_s)
            if not done:
                yield None
                continue
            try:
                item = waiting.result()
            except StopAsyncIteration:
                return
            finally:
                waiting = None
            yield item
    finally:
        with anyio.CancelScope(shield=True):
            # A generator cannot be closed while a task still runs in it, so that task ends first.
            if waiting is not None:
                waiting.cancel()
                await asyncio.wait([waiting])
            await close_source(source)


async def close_source(source: object) -> None:
    if isinstance(source, AsyncGenerator):
        with anyio.CancelScope(shield=True):
            await source.aclose()
