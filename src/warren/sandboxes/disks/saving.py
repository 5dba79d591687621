"""Saves the disk of a live sandbox, which stands still only while its image is copied.

Its file system has no journal. After all its processes have stopped and everything was written back, the image is what
it would be if it had just been unmounted, but for files that were deleted and are still open: checking the copy frees
them.
"""

import asyncio
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeVar

from warren.interfaces.disks import SavedDisk
from warren.kernel.fair_thread import disk_threads
from warren.kernel.shielding import run_shielded
from warren.kernel.syncing import sync_file_system
from warren.model.spec import MIB
from warren.sandboxes.disks import file_system
from warren.sandboxes.disks.disk_stream import DiskDescription, DiskLayout, content_hash
from warren.sandboxes.disks.saved_images import NewImage, SavedImages
from warren.sandboxes.host.disk_room import WatchedDisk
from warren.sandboxes.host.extents import copy_file

STEPS: Final = tuple(
    f"disk {step}"
    for step in ("begun", "synced", "frozen", "copied", "thawed", "checked", "hashed", "written", "named")
)
_TRIM: Final = 0xC0185879  # FITRIM
_WORTH_A_TRIM: Final = 32 * MIB
T = TypeVar("T")


class Freezable(Protocol):
    """The processes of a sandbox: see SandboxCgroup."""

    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def is_frozen(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class LiveDisk:
    """The disk of a live sandbox, and the processes that write to it. Nobody else freezes or thaws these, or ends the
    sandbox, while `quiet` is held."""

    disk: WatchedDisk
    layout: DiskLayout
    processes: Freezable
    quiet: Callable[[], AbstractAsyncContextManager[object]]


class _Stopped(Exception):
    """The caller was cancelled."""


async def save_disk(images: SavedImages, name: str, live: LiveDisk, *, hashed: bool = True) -> SavedDisk:
    """Raises SandboxLost, NoSpace, Conflict, ProviderUnavailable."""
    async with images.new(name) as new:
        copying = _Copying(images, live, new)
        await copying.in_thread(copying.sync)
        async with live.quiet():
            await copying.in_thread(copying.copy)
        images.fault("disk thawed")
        await file_system.check(new.fd)
        images.fault("disk checked")
        description = DiskDescription(
            live.disk.limit // MIB, os.fstat(new.fd).st_size, live.layout, stopped_s=round(copying.stopped_s, 4)
        )
        digest = await copying.in_thread(partial(content_hash, new.fd, description, copying.look)) if hashed else ""
        images.fault("disk hashed")
        return await images.finish(new, replace(description, sha256=digest))


class _Copying:
    def __init__(self, images: SavedImages, live: LiveDisk, new: NewImage) -> None:
        self._images, self._live, self._new = images, live, new
        self._is_cancelled = threading.Event()
        self.stopped_s = 0.0

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Ends the work before it raises, if the caller is cancelled."""
        working = asyncio.ensure_future(disk_threads().run(self._new.name, work))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            self._is_cancelled.set()
            await run_shielded(_end_of(working))
            raise

    def sync(self) -> None:
        """Writes back what it can while the sandbox runs, and gives back what deleted files have held: both would take
        longer while it stands still."""
        with self._live.disk.opened() as top:
            use = self._live.disk.look()
            if use is not None and use.held > use.allocated + _WORTH_A_TRIM:
                with suppress(OSError):
                    fcntl.ioctl(top, _TRIM, struct.pack("<QQQ", 0, 2**64 - 1, 0))
            sync_file_system(top)
        self._images.fault("disk synced")

    def copy(self) -> None:
        processes = self._live.processes
        with self._live.disk.opened() as top, self._live.disk.image.opened() as image:
            was_frozen, begun = processes.is_frozen(), time.monotonic()
            try:
                if not was_frozen:
                    processes.freeze()
                self._images.fault("disk frozen")
                sync_file_system(top)
                copy_file(image, self._new.fd, self._look_for_room)
                self._images.fault("disk copied")
            finally:
                if not was_frozen:
                    processes.thaw()
            self.stopped_s = time.monotonic() - begun

    def look(self) -> None:
        if self._is_cancelled.is_set():
            raise _Stopped

    def _look_for_room(self, size: int) -> None:
        self.look()
        self._images.look(size)


async def _end_of(working: "asyncio.Future[T]") -> None:
    with suppress(Exception):
        await working
