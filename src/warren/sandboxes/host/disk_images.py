"""Disk images of sandboxes, which are files without a name: how much they occupy, and when that is freed.

The process that makes an image keeps it open until its sandbox is destroyed. Other processes, and the same one after a
restart, open it by its handle, which is in the sandbox's record and valid for as long as the sandbox's loop device uses
the image. An older version gave images a second name instead, `disk.held` in the sandbox's directory.
"""

import asyncio
import ctypes
import errno
import os
import stat
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from warren.kernel.shielding import run_shielded
from warren.model.spec import MIB
from warren.sandboxes.host.extents import shared_bytes

_MAX_WAITING: Final = 512
_MAX_WAITING_BYTES: Final = 256 * MIB
_LARGEST_WAITING: Final = 4 * MIB
_FREE_AFTER_S: Final = 0.1
_HANDLE_BYTES: Final = 128
_EMPTY_PATH: Final = 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


class _Handle(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_ubyte * _HANDLE_BYTES))


def handle_of(fd: int) -> str:
    """Returns the handle by which `open_handle` finds the file again; "" if its file system has none."""
    handle, mount = _Handle(size=_HANDLE_BYTES), ctypes.c_int()
    if _libc.name_to_handle_at(fd, b"", ctypes.byref(handle), ctypes.byref(mount), _EMPTY_PATH):
        return ""
    return f"{handle.kind}:{bytes(handle.bytes[: handle.size]).hex()}"


def open_handle(directory: Path, text: str) -> int:
    """Opens a nameless file in the file system of `directory`. Raises OSError, also if nobody has it open."""
    kind, _, content = text.partition(":")
    try:
        value = bytes.fromhex(content)
        handle = _Handle(size=len(value), kind=int(kind))
    except ValueError:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from None
    if len(value) > _HANDLE_BYTES:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    ctypes.memmove(handle.bytes, value, len(value))
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd: int = _libc.open_by_handle_at(place, ctypes.byref(handle), os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(place)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    found = os.fstat(fd)
    # A handle may name any file of the file system by now: accept only a nameless file of our own.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink or found.st_uid != os.geteuid():
        os.close(fd)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return fd


class DiskImage:
    """The image of one sandbox: open here, or else opened by its handle each time. Threads may share it."""

    def __init__(self, directory: Path, handle: str, *, fd: int = -1) -> None:
        self._directory, self.handle, self._fd = directory, handle, fd
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<DiskImage {self.handle or 'without a handle'}{', open' if self._fd >= 0 else ''}>"

    def held(self) -> int | None:
        """Returns the bytes that the image occupies in the host's file system; None if that is unknown."""
        with suppress(OSError), self.opened() as fd:
            return os.fstat(fd).st_blocks * 512
        return None

    def shared(self) -> int:
        """Returns how many of these bytes are in blocks that other files have too: writing there takes new ones."""
        with suppress(OSError), self.opened() as fd:
            return shared_bytes(fd)
        return 0

    def empty(self) -> None:
        """Frees everything that the image holds. Raises OSError."""
        with self.opened() as fd:
            os.ftruncate(fd, 0)

    def take(self) -> int:
        """Returns the descriptor, which the caller closes; -1 if the image is gone."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd < 0:
            with suppress(OSError):
                fd = self._open()
        return fd

    def close(self) -> None:
        """Closes the descriptor of this process; others may keep the image open."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Yields a descriptor of the image. Raises OSError if it is gone."""
        # Duplicated under the lock: another thread may close the descriptor at any time.
        with self._lock:
            fd = os.dup(self._fd) if self._fd >= 0 else -1
        if fd < 0:
            fd = self._open()
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self) -> int:
        if not self.handle:
            raise FileNotFoundError
        return open_handle(self._directory, self.handle)


class NamedImage(DiskImage):
    """An image that has a name in the directory, in place of a handle."""

    def _open(self) -> int:
        return os.open(self._directory / self.handle, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


class FreedImages:
    """Closes the images of destroyed sandboxes in the background.

    Freeing the blocks of a file is slow on some file systems (with `discard` some 10 ms), and nobody has to wait for
    it. Bytes of waiting images already count as free (`waiting_bytes`), so only a bounded number of small images waits:
    all others are closed while their sandboxes die.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int]] = deque()
        self._closing: asyncio.Task[None] | None = None
        self._keeping = 0

    def __repr__(self) -> str:
        return f"<FreedImages, {len(self._waiting)} waiting with {self.waiting_bytes} bytes>"

    @property
    def waiting_bytes(self) -> int:
        return sum(size for _, size in list(self._waiting))

    @asynccontextmanager
    async def keeping(self, image: DiskImage) -> AsyncIterator[None]:
        """Keeps a small image open while its sandbox dies, and closes it later. Closes a large one at once."""
        fd = image.take()
        size = os.fstat(fd).st_blocks * 512 if fd >= 0 else 0
        if fd >= 0 and not self._has_room_for(size):
            # slow, if the sandbox died long ago and this frees the blocks
            await run_shielded(asyncio.to_thread(os.close, fd))
            fd = -1
        self._keeping += fd >= 0
        try:
            yield
        finally:
            if fd >= 0:
                self._keeping -= 1
                self._close_later(fd, size)

    async def close(self) -> None:
        """Closes all waiting images now."""
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.wait([self._closing])
        await asyncio.to_thread(self._close_waiting)

    def _has_room_for(self, size: int) -> bool:
        count = len(self._waiting) + self._keeping
        return count < _MAX_WAITING and size <= _LARGEST_WAITING and self.waiting_bytes + size <= _MAX_WAITING_BYTES

    def _close_later(self, fd: int, size: int) -> None:
        self._waiting.append((fd, size))
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._close_all(), name="freed-images")

    async def _close_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(_FREE_AFTER_S)  # so that several are closed at once
            await run_shielded(asyncio.to_thread(self._close_waiting))

    def _close_waiting(self) -> None:
        while self._waiting:
            fd, _ = self._waiting.popleft()
            os.close(fd)
