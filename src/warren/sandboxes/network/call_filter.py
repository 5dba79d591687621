"""Seccomp filters for Warren's own processes: allowed calls for `warren-egress`, refused calls for others."""

import platform
import struct
from typing import Final

from warren.sandboxes.host.system_calls import numbers

_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOWED: Final = """
    read write readv writev pread64 close close_range fstat newfstatat stat lstat statx statfs fstatfs lseek access
    faccessat faccessat2 readlink readlinkat getcwd getdents64 dup dup3 fcntl ioctl pipe2 eventfd2 splice
    mmap munmap mprotect mremap brk madvise membarrier
    rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall
    poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    timerfd_create timerfd_settime timerfd_gettime
    socketpair connect accept accept4 bind sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown getsockname
    getpeername setsockopt getsockopt
    futex set_robust_list get_robust_list rseq sched_yield sched_getaffinity set_tid_address
    getrandom clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time
    getpid gettid getppid getuid geteuid getgid getegid getresuid getresgid uname sysinfo getrusage getcpu
    exit exit_group
"""
_FAMILIES: Final = (2, 10, 16)  # IPv4, IPv6, and netlink, from which the resolver learns the machine's addresses
_CLONE_THREAD: Final = 0x00010000
_WRITING: Final = 0o1 | 0o2 | 0o100  # O_WRONLY, O_RDWR, O_CREAT
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_X32: Final = 0x40000000


def refusing(names: str, machine: str = "") -> bytes:
    """Returns a filter that refuses these calls and allows all others. `machine` defaults to this machine's kind."""
    machine = machine or platform.machine()
    known = numbers(machine)
    code = _begin(machine)
    for name in names.split():
        if name in known:
            code += [_step(_EQUAL, known[name], 0, 1), _step(_RETURN, _ERRNO | _EPERM)]
    return b"".join((*code, _step(_RETURN, _ALLOW)))


def _begin(machine: str) -> list[bytes]:
    """Returns the first steps of a filter: kill the process if it uses another kind of machine's call numbers, which
    mean other calls."""
    return [
        _step(_LOAD, _MACHINE),
        _step(_EQUAL, _ARCH[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_ANY_BIT, _X32, 0, 1),
        _step(_RETURN, _KILL),
    ]


def compiled(machine: str = "") -> bytes:
    """Returns the filter of `warren-egress`. `machine` defaults to this machine's kind."""
    machine = machine or platform.machine()
    known = numbers(machine)
    code = _begin(machine)
    for name in _ALLOWED.split():
        if name in known:
            code += [_step(_EQUAL, known[name], 0, 1), _step(_RETURN, _ALLOW)]
    # A filter cannot see clone3's flags. Without clone3, glibc starts threads with clone.
    code += [_step(_EQUAL, known["clone3"], 0, 1), _step(_RETURN, _ERRNO | _ENOSYS)]
    code += _only_if(known["clone"], 0, [_step(_ANY_BIT, _CLONE_THREAD, 0, 1), _step(_RETURN, _ALLOW)])
    families = [step for family in _FAMILIES for step in (_step(_EQUAL, family, 0, 1), _step(_RETURN, _ALLOW))]
    code += _only_if(known["socket"], 0, families)
    code += _only_if(known["openat"], 2, [_step(_ANY_BIT, _WRITING, 1, 0), _step(_RETURN, _ALLOW)])
    if "open" in known:
        code += _only_if(known["open"], 1, [_step(_ANY_BIT, _WRITING, 1, 0), _step(_RETURN, _ALLOW)])
    return b"".join((*code, _step(_RETURN, _ERRNO | _EPERM)))


def _only_if(number: int, argument: int, conditions: list[bytes]) -> list[bytes]:
    """Returns the steps that allow a call if the lower half of an argument meets a condition, and refuse it
    otherwise."""
    steps = [_step(_LOAD, _ARGUMENTS + 8 * argument), *conditions, _step(_RETURN, _ERRNO | _EPERM)]
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
