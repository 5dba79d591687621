"""Waits until files are on the disk: what has got its name before may be empty after a loss of power."""

import ctypes
import os
from pathlib import Path
from typing import Final

_SYNC_FILE_RANGE_WRITE: Final = 2
_libc = ctypes.CDLL(None, use_errno=True)


def sync_file(path: Path) -> None:
    """Of a directory: which names it has. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def begin_writing(fd: int, start: int, size: int) -> None:
    """Has the kernel begin to write back what was written to a part of a file, and does not wait. Raises nothing: it is
    written later otherwise."""
    _libc.sync_file_range(fd, ctypes.c_int64(start), ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE)


def sync_file_system(place: Path | int) -> None:
    """Writes back all files of a file system, of which `place` is one. Raises OSError."""
    fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC) if isinstance(place, Path) else os.dup(place)
    try:
        if _libc.syncfs(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(fd)
