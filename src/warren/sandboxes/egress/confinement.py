"""Gives up this process's user, capabilities, limits and system calls, before it reads a byte of a sandbox."""

import ctypes
import os
import resource
from typing import Final

UID: Final = 0x77FFFFF0
"""Below the uids of sandboxes, and above those that distributions, systemd and container engines assign."""

_SET_DUMPABLE, _SET_NAME, _SET_NO_NEW_PRIVS, _SET_SECCOMP, _DROP_BOUNDING = 4, 15, 38, 22, 24
_LAST_CAPABILITY: Final = 63
_MEMORY: Final = 4 << 30
_THREADS: Final = 4096  # of all processes with this uid together
_OWN_DESCRIPTORS: Final = 256

_libc = ctypes.CDLL(None, use_errno=True)


def give_up_rights() -> None:
    """Drops root for good: no program gains rights again, and no process can inspect this one. Raises OSError."""
    _libc.prctl(_SET_NAME, b"warren-egress", 0, 0, 0)
    if os.geteuid() == 0:
        for capability in range(_LAST_CAPABILITY + 1):
            _libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0)  # fails for numbers that this kernel does not have
        # In this order: after setresuid there would be no right left to change groups.
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
    _prctl(_SET_NO_NEW_PRIVS, 1)
    _prctl(_SET_DUMPABLE, 0)


def limit_resources() -> int:
    """Lowers the limits of resources. Returns how many connections the descriptors suffice for."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    descriptors = 1 << 17 if descriptors == resource.RLIM_INFINITY else min(descriptors, 1 << 17)
    for what, most in (
        (resource.RLIMIT_NOFILE, descriptors),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_NPROC, _THREADS),
    ):
        resource.setrlimit(what, (most, most))
    return max(16, (descriptors // 2 - _OWN_DESCRIPTORS) // 2)


def filter_calls(program: bytes) -> None:
    """Loads a compiled seccomp filter, for this thread and those that it starts. Raises OSError."""
    code = ctypes.create_string_buffer(program, len(program))

    class SockFprog(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    loaded = SockFprog(len(program) // 8, ctypes.addressof(code))
    _prctl(_SET_SECCOMP, 2, ctypes.addressof(loaded))


def _prctl(option: int, value: int, pointer: int = 0) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_void_p(pointer), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
