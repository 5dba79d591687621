"""Confines a process that needs neither root nor other programs, for good: by capabilities, system calls and Landlock.

A coordinator reads requests of everybody and needs only sockets. After `confine` it starts no program, writes only
below the directories it is given, and sends signals to nobody; nor can whoever takes it over. Root's capabilities are
gone, but for listening on ports below 1024, and so are system calls by which other processes, mounts, namespaces and
the kernel are changed. Reading is not restricted: what Python loads later, and where a system keeps its names and
certificates, differs from machine to machine. So does the list of all system calls that a process needs: here some
are refused, and the rest allowed.

The kernel restricts the calling thread and the threads and processes it starts later, so this is called before any.
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from warren.sandboxes.egress.confinement import filter_calls
from warren.sandboxes.network.call_filter import refusing

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every machine
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_SET_NO_NEW_PRIVS, _DROP_BOUNDING = 38, 24
_BIND_LOW_PORTS, _LAST_CAPABILITY = 10, 63
_CAPABILITY_VERSION: Final = 0x20080522
_REFUSED_CALLS: Final = """
    execve execveat ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd
    mount umount2 pivot_root chroot fsopen fsconfig fsmount fspick move_mount open_tree mount_setattr mknod mknodat
    unshare setns bpf perf_event_open userfaultfd io_uring_setup fanotify_init open_by_handle_at lookup_dcookie
    init_module finit_module delete_module kexec_load kexec_file_load add_key request_key keyctl personality
    reboot swapon swapoff quotactl acct syslog settimeofday clock_settime sethostname setdomainname vhangup
    iopl ioperm modify_ldt
"""

_EXECUTE, _WRITE_FILE = 1 << 0, 1 << 1
_MAKE_AND_REMOVE: Final = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
_FOR_FILES: Final = _WRITE_FILE | _TRUNCATE  # the rights that a rule for a file, not a directory, may have

_libc = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """Returns the kernel's version of Landlock; 0 if there is none."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def confine(writable: Iterable[Path]) -> int:
    """Gives up starting programs, sending signals, and writing anywhere but below the paths in `writable` that exist.
    Returns Landlock's version.

    Raises OSError if the kernel has no Landlock or refuses something else; everything else is given up even then.
    """
    failures = []
    # In this order: without capabilities the kernel takes a filter only from a process that gets no new privileges.
    for give_up in (_drop_capabilities, _refuse_new_privileges, _refuse_calls):
        try:
            give_up()
        except OSError as exc:
            failures.append(exc)
    version = _restrict_files(writable)
    if failures:
        raise failures[0]
    return version


def _refuse_new_privileges() -> None:
    _check("giving up new privileges", _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _refuse_calls() -> None:
    filter_calls(refusing(_REFUSED_CALLS))


def _restrict_files(writable: Iterable[Path]) -> int:
    version = landlock_version()
    if not version:
        raise OSError(ctypes.get_errno(), "the kernel has no Landlock, or does not let this process use it")
    rights = _EXECUTE | _WRITE_FILE | _MAKE_AND_REMOVE
    rights |= _REFER if version >= 2 else 0
    rights |= _TRUNCATE if version >= 3 else 0
    scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= 6 else 0
    attributes = struct.pack("QQQ", rights, 0, scopes)[: 24 if version >= 6 else 8]
    ruleset = _check("making rules", _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    try:
        for path in writable:
            _allow(ruleset, path, rights & ~_EXECUTE)
        _check("keeping the rules", _libc.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return version


def _drop_capabilities() -> None:
    if os.geteuid() != 0:
        return
    for capability in range(_LAST_CAPABILITY + 1):
        if capability != _BIND_LOW_PORTS:
            _libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0)  # fails for numbers that this kernel does not have
    had = _capabilities()
    kept = had & 1 << _BIND_LOW_PORTS
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    _check("giving up capabilities", _libc.capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0)))


def _capabilities() -> int:
    """Returns which of the first 32 capabilities are permitted, as bits."""
    data = ctypes.create_string_buffer(24)
    _check("reading capabilities", _libc.capget(struct.pack("Ii", _CAPABILITY_VERSION, 0), data))
    return int(struct.unpack("6I", data.raw)[1])


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = rights if path.is_dir() else rights & _FOR_FILES
        rule = struct.pack("=Qi", allowed, place)
        _check(f"allowing {path}", _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
    finally:
        os.close(place)


def _check(doing: str, result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{doing}: {os.strerror(ctypes.get_errno())}")
    return result
