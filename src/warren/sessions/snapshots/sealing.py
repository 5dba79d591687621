"""Encrypts the contents of snapshots for the store that keeps them.

A content is a mark, a salt, and chunks: a word with the length, whose highest bit says that it is the last one, and
what AES-256-GCM makes of at most 1 MiB. Each content has a key of its own, derived from the installation's and the
salt. The number of a chunk is its nonce; whose content it is, and whether the chunk is the last one, is authenticated
with it. So a content that was cut, put together anew, or exchanged for another is not read.
"""

import asyncio
import os
import struct
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from typing import Final

from warren.kernel.signing import Signer
from warren.model.errors import Unavailable
from warren.sessions.snapshots.byte_reader import PIECE, ByteReader, pieces

_MARK: Final = b"warren-sealed-1\n"
_SALT: Final = 16
_TAG: Final = 16
_LAST: Final = 1 << 31
_WORD: Final = struct.Struct(">I")


class Sealing:
    """`secrets` are keys of the installation: the first one encrypts, all decrypt. `purpose` names the content."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._keys = Signer(secrets, b"snapshots at rest", 32)

    def __repr__(self) -> str:
        return "<Sealing>"

    async def seal(self, source: AsyncIterable[bytes], purpose: str) -> AsyncGenerator[bytes, None]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        salt = os.urandom(_SALT)
        cipher = AESGCM(self._keys.macs(salt)[0])
        yield _MARK + salt
        number = 0
        async for piece, is_last in pieces(source):
            word = _WORD.pack(len(piece) + _TAG | (_LAST if is_last else 0))
            sealed = await asyncio.to_thread(cipher.encrypt, _nonce(number), piece, word + purpose.encode())
            yield word + sealed
            number += 1

    async def unseal(self, source: AsyncIterable[bytes], purpose: str) -> AsyncGenerator[bytes, None]:
        """Raises Unavailable for what is not whole, not of this purpose, or sealed with an unknown key."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        reader = ByteReader(source)
        head = await reader.up_to(len(_MARK) + _SALT)
        if len(head) < len(_MARK) + _SALT or not head.startswith(_MARK):
            raise _damaged()
        ciphers = [AESGCM(key) for key in self._keys.macs(head[len(_MARK) :])]
        number, is_last = 0, False
        while not is_last:
            word = await reader.up_to(_WORD.size)
            (value,) = _WORD.unpack(word) if len(word) == _WORD.size else (0,)
            size, is_last = value & ~_LAST, bool(value & _LAST)
            sealed = await reader.up_to(size) if _TAG <= size <= PIECE + _TAG else b""
            for cipher in ciphers:
                try:
                    piece = await asyncio.to_thread(cipher.decrypt, _nonce(number), sealed, word + purpose.encode())
                except (InvalidTag, ValueError):
                    continue
                ciphers = [cipher]
                break
            else:
                raise _damaged()
            if piece:
                yield piece
            number += 1
        if await reader.up_to(1):
            raise _damaged()


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def _damaged() -> Unavailable:
    return Unavailable(
        "the content of the snapshot is damaged, or was encrypted with another key",
        remedy="the operator gives the server the key of then (WARREN_SECRETS_KEY); else delete the snapshot",
    )
