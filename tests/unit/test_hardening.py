"""The filter of system calls, evaluated as the kernel would."""

import errno
from typing import Any

import pytest

from warren.sandboxes.providers.hardening import (
    AGENT_CAPABILITIES,
    ROOT_CAPABILITIES,
    agent_capabilities,
    allowed_names,
    masked_paths,
    seccomp_docker,
    seccomp_oci,
)

ALLOW = "allow"
DONE = 0
HIGH = 1 << 32
UNIX, INET, INET6, NETLINK, VSOCK, ALG, PACKET = 1, 2, 10, 16, 40, 38, 17
NEWUSER, NEWNS, THREAD = 0x10000000, 0x20000, 0x3D0F00
TIOCSTI, TIOCGWINSZ, TIOCLINUX, TIOCSETD = 0x5412, 0x5413, 0x541C, 0x5423
STREAM, DGRAM, RAW, SEQPACKET, DCCP, CLOEXEC, NONBLOCK = 1, 2, 3, 5, 6, 0x80000, 0x800


def holds(condition: dict[str, Any], arguments: tuple[int, ...]) -> bool:
    value = arguments[condition["index"]] if condition["index"] < len(arguments) else 0
    if condition["op"] == "SCMP_CMP_MASKED_EQ":
        return bool(value & condition["value"] == condition["valueTwo"])
    if condition["op"] == "SCMP_CMP_NE":
        return bool(value != condition["value"])
    assert condition["op"] == "SCMP_CMP_EQ"
    return bool(value == condition["value"])


def verdict(name: str, *arguments: int, ptrace: bool = False) -> str | int:
    """The rules that apply must agree: a runtime does not promise an order."""
    found: set[str | int] = set()
    for rule in seccomp_oci(ptrace=ptrace, machine="x86_64")["syscalls"]:
        if name in rule["names"] and all(holds(condition, arguments) for condition in rule.get("args", [])):
            found.add(ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else int(rule["errnoRet"]))
    assert len(found) <= 1
    return found.pop() if found else errno.EPERM


REFUSED = """
    io_uring_setup io_uring_enter io_uring_register userfaultfd bpf perf_event_open keyctl add_key request_key mount
    umount2 fsopen fsconfig fsmount fspick open_tree move_mount mount_setattr pivot_root unshare setns
    process_vm_readv process_vm_writev ptrace kcmp pidfd_getfd kexec_load kexec_file_load init_module finit_module
    delete_module swapon swapoff reboot clock_settime clock_adjtime settimeofday adjtimex open_by_handle_at
    name_to_handle_at fanotify_init fanotify_mark memfd_secret chroot acct quotactl syslog lookup_dcookie nfsservctl
    vhangup iopl ioperm modify_ldt sethostname setdomainname move_pages migrate_pages statmount listmount
    lsm_set_self_attr
"""


@pytest.mark.parametrize("name", REFUSED.split())
def test_what_ordinary_programs_do_not_need_is_refused(name: str) -> None:
    assert verdict(name) == errno.EPERM


ORDINARY = """
    read write openat execve execveat fork vfork futex mmap mprotect memfd_create rseq inotify_init1
    inotify_add_watch epoll_create1 epoll_pwait2 prctl fcntl fadvise64 preadv2 setsockopt setrlimit mknodat
    setuid setgid setgroups setfsuid setresuid
    landlock_create_ruleset clock_nanosleep getrandom statx copy_file_range close_range openat2 pidfd_open
    pidfd_send_signal signalfd4 timer_create sched_setaffinity membarrier fchmodat2 syncfs capset
    setpriority mlock shmget semop kill tgkill
"""


@pytest.mark.parametrize("name", ORDINARY.split())
def test_what_ordinary_programs_need_is_allowed(name: str) -> None:
    assert verdict(name) == ALLOW


