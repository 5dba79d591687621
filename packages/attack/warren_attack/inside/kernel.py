"""System calls that no program in a sandbox needs.

The arguments are chosen so that a call that is let in does no harm: its capability is checked before
its nonsense is.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import pty
import socket
import struct
import time

from .calls import CONTAINED, NOT_APPLICABLE, REFUSED, THROUGH, Account, ProbeVerdict, call, in_child, number

_TIOCSTI, _TIOCSETD = 0x5412, 0x5423
_FAMILIES = {"UNIX": 1, "INET": 2, "INET6": 10, "NETLINK": 16}
_NO_SOCKET = (*REFUSED, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EINVAL)


def refused(calls: "list[tuple[str, list[int]]]") -> ProbeVerdict:
    """Each call, with these numbers for arguments (0 where a pointer is expected), must be refused."""
    if all(number(name) < 0 for name, _ in calls):
        return NOT_APPLICABLE, f"{platform.machine()} has no such call"
    account = Account()
    for name, arguments in calls:
        if number(name) >= 0:
            account.note(name, in_child(lambda n=name, a=arguments: call(n, *a))[1])  # type: ignore[misc]
    return account.verdict()


def io_uring() -> ProbeVerdict:
    account = Account()
    parameters = ctypes.create_string_buffer(120)
    account.note("io_uring_setup", call("io_uring_setup", 4, parameters)[1])
    account.note("io_uring_register", call("io_uring_register", -1, 0, None, 0)[1])
    account.note("io_uring_enter", call("io_uring_enter", -1, 0, 0, 0, None, 0)[1])
    return account.verdict()


def user_faults() -> ProbeVerdict:
    account = Account()
    for flags in (0, 1):
        account.note(f"userfaultfd({flags})", call("userfaultfd", flags)[1])
    account.attempt("/dev/userfaultfd", lambda: os.close(os.open("/dev/userfaultfd", os.O_RDWR)))
    return account.verdict()


def bpf() -> ProbeVerdict:
    account = Account()
    for command, name in ((0, "map"), (5, "program"), (11, "get next id")):
        attributes = ctypes.create_string_buffer(struct.pack("5I", 2, 4, 4, 1, 0), 128)
        account.note(f"bpf {name}", call("bpf", command, attributes, 128)[1])
    return account.verdict()


def perf_events() -> ProbeVerdict:
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0), 128)
    account = Account()
    for pid, cpu in ((0, -1), (1, -1), (-1, 0)):
        account.note(f"perf_event_open of {pid}", call("perf_event_open", attributes, pid, cpu, -1, 0)[1])
    return account.verdict()


def keyrings() -> ProbeVerdict:
    account = Account()
    account.note("add_key", call("add_key", b"user", b"warren", b"x", 1, -3)[1])
    account.note("request_key", call("request_key", b"user", b"warren", None, -3)[1])
    for command in (0, 1, 6, 11):
        account.note(f"keyctl {command}", call("keyctl", command, -3, 0, 0, 0)[1])
    return account.verdict()


def set_clock() -> ProbeVerdict:
    nonsense = ctypes.create_string_buffer(struct.pack("I", 0x4000), 256)
    account = Account()
    account.note("settimeofday", call("settimeofday", _now(1000), None)[1])
    for clock in (0, 1, 7):
        account.note(f"clock_settime {clock}", call("clock_settime", clock, _now(1))[1])
    account.note("adjtimex", call("adjtimex", nonsense)[1])
    account.note("clock_adjtime", call("clock_adjtime", 0, nonsense)[1])
    return account.verdict()


def _now(unit_ns: int) -> "ctypes.Array[ctypes.c_char]":
    """The time that it is: where a clock can be set, it stays right."""
    seconds, rest = divmod(time.time_ns(), 1_000_000_000)
    return ctypes.create_string_buffer(struct.pack("qq", seconds, rest // unit_ns))


def file_handles() -> ProbeVerdict:
    """The way CVE-2014-9356's kin walked out: inode 2 of the host's disk by its number."""
    handle = ctypes.create_string_buffer(struct.pack("Ii8B", 8, 1, 2, 0, 0, 0, 0, 0, 0, 0))
    account = Account()
    mount = os.open("/", os.O_RDONLY)
    account.note("open_by_handle_at", call("open_by_handle_at", mount, handle, 0)[1])
    os.close(mount)
    return account.verdict()


def personality() -> ProbeVerdict:
    account = Account()
    for name, value in {"READ_IMPLIES_EXEC": 0x400000, "PER_LINUX32": 8, "UNAME26": 0x20000, "SVR4": 1}.items():
        account.note(name, in_child(lambda v=value: call("personality", v))[1])  # type: ignore[misc]
        high = value | 1 << 32
        account.note(f"{name}, high bit", in_child(lambda v=high: call("personality", v))[1])  # type: ignore[misc]
    return account.verdict()


def unknown_calls() -> ProbeVerdict:
    """Numbers that no kernel has yet, and those that it no longer has."""
    account = Account()
    for index in (*range(472, 560), 1000, 4095, 0x40000000 | 39):
        account.note(f"call {index}", in_child(lambda i=index: call(i, 0, 0, 0, 0, 0, 0))[1])  # type: ignore[misc]
    for name in ("nfsservctl", "lookup_dcookie"):
        account.note(name, call(name, 0, 0, 0)[1])
    return account.verdict()


def other_abi() -> ProbeVerdict:
    if platform.machine() != "x86_64":
        return NOT_APPLICABLE, f"a 64-bit process on {platform.machine()} has no way to make 32-bit calls"
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
    function = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    result, ended = in_child(lambda: (function(), 0))
    if ended < 0:
        return CONTAINED, f"int 0x80: the process was ended by signal {-ended}"
    if result < 0:
        return CONTAINED, f"int 0x80: errno {-result}"
    return THROUGH, f"int 0x80 worked: getpid says {result}"


def push_terminal_input() -> ProbeVerdict:
    master, slave = pty.openpty()
    account = Account()
    letter = ctypes.create_string_buffer(b"x")
    for name, request in (("TIOCSTI", _TIOCSTI), ("TIOCSTI, high bit", _TIOCSTI | 1 << 32), ("TIOCLINUX", 0x541C)):
        for fd in (master, slave):
            code = call("ioctl", fd, request, letter)[1]
            account.note(name, code, (*REFUSED, errno.EIO, errno.ENOTTY, errno.EINVAL))
    fcntl.fcntl(master, fcntl.F_SETFL, os.O_NONBLOCK)
    return account.verdict()


def line_disciplines() -> ProbeVerdict:
    """Each has the kernel load a module that parses what the terminal is sent; n_gsm and n_hdlc had several holes."""
    account = Account()
    for discipline in range(1, 32):
        master, slave = pty.openpty()
        for name, fd in (("master", master), ("slave", slave)):
            code = call("ioctl", fd, _TIOCSETD, ctypes.byref(ctypes.c_int(discipline)))[1]
            account.note(f"{discipline} on a {name}", code)
        os.close(master)
        os.close(slave)
    return account.verdict()


def socket_families() -> ProbeVerdict:
    account = Account()
    for family in range(46):
        if family in _FAMILIES.values():
            continue
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            account.note(f"family {family}", _socket(family, kind, 0), _NO_SOCKET)
    return account.verdict()


def one_family(family: int) -> ProbeVerdict:
    account = Account()
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        for protocol in (0, 3, 0x0300):
            account.note(f"kind {kind}, protocol {protocol}", _socket(family, kind, protocol), _NO_SOCKET)
            account.note(f"kind {kind}, high bit", _socket(family | 1 << 32, kind, protocol), _NO_SOCKET)
    return account.verdict()


def raw_sockets() -> ProbeVerdict:
    account = Account()
    for family in (socket.AF_INET, socket.AF_INET6):
        for protocol in (1, 6, 17, 58, 255):
            account.note(f"raw {protocol}", _socket(family, socket.SOCK_RAW, protocol), _NO_SOCKET)
    return account.verdict()


def rare_protocols() -> ProbeVerdict:
    """Each would make the kernel load a module that hardly anybody has reviewed."""
    account = Account()
    for name, kind, protocol in (
        ("SCTP", socket.SOCK_STREAM, 132),
        ("DCCP", 6, 33),
        ("UDP-Lite", socket.SOCK_DGRAM, 136),
        ("MPTCP", socket.SOCK_STREAM, 262),
        ("L2TP", socket.SOCK_DGRAM, 115),
        ("SMC", socket.SOCK_STREAM, 256),
    ):
        account.note(name, _socket(socket.AF_INET, kind, protocol), _NO_SOCKET)
    for name, kind in (("SCTP by its type", socket.SOCK_SEQPACKET), ("DCCP by its type", 6)):
        for family in (socket.AF_INET, socket.AF_INET6):
            account.note(name, _socket(family, kind, 0))  # any other answer comes from the kernel, which looked for it
    for name, protocol in {"audit": 9, "netfilter": 12, "generic": 16, "xfrm": 6, "sock_diag": 4, "uevent": 15}.items():
        account.note(f"netlink {name}", _socket(16, socket.SOCK_RAW, protocol), _NO_SOCKET)
    return account.verdict()


def _socket(family: int, kind: int, protocol: int) -> int:
    result, code = call(198 if platform.machine() == "aarch64" else 41, family, kind, protocol)
    if result >= 0:
        os.close(result)
        return 0
    return code
