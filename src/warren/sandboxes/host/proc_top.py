"""What is at the top of /proc beside processes: files and directories about the machine, of which every kernel has
others."""

import os
import time
from typing import Final

_FRESH_S: Final = 1.0
_listed: tuple[float, frozenset[str]] = (0.0, frozenset())


def list_top(directory: str) -> frozenset[str]:
    """Returns the names at the top of a /proc but those of processes and of links, which lead elsewhere and cannot be
    masked."""
    with os.scandir(directory) as entries:
        return frozenset(entry.name for entry in entries if not entry.name.isdigit() and not entry.is_symlink())


def top_of_proc() -> frozenset[str]:
    """Returns these names of the host, as they were a second ago at most: they change only when the kernel loads a
    module. A sandbox that was made without one of them is found when its isolation is read back."""
    global _listed
    now = time.monotonic()
    if not _listed[1] or now > _listed[0] + _FRESH_S:
        _listed = (now, list_top("/proc"))
    return _listed[1]
