"""Whether another process holds the lock of a file."""

import fcntl
import os
from pathlib import Path


def is_locked(path: Path) -> bool:
    """A file that does not exist is not locked. Raises OSError if this user may not open it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