@pytest.mark.parametrize(
    ("flags", "expected"),
    [(THREAD, ALLOW), (17, ALLOW), (NEWUSER | 17, errno.EPERM), (NEWNS, errno.EPERM), (NEWUSER | HIGH, errno.EPERM)],
)
def test_clone_makes_threads_and_processes_but_no_namespaces(flags: int, expected: str | int) -> None:
    assert verdict("clone", flags) == expected


def test_clone3_is_not_there_so_that_libc_falls_back() -> None:
    assert verdict("clone3") == errno.ENOSYS


@pytest.mark.parametrize(
    ("socket", "expected"),
    [
        ((UNIX, STREAM, 0), ALLOW),
        ((UNIX, SEQPACKET | CLOEXEC, 0), ALLOW),
        ((UNIX, RAW, 0), errno.EPERM),
        ((INET, STREAM, 0), ALLOW),
        ((INET, STREAM | CLOEXEC | NONBLOCK, 6), ALLOW),
        ((INET, DGRAM, 1), ALLOW),
        ((INET6, DGRAM, 17), ALLOW),
        ((INET6, DGRAM, 58), ALLOW),
        ((NETLINK, RAW | CLOEXEC, 0), ALLOW),
        ((NETLINK, DGRAM, 0), ALLOW),
        ((NETLINK, SEQPACKET, 0), errno.EPERM),
        ((NETLINK, RAW, 12), errno.EPERM),
        ((NETLINK, RAW, 9), errno.EPROTONOSUPPORT),
        ((INET, STREAM, 132), errno.EPERM),
        ((INET, RAW, 1), errno.EPERM),
        ((INET, SEQPACKET, 0), errno.EPERM),
        ((INET, DCCP, 0), errno.EPERM),
        ((INET6, DCCP | NONBLOCK, 0), errno.EPERM),
        ((INET, DCCP | HIGH, 0), errno.EPERM),
        ((INET, 10, 0), errno.EPERM),
        ((VSOCK, STREAM, 0), errno.EPERM),
        ((ALG, SEQPACKET, 0), errno.EPERM),
        ((PACKET, RAW, 0), errno.EPERM),
        ((VSOCK | HIGH, STREAM, 0), errno.EPERM),
        ((INET | HIGH, STREAM, 0), errno.EPERM),
    ],
)
def test_sockets_by_family_type_and_protocol(socket: tuple[int, int, int], expected: str | int) -> None:
    assert verdict("socket", *socket) == expected


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (TIOCGWINSZ, ALLOW),
        (0, ALLOW),
        (0xFFFFFFFF, ALLOW),
        (TIOCSTI, errno.EPERM),
        (TIOCSTI | HIGH, errno.EPERM),
        (TIOCSTI | 0xFFFFFFFF00000000, errno.EPERM),
        (TIOCLINUX, errno.EPERM),
        (TIOCSETD, errno.EPERM),
        (TIOCSETD | HIGH, errno.EPERM),
        (TIOCSETD + 1, ALLOW),
    ],
)
def test_what_terminals_must_not_do_is_refused_whatever_the_high_bits(request_: int, expected: str | int) -> None:
    assert verdict("ioctl", 0, request_) == expected


