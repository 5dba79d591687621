"""Locks of images that are being made: one build or pull of an image at a time, among all processes of a machine."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from warren.images.store.versions import explain_errors
from warren.kernel.file_locks import is_locked

LOCKS: Final = ".building"


@contextlib.contextmanager
def building_lock(images: Path, image: str, wait: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Holds the lock of an image's build. Yields whether another build held it. Calls `wait` before it waits. Removes
    the lock files of builds that were killed."""
    with explain_errors("making the directory of the images", images):
        (images / LOCKS).mkdir(mode=0o700, parents=True, exist_ok=True)
        os.scandir(images / LOCKS).close()  # another user may not look into it
    _remove_free_locks(images / LOCKS)
    path, waited = _lock_file(images, image), False
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = True
                wait()
                fcntl.flock(fd, fcntl.LOCK_EX)
            if not _is_at(path, fd):
                continue  # the last holder removed this file: its lock excludes nobody
            try:
                yield waited
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(fd)


def _remove_free_locks(folder: Path) -> None:
    """Whoever has opened one of these files and waits for its lock finds it gone, and makes a new one."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # its build has it, or has just removed it
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(path, fd):
                    path.unlink()
            finally:
                os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def is_being_built(images: Path, image: str) -> bool:
    try:
        return is_locked(_lock_file(images, image))
    except OSError:  # another user's images: nobody can tell
        return False


def _lock_file(images: Path, image: str) -> Path:
    return images / LOCKS / quote(image, safe="")
