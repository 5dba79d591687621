"""Copies sparse files: blocks are shared where the file system can, else only what holds data is copied. And says how
much of a file is shared."""

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from typing import Final

from warren.kernel.syncing import begin_writing
from warren.model.spec import MIB

PIECE: Final = 16 * MIB
_FICLONE: Final = 0x40049409
_FIEMAP: Final = 0xC020660B
_FIEMAP_HEAD: Final = struct.Struct("<QQIIII")
_EXTENT: Final = struct.Struct("<QQQ16xI12x")
_EXTENTS_AT_ONCE: Final = 512
_LAST, _SHARED = 0x1, 0x2000


def clone(old: int, new: int) -> bool:
    """Lets an empty file share all blocks of another. Returns False where the file system cannot."""
    try:
        fcntl.ioctl(new, _FICLONE, old)
    except OSError:
        return False
    return True


def copy_file(
    old: int, new: int, look: Callable[[int], object] = lambda size: None, *, writes_back: bool = False
) -> None:
    """Makes an empty file the same as another. `look` is called with the bytes that are written next, and may raise.
    With `writes_back` the kernel writes to the disk meanwhile: somebody is about to wait for that. Raises OSError."""
    look(PIECE)  # blocks that are shared take no room, and what is written to them later does
    if clone(old, new):
        return
    os.ftruncate(new, os.fstat(old).st_size)
    for start, end in extents(old):
        while start < end:
            size = min(end - start, PIECE)
            look(size)
            copied = _copy(old, new, start, size)
            if writes_back:
                begin_writing(new, start, copied)
            start += copied


def extents(fd: int) -> Iterator[tuple[int, int]]:
    """Yields start and end of what is no hole."""
    size, at = os.fstat(fd).st_size, 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # only a hole follows
                return
            raise
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def shared_bytes(fd: int) -> int:
    """Returns how much of a file shares its blocks with others: writing there takes new ones. 0 where the file system
    cannot say."""
    shared, at = 0, 0
    while True:
        head = _FIEMAP_HEAD.pack(at, (1 << 64) - 1 - at, 0, 0, _EXTENTS_AT_ONCE, 0)
        room = bytearray(head + bytes(_EXTENTS_AT_ONCE * _EXTENT.size))
        try:
            fcntl.ioctl(fd, _FIEMAP, room)
        except OSError:
            return int(shared)
        count = _FIEMAP_HEAD.unpack_from(room)[3]
        at, flags = -1, _LAST
        for number in range(count):
            start, _, size, flags = _EXTENT.unpack_from(room, _FIEMAP_HEAD.size + number * _EXTENT.size)
            shared, at = shared + (size if flags & _SHARED else 0), start + size
        if flags & _LAST:
            return int(shared)


def _copy(old: int, new: int, start: int, size: int) -> int:
    try:
        if copied := os.copy_file_range(old, new, size, start, start):
            return copied
    except OSError as exc:
        if exc.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM):
            raise
    data = os.pread(old, min(size, MIB), start)
    if not data:
        raise OSError(errno.EIO, "the file has become shorter")
    return os.pwrite(new, data, start)
