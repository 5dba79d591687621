"""The archives that clients upload for COPY steps: a file for each, below the state directory, for an hour.

    STATE_DIR/templates/uploads/TENANT/HASH

An upload that breaks off leaves nothing. A tenant has a bound on how much it may have there.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from warren.http.e2b.errors import E2bError
from warren.kernel.fair_share import FairShare
from warren.kernel.shielding import run_shielded
from warren.model.spec import MIB
from warren.model.tenant_images import tenant_mark

KEPT_S: Final = 3600.0
MAX_BYTES: Final = 512 * MIB
_MAX_OF_TENANT: Final = 2048 * MIB
_MAX_FILES: Final = 1000
_MAX_AT_ONCE: Final = 4
_PIECE: Final = MIB
_PART: Final = ".part-"


class Uploads:
    """`check_room` raises if the disk is nearly full."""

    def __init__(self, folder: Path, check_room: Callable[[], None], max_bytes: int = MAX_BYTES) -> None:
        self._folder, self._check_room, self._max_bytes = folder, check_room, max_bytes
        self._running = FairShare(each=_MAX_AT_ONCE)

    async def has(self, tenant: str, files_hash: str) -> bool:
        """Whether the archive is there; then it stays for another hour."""
        return await asyncio.to_thread(_touch, self._path(tenant, files_hash))

    async def put(self, tenant: str, files_hash: str, content: AsyncIterator[bytes], length: int) -> None:
        """`length` is what the client says, 0 if it says nothing."""
        if length > self._max_bytes:
            raise self._too_large()
        if not self._running.try_take(tenant):
            raise E2bError(429, f"{_MAX_AT_ONCE} uploads at a time are the most; wait for one to end")
        part = self._folder / tenant_mark(tenant) / f"{_PART}{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(self._make_room, part.parent, length)
            await self._write(part, content)
            await asyncio.to_thread(os.replace, part, self._path(tenant, files_hash))
        finally:
            self._running.give_back(tenant)
            await run_shielded(asyncio.to_thread(part.unlink, missing_ok=True))

    def link(self, tenant: str, files_hash: str, target: Path) -> None:
        """Keeps the archive at `target` too. Raises E2bError if it is not there (any more)."""
        try:
            with contextlib.suppress(FileExistsError):
                os.link(self._path(tenant, files_hash), target)
        except FileNotFoundError:
            raise E2bError(
                400, f"the files {files_hash[:16]}… of a COPY step were not uploaded, or longer than an hour ago"
            ) from None

    def remove_old(self, *, restarted: bool = False) -> None:
        """Removes what is too old; after a restart also what uploads that broke off have left."""
        oldest = time.time() - KEPT_S
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest or (restarted and path.name.startswith(_PART)):
                    path.unlink()
        for folder in self._folder.glob("*") if restarted else ():
            with contextlib.suppress(OSError):
                folder.rmdir()

    async def _write(self, part: Path, content: AsyncIterator[bytes]) -> None:
        taken, piece = 0, bytearray()
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            async for data in content:
                taken += len(data)
                if taken > self._max_bytes:
                    raise self._too_large()
                piece += data
                if len(piece) >= _PIECE:
                    await run_shielded(asyncio.to_thread(self._add, fd, bytes(piece)))
                    piece.clear()
            await run_shielded(asyncio.to_thread(self._add, fd, bytes(piece)))
        finally:
            os.close(fd)

    def _add(self, fd: int, data: bytes) -> None:
        self._check_room()
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def _make_room(self, folder: Path, length: int) -> None:
        self._check_room()
        self.remove_old()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sizes = []
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another upload has just ended, or was removed
                sizes.append(path.stat().st_size)
        if len(sizes) >= _MAX_FILES or sum(sizes) + length > _MAX_OF_TENANT:
            raise E2bError(
                429,
                f"your uploads for templates have {sum(sizes) // MIB} MiB in {len(sizes)} archives; at most "
                f"{_MAX_OF_TENANT // MIB} MiB in {_MAX_FILES} are kept, for an hour each",
            )

    def _path(self, tenant: str, files_hash: str) -> Path:
        return self._folder / tenant_mark(tenant) / files_hash

    def _too_large(self) -> E2bError:
        return E2bError(413, f"an archive may have {self._max_bytes // MIB} MiB; leave files out by .dockerignore")


def _touch(path: Path) -> bool:
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True
