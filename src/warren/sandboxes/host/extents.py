"""Copies sparse files: blocks are shared where the file system can, else only what holds data is copied."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Final

from warren.model.spec import MIB

PIECE: Final = 16 * MIB
_FICLONE: Final = 0x40049409


def clone(old: int, new: int) -> bool:
    """Lets an empty file share all blocks of another. Returns False where the file system cannot."""
    try:
        fcntl.ioctl(new, _FICLONE, old)
    except OSError:
        return False
    return True


def copy_file(old: int, new: int, look: Callable[[int], object] = lambda size: None) -> None:
    """Makes an empty file the same as another. `look` is called with the bytes that are written next, and may raise.
    Raises OSError."""
    if clone(old, new):
        return
    os.ftruncate(new, os.fstat(old).st_size)
    for start, end in extents(old):
        while start < end:
            size = min(end - start, PIECE)
            look(size)
            start += _copy(old, new, start, size)


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
