"""Output as events, for server-sent events and WebSockets alike, with a sign of life when nothing happens.

Text is decoded piece by piece, so a character cut in two by a read comes out whole; whoever wants the
bytes asks for base64.
"""

import asyncio
import base64
import codecs
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, TypeVar

import anyio

from warren.http.server.http_guard import StreamedAnswer
from warren.interfaces.sandbox import Process
from warren.model.errors import InvalidRequest, WarrenError
from warren.model.operations import Chunk, Stream
from warren.sessions.request_context import note

T = TypeVar("T")

EVENT_STREAM: Final = "text/event-stream"
ENCODINGS: Final = ("text", "base64")
_KEEPALIVE: Final = b": keep-alive\n\n"


class Encoder:
    """Chunks to what is shown of them.

    The bytes of a character that is not whole yet are shown with the rest of it, in the stream's next chunk; the
    offsets say so, and whoever goes on from `next_offset` gets it whole.
    """

    def __init__(self, encoding: str) -> None:
        if encoding not in ENCODINGS:
            raise InvalidRequest(f"there is no encoding {encoding!r}", remedy=f"there are: {', '.join(ENCODINGS)}")
        self._encoding = encoding
        self._decoders: dict[Stream, codecs.IncrementalDecoder] = {}
        self._ends: dict[Stream, int] = {}

    def show(self, chunk: Chunk, *, final: bool = False) -> dict[str, Any]:
        """`final`: no more comes, a broken character is shown as one."""
        begin, end = chunk.offset, chunk.offset + len(chunk.data)
        if self._encoding == "base64":
            data = base64.b64encode(chunk.data).decode()
        else:
            decoder = self._decoder(chunk.stream)
            if self._ends.get(chunk.stream) == begin:
                begin -= _held(decoder)
            self._ends[chunk.stream] = end
            data = decoder.decode(chunk.data, final)
            end -= _held(decoder)
        shown = {"stream": chunk.stream, "offset": begin, "next_offset": end, "encoding": self._encoding}
        return {**shown, "data": data}

    def _decoder(self, stream: Stream) -> codecs.IncrementalDecoder:
        if stream not in self._decoders:
            self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        return self._decoders[stream]


def _held(decoder: codecs.IncrementalDecoder) -> int:
    """Bytes of a character whose rest has not come."""
    return len(decoder.getstate()[0])


async def outputs(process: Process, offset: int, encoding: str, every_s: float) -> AsyncIterator[dict[str, Any] | None]:
    """What the process says, as it says it; None for a sign of life."""
    encoder = Encoder(encoding)
    async for chunk in with_signs_of_life(process.output(offset), every_s):
        yield None if chunk is None else encoder.show(chunk)


async def with_signs_of_life(source: AsyncIterator[T], every_s: float) -> AsyncIterator[T | None]:
    """The same items, and a None whenever nothing came for so long."""
    waiting: asyncio.Future[T] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(source))
            done, _ = await asyncio.wait([waiting], timeout=every_s)
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
            if waiting is not None:
                waiting.cancel()
                await asyncio.wait([waiting])
            if isinstance(source, AsyncGenerator):
                await source.aclose()


def event(kind: str, values: dict[str, Any], event_id: int | None = None) -> bytes:
    number = "" if event_id is None else f"id: {event_id}\n"
    return f"event: {kind}\n{number}data: {json.dumps(values)}\n\n".encode()


def failure(exc: WarrenError) -> dict[str, Any]:
    """An error as an event: the answer had begun already, so its status does not tell."""
    note(error=exc.code)
    values: dict[str, Any] = {"code": exc.code, "status": exc.http_status, "detail": exc.message}
    return {**values, "remedy": exc.remedy} if exc.remedy else values


async def stream_events(source: AsyncGenerator[bytes | None, None]) -> StreamedAnswer:
    """An answer of server-sent events.

    What goes wrong before the first event is an error like any other; later it becomes an `error` event.
    """
    first = await anext(source)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamedAnswer(_guarded(first, source), media_type=EVENT_STREAM, headers=headers)


async def _guarded(first: bytes | None, source: AsyncGenerator[bytes | None, None]) -> AsyncIterator[bytes]:
    try:
        yield first or _KEEPALIVE
        async for item in source:
            yield _KEEPALIVE if item is None else item
    except WarrenError as exc:
        yield event("error", failure(exc))
    finally:
        with anyio.CancelScope(shield=True):
            await source.aclose()
