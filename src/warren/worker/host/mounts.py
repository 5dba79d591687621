"""Taking a mount of ours off the host's mount table."""

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

_DETACH: Final = 2
_NO_FOLLOW: Final = 8
_libc = ctypes.CDLL(None, use_errno=True)


def unmount(where: Path) -> None:
    """Whatever is mounted at `where` is gone from here; those who hold it elsewhere keep it. Idempotent."""
    while _libc.umount2(os.fsencode(where), _DETACH | _NO_FOLLOW) == 0:
        pass  # one may lie upon another
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOENT):  # not a mount point, not there
        raise OSError(number, os.strerror(number), str(where))
