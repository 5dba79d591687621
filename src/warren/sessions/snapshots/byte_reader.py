"""Reads exact amounts from a stream whose pieces have any size, and cuts streams into pieces of one size."""

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Final

PIECE: Final = 1024 * 1024


class ByteReader:
    def __init__(self, source: AsyncIterable[bytes]) -> None:
        self._source = aiter(source)
        self._rest = b""

    async def up_to(self, size: int) -> bytes:
        """Returns `size` bytes, or fewer at the end of the stream."""
        parts, missing = list[bytes](), size
        while missing:
            if not self._rest:
                try:
                    self._rest = bytes(await anext(self._source))
                except StopAsyncIteration:
                    break
            part, self._rest = self._rest[:missing], self._rest[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def put_back(self, data: bytes) -> None:
        self._rest = data + self._rest

    async def rest(self) -> AsyncGenerator[bytes, None]:
        while part := await self.up_to(PIECE):
            yield part


async def pieces(source: AsyncIterable[bytes]) -> AsyncGenerator[tuple[bytes, bool], None]:
    """Yields the stream in pieces of PIECE bytes, each with whether it is the last one, which may be empty."""
    reader = ByteReader(source)
    piece = await reader.up_to(PIECE)
    while len(piece) == PIECE and (following := await reader.up_to(PIECE)):
        yield piece, False
        piece = following
    yield piece, True
