"""Scrubs what a host sends over a WebSocket: a text is found in a message, also where it spans several frames.

A frame that ends its message is passed on with its length, as it comes. The frames before it are cut anew, because the
end of one may begin a text that the next one completes. RFC 6455 lets intermediaries do so where no extension is
in use; the broker asks for none.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Final

from warren.sandboxes.egress.broker_http import Scrubber, read_body
from warren.sandboxes.egress.broker_streams import Reader
from warren.sandboxes.egress.http_syntax import Malformed

_FINAL, _RESERVED, _OPCODE, _CONTROL, _MASKED = 0x80, 0x70, 0x0F, 0x08, 0x80
_MAX_CONTROL: Final = 125
_MAX_LENGTH: Final = (1 << 62) - 1
_FRAMES_AT_ONCE: Final = 64


async def scrub_frames(reader: Reader, scrubber: Scrubber) -> AsyncIterator[bytes]:
    """Yields what a host sends, scrubbed, until it ends. Raises Malformed for what is no frame of a server, EOFError if
    one breaks off."""
    opcode = 0  # of the next frame: 0 after the first of its message
    for number in itertools.count(1):
        if not number % _FRAMES_AT_ONCE:
            await asyncio.sleep(0)  # others get their turn, however many small frames there are
        if reader.is_empty and not await reader.fill():
            return
        first, second = await reader.exactly(2)
        if first & _RESERVED or second & _MASKED:
            raise Malformed("a frame of the WebSocket cannot be checked")
        length = await _read_length(reader, second)
        if length > _MAX_LENGTH:
            raise Malformed("a frame of the WebSocket is too long")
        if first & _CONTROL:
            if length > _MAX_CONTROL or not first & _FINAL:
                raise Malformed("a control frame of the WebSocket is too long, or is not all of it")
            yield _head(first, length) + scrubber.clean(await reader.exactly(length))
            continue
        opcode = first & _OPCODE or opcode
        if not first & _FINAL:
            async for clean in scrubber.feed_all(read_body(reader, length)):
                if clean:
                    yield _head(opcode, len(clean)) + clean
                    opcode = 0
            continue
        yield _head(_FINAL | opcode, scrubber.held + length)
        async for piece in scrubber.pieces(read_body(reader, length)):
            yield piece
        opcode = 0


async def _read_length(reader: Reader, second: int) -> int:
    short = second & ~_MASKED
    size = {126: 2, 127: 8}.get(short)
    return short if size is None else int.from_bytes(await reader.exactly(size), "big")


def _head(first: int, length: int) -> bytes:
    if length <= _MAX_CONTROL:
        return bytes((first, length))
    if length < 1 << 16:
        return bytes((first, 126)) + length.to_bytes(2, "big")
    return bytes((first, 127)) + length.to_bytes(8, "big")
