"""Server-sent events, with a comment as a keep-alive when nothing happens."""

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio

from warren.http.server.http_guard import StreamedAnswer
from warren.model.errors import WarrenError
from warren.sessions.long_values import LongObject, json_pieces
from warren.sessions.output_events import Events, OutputEvent
from warren.sessions.request_context import note

EVENT_STREAM: Final = "text/event-stream"
_KEEPALIVE: Final = b": keep-alive\n\n"


async def stream_events(source: Events) -> StreamedAnswer:
    """Errors before the first event are answered like any other; later ones become an `error` event."""
    first = await anext(source)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamedAnswer(_encode(first, source), media_type=EVENT_STREAM, headers=headers)


async def _encode(first: OutputEvent | None, source: Events) -> AsyncIterator[bytes]:
    try:
        yield _encode_event(first)
        async for event in source:
            if event is not None and isinstance(event.values, LongObject):
                yield f"event: {event.kind}\ndata: ".encode()
                async for piece in json_pieces(event.values):
                    yield piece
                yield b"\n"
            else:
                yield _encode_event(event)
    except WarrenError as exc:
        yield _encode_event(OutputEvent("error", error_values(exc)))
    finally:
        with anyio.CancelScope(shield=True):
            await source.aclose()


def _encode_event(event: OutputEvent | None) -> bytes:
    if event is None:
        return _KEEPALIVE
    number = "" if event.id is None else f"id: {event.id}\n"
    return f"event: {event.kind}\n{number}data: {json.dumps(event.values)}\n\n".encode()


def error_values(exc: WarrenError) -> dict[str, Any]:
    """Returns an error as an event, for an answer whose status was sent before."""
    note(error=exc.code)
    values: dict[str, Any] = {"code": exc.code, "status": exc.http_status, "detail": exc.message}
    return {**values, "remedy": exc.remedy} if exc.remedy else values
