"""Settings of a sandbox's network namespace, where this kernel has them for each namespace."""

import ctypes
import os
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

# A socket must not keep what it sent for its timestamps: no memory limit counts that, and a program can ask for it with
# every message, which no filter of system calls can see.
_WANTED: Final = {"net.core.tstamp_allow_data": "0"}
_CLONE_NEWNET: Final = 0x40000000


@cache
def network_sysctls() -> Mapping[str, str]:
    """Returns the settings that a new namespace has. In an older kernel they have one value for the whole machine."""
    found: dict[str, str] = {}

    def look() -> None:
        """Runs in a thread of its own, because its new namespace ends with the thread."""
        if ctypes.CDLL(None).unshare(_CLONE_NEWNET) == 0:
            found.update({name: value for name, value in _WANTED.items() if os.access(_file(name), os.W_OK)})

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found


def lacking() -> Mapping[str, str]:
    """Returns the settings that only the whole machine has, and that have another value there."""
    return {
        name: value
        for name, value in _WANTED.items()
        if name not in network_sysctls() and _file(name).exists() and _file(name).read_text().strip() != value
    }


def _file(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")