CORE, NOFILE, POINTER = 4, 7, 0x7FFF00001000
HUGETLB = 0x40000
SOCKET, TCP, ATTACH_FILTER, REUSEADDR, LINGER = 1, 6, 26, 2, 13
IP, MULTICAST_TTL, ADD_MEMBERSHIP, JOIN_GROUP = 0, 33, 35, 42
IPV6, V6ONLY, FLOWLABEL_MGR, NODELAY, MD5SIG = 41, 26, 32, 1, 14
RECVERR, RECVERR6, TIMESTAMPING, TIMESTAMPING_NEW = 11, 25, 37, 65
SETLK, OFD_SETLK, DUPFD_CLOEXEC = 6, 37, 1030
DONTNEED, WILLNEED = 4, 3
NOWAIT, DONTCACHE, HIPRI = 0x08, 0x80, 0x01
FILES, SET_SECCOMP, SET_NAME = 0x400, 22, 15


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (("setrlimit", NOFILE, POINTER), ALLOW),
        (("setrlimit", CORE, POINTER), DONE),
        (("setrlimit", CORE | HIGH, POINTER), DONE),
        (("prlimit64", 0, NOFILE, POINTER, 0), ALLOW),
        (("prlimit64", 0, CORE, 0, POINTER), ALLOW),
        (("prlimit64", 0, CORE, POINTER, 0), DONE),
        (("prlimit64", 0, CORE | HIGH, POINTER, 0), DONE),
        (("mmap", 0, 4096, 3, 0x22, -1, 0), ALLOW),
        (("mmap", 0, 4096, 3, 0x22 | HUGETLB, -1, 0), errno.ENOMEM),
        (("mmap", 0, 4096, 3, 0x22 | HUGETLB | HIGH, -1, 0), errno.ENOMEM),
        (("memfd_create", POINTER, 1), ALLOW),
        (("memfd_create", POINTER, 5), errno.ENOMEM),
        (("shmget", 0, 4096, 0o1600), ALLOW),
        (("shmget", 0, 4096, 0o5600), errno.ENOMEM),
        (("setsockopt", 3, SOCKET, REUSEADDR), ALLOW),
        (("setsockopt", 3, TCP, ATTACH_FILTER), ALLOW),
        (("setsockopt", 3, SOCKET, ATTACH_FILTER), errno.EPERM),
        (("setsockopt", 3, SOCKET | HIGH, ATTACH_FILTER), errno.EPERM),
        (("setsockopt", 3, SOCKET, ATTACH_FILTER | HIGH), errno.EPERM),
        (("setsockopt", 3, IP, MULTICAST_TTL), ALLOW),
        (("setsockopt", 3, IP, ADD_MEMBERSHIP), errno.ENODEV),
        (("setsockopt", 3, IP | HIGH, ADD_MEMBERSHIP | HIGH), errno.ENODEV),
        (("setsockopt", 3, IP, JOIN_GROUP), errno.ENODEV),
        (("setsockopt", 3, IPV6, V6ONLY), ALLOW),
        (("setsockopt", 3, IPV6, JOIN_GROUP), errno.ENODEV),
        (("setsockopt", 3, IPV6, FLOWLABEL_MGR), errno.ENODEV),
        (("setsockopt", 3, IP, RECVERR), DONE),
        (("setsockopt", 3, IPV6, RECVERR6), DONE),
        (("setsockopt", 3, SOCKET, TIMESTAMPING), errno.ENOPROTOOPT),
        (("setsockopt", 3, SOCKET, TIMESTAMPING_NEW | HIGH), errno.ENOPROTOOPT),
        (("setsockopt", 3, SOCKET, LINGER), DONE),
        (("setsockopt", 3, SOCKET | HIGH, LINGER | HIGH), DONE),
        (("setsockopt", 3, TCP, NODELAY), ALLOW),
        (("setsockopt", 3, TCP, MD5SIG), errno.ENOPROTOOPT),
        (("prctl", SET_NAME), ALLOW),
        (("prctl", 0x59616D61), ALLOW),
        (("prctl", SET_SECCOMP, 2), errno.EINVAL),
        (("prctl", SET_SECCOMP | HIGH, 2), errno.EINVAL),
        (("seccomp", 1, 0), errno.EINVAL),
        (("fcntl", 3, SETLK), ALLOW),
        (("fcntl", 3, DUPFD_CLOEXEC), ALLOW),
        (("fcntl", 3, OFD_SETLK), errno.EINVAL),
        (("fcntl", 3, OFD_SETLK + 1 | HIGH), errno.EINVAL),
        (("clone", FILES | 17), errno.EPERM),
        (("fadvise64", 3, 0, 0, WILLNEED), ALLOW),
        (("fadvise64", 3, 0, 0, DONTNEED), DONE),
        (("fadvise64", 3, 0, 0, DONTNEED | HIGH), DONE),
        (("preadv2", 3, POINTER, 1, 0, 0, HIPRI), ALLOW),
        (("preadv2", 3, POINTER, 1, 0, 0, NOWAIT), errno.EOPNOTSUPP),
        (("preadv2", 3, POINTER, 1, 0, 0, NOWAIT | DONTCACHE), errno.EOPNOTSUPP),
        (("preadv2", 3, POINTER, 1, 0, 0, DONTCACHE | HIGH), errno.EOPNOTSUPP),
        (("cachestat",), errno.ENOSYS),
        (("io_setup",), errno.ENOSYS),
        (("sync",), DONE),
    ],
)
def test_what_no_limit_counts_is_refused_as_by_a_kernel_without_it(
    call: tuple[str, *tuple[int, ...]], expected: str | int
) -> None:
    assert verdict(*call) == expected


