"""Volumes of this host that travel to other machines, in the stream of saved disks (disk_stream.py).

A volume is packed while its lock is held, and unpacked under a hidden name: it has its own when all of it is on disk.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import replace

from warren.kernel.shielding import run_shielded
from warren.model.spec import MIB
from warren.sandboxes.disks.disk_stream import DiskDescription, DiskLayout, Unpacking, content_hash, packed
from warren.sandboxes.host.volumes import HostVolumes, keep, space_errors


class PackedVolumes(HostVolumes):
    async def pack(self, volume_id: str) -> AsyncGenerator[bytes, None]:
        image = await self._locked(volume_id)
        try:
            size = os.fstat(image).st_size
            plain = DiskDescription(size // MIB, size, DiskLayout())
            sha256 = await run_shielded(asyncio.to_thread(content_hash, image, plain))
            pieces = packed(image, replace(plain, sha256=sha256))
            while (piece := await run_shielded(asyncio.to_thread(next, pieces, None))) is not None:
                if piece:
                    yield piece
        finally:
            os.close(image)

    async def unpack(self, volume_id: str, data: AsyncIterable[bytes]) -> None:
        path = self._path(volume_id)
        with self._new(path) as temporary:
            await asyncio.to_thread(self._begin, temporary, 0)
            image = os.open(temporary, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                unpacking = Unpacking(image, self.check_room)
                async for piece in data:
                    await run_shielded(asyncio.to_thread(_feed, unpacking, piece))
                unpacking.finish()
            finally:
                os.close(image)
            await run_shielded(asyncio.to_thread(keep, temporary, path))


def _feed(unpacking: Unpacking, piece: bytes) -> None:
    with space_errors():
        unpacking.feed(piece)
