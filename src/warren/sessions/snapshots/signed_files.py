"""Snapshots as files that callers take away and bring back.

A file is a mark, a header in JSON, and chunks of the packed disk, each with its signature. The signature of the header
also covers the tenant, that of a chunk the signature before it and whether it is the last one. So no byte is used that
this installation has not written, at this place of this tenant's file; nothing else may come near the host's kernel.
"""

import asyncio
import hmac
import json
import struct
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Any, Final

from warren.kernel.signing import Signer
from warren.model.errors import InvalidRequest
from warren.sessions.snapshots.byte_reader import PIECE, ByteReader, pieces

MARK: Final = b"warren-snapshot-1\n"
PURPOSE: Final = b"snapshot files"
MAC: Final = 32
_MAX_HEADER: Final = 512 * 1024
_LAST: Final = 1 << 31
_WORD: Final = struct.Struct(">I")


async def write_file(
    signer: Signer, tenant: str, header: Mapping[str, Any], source: AsyncIterable[bytes]
) -> AsyncGenerator[bytes, None]:
    text = json.dumps(header).encode()
    mac = signer.macs(_first(tenant, text))[0]
    yield MARK + _WORD.pack(len(text)) + text + mac
    async for piece, is_last in pieces(source):
        word = _WORD.pack(len(piece) | (_LAST if is_last else 0))
        mac = (await asyncio.to_thread(signer.macs, mac + word + piece))[0]
        yield word + piece + mac


class SignedFile:
    """A file that is being read, after its mark. `read` checks the header; then `content` yields what is right, and
    raises InvalidRequest at the first byte that is not."""

    def __init__(self, signer: Signer, reader: ByteReader) -> None:
        self._signer, self._reader = signer, reader
        self._key, self._mac = 0, b""

    async def read(self, tenant: str) -> dict[str, Any]:
        (size,) = _WORD.unpack(await self._exactly(_WORD.size))
        if size > _MAX_HEADER:
            raise _foreign()
        text, given = await self._exactly(size), await self._exactly(MAC)
        right = self._signer.macs(_first(tenant, text))
        if not self._signer.accepts(given, _first(tenant, text)):
            raise _foreign()
        self._key, self._mac = right.index(given), given
        header: dict[str, Any] = json.loads(text)
        return header

    async def content(self) -> AsyncGenerator[bytes, None]:
        is_last = False
        while not is_last:
            word = await self._exactly(_WORD.size)
            (value,) = _WORD.unpack(word)
            size, is_last = value & ~_LAST, bool(value & _LAST)
            if size > PIECE:
                raise _foreign()
            piece, given = await self._exactly(size), await self._exactly(MAC)
            self._mac = (await asyncio.to_thread(self._signer.macs, self._mac + word + piece))[self._key]
            if not hmac.compare_digest(self._mac, given):
                raise _foreign()
            if piece:
                yield piece
        if await self._reader.up_to(1):
            raise _foreign()

    async def _exactly(self, size: int) -> bytes:
        data = await self._reader.up_to(size)
        if len(data) < size:
            raise InvalidRequest("the file of the snapshot is not whole", remedy="download and upload it again")
        return data


def _first(tenant: str, header: bytes) -> bytes:
    return tenant.encode() + b"\0" + header


def _foreign() -> InvalidRequest:
    return InvalidRequest(
        "the file was not written by this installation for this tenant, or was changed since",
        remedy="upload its files as a tar: they are unpacked inside a sandbox",
    )