def test_a_tracer_may_share_open_files() -> None:
    assert verdict("clone", FILES | 17, ptrace=True) == ALLOW


@pytest.mark.parametrize(
    ("persona", "ptrace", "expected"),
    [
        (0, False, ALLOW),
        (0xFFFFFFFF, False, ALLOW),
        (0x40000, False, errno.EPERM),
        (0x40000, True, ALLOW),
        (0x400000, True, errno.EPERM),
    ],
)
def test_personality_can_be_asked_for(persona: int, ptrace: bool, expected: str | int) -> None:
    assert verdict("personality", persona, ptrace=ptrace) == expected


@pytest.mark.parametrize("name", ["ptrace", "process_vm_readv", "process_vm_writev", "kcmp"])
def test_debugging_is_an_option(name: str) -> None:
    assert verdict(name, ptrace=True) == ALLOW
    assert name not in allowed_names()


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", "SCMP_ARCH_X86_64"), ("aarch64", "SCMP_ARCH_AARCH64")])
def test_only_the_native_abi_is_known(machine: str, arch: str) -> None:
    assert seccomp_oci(machine=machine)["architectures"] == [arch]
    assert seccomp_docker(machine=machine)["archMap"] == [{"architecture": arch, "subArchitectures": []}]


def test_an_unknown_machine_gets_no_filter_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp_oci(machine="riscv64")


def test_docker_gets_the_same_rules() -> None:
    assert seccomp_docker(machine="aarch64")["syscalls"] == seccomp_oci(machine="aarch64")["syscalls"]
    assert seccomp_docker(machine="aarch64")["defaultAction"] == "SCMP_ACT_ERRNO"


def test_no_name_is_listed_twice() -> None:
    names = seccomp_oci(machine="aarch64")["syscalls"][0]["names"]
    assert len(names) == len(set(names))


def test_the_agent_can_change_users_and_kill_and_nothing_more() -> None:
    assert set(AGENT_CAPABILITIES) == {"CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SETPCAP"}
    assert agent_capabilities(sudo=False) == AGENT_CAPABILITIES


def test_root_inside_lacks_a_capability_of_its_supervisor_and_whatever_reaches_beyond_files_and_users() -> None:
    assert set(agent_capabilities(sudo=True)) - set(ROOT_CAPABILITIES) == {"CAP_SETPCAP"}
    assert set(ROOT_CAPABILITIES) <= {
        *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"),
        "CAP_NET_BIND_SERVICE",
    }


@pytest.mark.parametrize("name", ["kcore", "keys", "kallsyms", "cmdline", "fs", "a-file-of-a-later-kernel"])
def test_what_is_at_the_top_of_proc_is_masked_unless_programs_need_it(name: str) -> None:
    masked = masked_paths({name, "meminfo", "sys"})
    assert f"/proc/{name}" in masked
    assert not {"/proc/meminfo", "/proc/sys"} & set(masked)
