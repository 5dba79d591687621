"""What code in a sandbox may ask of the kernel: system calls, capabilities, paths of /proc.

Pure, and shared by all providers that use this machine's kernel. The filter allows the system calls that are listed
and refuses all others, including those of future kernels, with EPERM; it kills a process that uses another ABI than the
native one. Four rules shape the conditions on arguments:

- The kernel cuts an `int` argument to 32 bits but the filter sees 64. An equality that allows may
  ignore this (a stray high bit merely refuses); whatever must be refused is compared under a mask.
- A filter cannot read memory, so a call that takes its flags by pointer (clone3) gets ENOSYS: libc then uses the older
  call, whose flags the filter can see.
- Sockets are allowed by family, type *and* protocol: asking for a rare one makes the kernel load it.
- What is refused gets the answer that programs are prepared for: that of a kernel without the feature (ENOSYS, EINVAL,
  ENOMEM), or, where the call is only advice or its effect is in force already, success without doing anything.
"""

import errno
import platform
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from resource import getpagesize
from typing import Any, Final

# SETPCAP only to empty the bounding set of the commands it starts.
AGENT_CAPABILITIES: Final = ("CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP")

# What commands have that run as root, where a sandbox allows it: enough to install packages. They hold only within the
# sandbox's user namespace. Never SETPCAP: the kernel lets no process trace one that has a capability more, and so these
# commands cannot trace the agent and its supervisors, which have this one.
ROOT_CAPABILITIES: Final = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"),
    "CAP_NET_BIND_SERVICE",
)

# A limit of 0 would forbid files only: where core_pattern names a program, the kernel starts it as the host's root for
# every limit but 1. And 1 is too little for a file.
CORE_LIMIT: Final = 1
MEMLOCK_BYTES: Final = 8 * 1024 * 1024
PENDING_SIGNALS: Final = 16384
MESSAGE_QUEUE_BYTES: Final = 819200

# Of one sandbox. The kernel gives 3,072 to all sandboxes together unless it is told otherwise.
TERMINALS: Final = 64

_ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}

_FILES: Final = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
    fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fdatasync fgetxattr flistxattr flock
    fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr getxattrat
    lchown lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat
    mknod mknodat newfstatat open openat openat2 pread64 preadv pwrite64 pwritev pwritev2 read readahead
    readlink readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir sendfile setxattr setxattrat
    splice stat statfs statx symlink symlinkat sync_file_range syncfs tee truncate umask unlink unlinkat utime
    utimensat utimes vmsplice write writev
"""
_EVENTS: Final = """
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd
    eventfd2 inotify_add_watch inotify_init inotify_init1 inotify_rm_watch pipe pipe2 poll ppoll pselect6 select
    signalfd signalfd4 timerfd_create timerfd_gettime timerfd_settime
"""
_MEMORY: Final = """
    brk get_mempolicy madvise map_shadow_stack mbind membarrier mincore mlock mlock2 mlockall mprotect mremap mseal
    msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_madvise remap_file_pages set_mempolicy
    set_mempolicy_home_node
"""
_PROCESSES: Final = """
    arch_prctl capget capset execve execveat exit exit_group fork get_robust_list get_thread_area getcpu getegid
    geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage
    getsid gettid getuid ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self
    pause pidfd_open pidfd_send_signal restart_syscall rseq rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield set_robust_list
    set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setpgid setpriority setregid setresgid
    setresuid setreuid setsid setuid sigaltstack tgkill time times tkill uretprobe vfork wait4 waitid
    futex futex_requeue futex_wait futex_waitv futex_wake
"""
_SOCKETS: Final = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg
    sendto shutdown
"""
_SYSTEM: Final = """
    alarm clock_getres clock_gettime clock_nanosleep getitimer getrandom gettimeofday nanosleep setitimer sysinfo
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime uname
"""
_IPC: Final = """
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget
    semop semtimedop shmat shmctl shmdt
"""
_TRACING: Final = "kcmp process_vm_readv process_vm_writev ptrace"
# The machine has room for 65,536 asynchronous operations (io_*) in all; cachestat tells which files others have read.
_NOT_THERE: Final = "clone3 cachestat io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit"
# It would write the data of all sandboxes, and take as long; a sandbox's disk does not outlive the machine anyway.
_NOTHING_TO_DO: Final = "sync"

_NEW_NAMESPACES: Final = 0x7E020000
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000
# They type into a terminal, use a virtual console, and have the kernel load line disciplines.
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_MAP_HUGETLB, _MFD_HUGETLB, _SHM_HUGETLB = 0x40000, 0x4, 0x800
_RLIMIT_CORE: Final = 4
_FADV_DONTNEED: Final = 4
_RWF_NOWAIT, _RWF_DONTCACHE, _RWF_KNOWN = 0x08, 0x80, 0x77  # the first two look into the cache without changing it
_F_OFD_SETLK, _F_OFD_SETLKW, _F_LINUX = 37, 38, 1024  # the commands that only Linux has begin there
_SOL_SOCKET: Final = 1
_SO_LINGER: Final = 13
_SO_ATTACH_FILTER, _SO_LOCK_FILTER = 26, 44
_SO_ATTACH_BPF, _SO_ATTACH_REUSEPORT_CBPF, _SO_ATTACH_REUSEPORT_EBPF = 50, 51, 52
_SO_TIMESTAMPING, _SO_TIMESTAMPING_NEW = 37, 65
_SOL_IP, _SOL_TCP, _SOL_IPV6 = 0, 6, 41
_IP_RECVERR, _IPV6_RECVERR = 11, 25
_MCAST_JOIN_GROUP, _MCAST_JOIN_SOURCE_GROUP = 42, 46
_IP_ADD_MEMBERSHIP, _IP_ADD_SOURCE_MEMBERSHIP = 35, 39
_IPV6_ADD_MEMBERSHIP, _IPV6_JOIN_ANYCAST, _IPV6_FLOWLABEL_MGR = 20, 27, 32
_TCP_MD5SIG, _TCP_MD5SIG_EXT, _TCP_AO_ADD_KEY = 14, 32, 38
_PR_SET_SECCOMP: Final = 22
_PR_NAMES: Final = (0x41555856, 0x53564D41, 0x59616D61)  # GET_AUXV, SET_VMA, SET_PTRACER: all others are small numbers
_NO_RANDOMIZE: Final = 0x0040000
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_ICMP, _TCP, _UDP, _ICMPV6 = 1, 6, 17, 58
_NETLINK_AUDIT: Final = 9
_STREAM, _DGRAM, _RAW, _SEQPACKET = 1, 2, 3, 5
_SOCKET_FLAGS: Final = 0x80800  # SOCK_CLOEXEC, SOCK_NONBLOCK
_SOCKETS_BY_FAMILY: Final = {
    _INET: ((_STREAM, (0, _TCP)), (_DGRAM, (0, _UDP, _ICMP))),
    _INET6: ((_STREAM, (0, _TCP)), (_DGRAM, (0, _UDP, _ICMPV6))),
    _NETLINK: ((_RAW, (0,)), (_DGRAM, (0,))),  # NETLINK_ROUTE: libc lists the interfaces with it
}

# What programs need of the top of /proc, beside processes and links. All else there is masked, also what a later kernel
# brings: most of it describes the machine, or changes when others use it. Four of these are files of the sandbox
# (oci_bundle.VIEW); `devices` is for CUDA, which looks numbers up in it.
SHOWN_OF_PROC: Final = frozenset(
    {"cpuinfo", "devices", "filesystems", "loadavg", "meminfo", "stat", "sys", "sysrq-trigger", "uptime", "version"}
)

# Settings that count what all sandboxes use.
_MASKED: Final = """
    /proc/sys/fs/aio-nr /proc/sys/fs/dentry-state /proc/sys/fs/file-nr /proc/sys/fs/inode-nr
    /proc/sys/fs/inode-state /proc/sys/fs/quota/allocated_dquots /proc/sys/fs/quota/cache_hits
    /proc/sys/fs/quota/drops /proc/sys/fs/quota/free_dquots /proc/sys/fs/quota/lookups /proc/sys/fs/quota/reads
    /proc/sys/fs/quota/syncs /proc/sys/fs/quota/writes /proc/sys/kernel/pty/nr
"""
MASKED_PATHS: Final = (*_MASKED.split(), "/sys")
READONLY_PATHS: Final = ("/proc/sys", "/proc/sysrq-trigger")  # a mask of the latter would take what is written

_INT: Final = 0xFFFFFFFF

Rule = dict[str, Any]


def masked_paths(top_of_proc: Iterable[str]) -> tuple[str, ...]:
    """Returns the paths to mask where these names are at the top of /proc."""
    return (*(f"/proc/{name}" for name in sorted(top_of_proc) if name not in SHOWN_OF_PROC), *MASKED_PATHS)


def agent_capabilities(*, sudo: bool) -> tuple[str, ...]:
    """The agent's capabilities. With `sudo` they include those of root's commands: it cannot give what it does not
    have."""
    return tuple(dict.fromkeys((*AGENT_CAPABILITIES, *ROOT_CAPABILITIES))) if sudo else AGENT_CAPABILITIES


@cache
def seccomp_oci(*, ptrace: bool = False, machine: str = "") -> Mapping[str, Any]:
    """The `linux.seccomp` of an OCI runtime's config.json. All sandboxes share it."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "architectures": [_architecture(machine)],
        "syscalls": _rules(ptrace),
    }


def seccomp_docker(*, ptrace: bool = False, machine: str = "") -> dict[str, Any]:
    """The profile for Docker's `SecurityOpt: seccomp=…`, whose default error is EPERM."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [{"architecture": _architecture(machine), "subArchitectures": []}],
        "syscalls": _rules(ptrace),
    }


def allowed_names(*, ptrace: bool = False) -> frozenset[str]:
    """Every system call that is allowed, with or without conditions."""
    return frozenset(name for rule in _rules(ptrace) if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"])


def _architecture(machine: str) -> str:
    machine = machine or platform.machine()
    try:
        return _ARCHITECTURES[machine]
    except KeyError:
        raise ValueError(f"no system call filter is known for {machine}") from None


@cache
def _rules(ptrace: bool) -> list[Rule]:
    plain = " ".join((_FILES, _EVENTS, _MEMORY, _PROCESSES, _SOCKETS, _SYSTEM, _IPC, _TRACING if ptrace else ""))
    return [
        _allow(sorted(plain.split())),
        _answer(_NOT_THERE.split(), errno.ENOSYS),
        _answer(_NOTHING_TO_DO.split(), 0),
        *_clone_rules(ptrace),
        *_socket_rules(),
        *(_allow(["personality"], _masked(0, _INT, value)) for value in _personalities(ptrace)),
        *(_allow(["ioctl"], request) for request in _other_than(1, {_TIOCSTI, _TIOCLINUX, _TIOCSETD})),
        *_core_rules(),
        *_huge_page_rules(),
        *_cache_rules(),
        *_lock_rules(),
        *_program_rules(),
        *_socket_option_rules(),
    ]


def _clone_rules(ptrace: bool) -> Iterable[Rule]:
    """Allows no new namespaces. Only threads may share open files: the kernel attributes a lock to the process that
    took it, which must not end before its lock. The tracer of a leak sanitizer is an exception, and needs ptrace."""
    if ptrace:
        yield _allow(["clone"], _masked(0, _NEW_NAMESPACES, 0))
    else:
        yield _allow(["clone"], _masked(0, _NEW_NAMESPACES | _CLONE_FILES, 0))
        yield _allow(["clone"], _masked(0, _NEW_NAMESPACES | _CLONE_THREAD, _CLONE_THREAD))


def _core_rules() -> Iterable[Rule]:
    """Keeps CORE_LIMIT as it is. Programs that set it to 0 are told that it worked: no core is dumped either way."""
    for other in _other_than(0, {_RLIMIT_CORE}, bits=4):
        yield _allow(["setrlimit"], other)
    for other in _other_than(1, {_RLIMIT_CORE}, bits=4):
        yield _allow(["prlimit64"], other)
    yield _allow(["prlimit64"], _masked(1, _INT, _RLIMIT_CORE), _equal(2, 0))
    yield _answer(["setrlimit"], 0, _masked(0, _INT, _RLIMIT_CORE))
    yield _answer(["prlimit64"], 0, _masked(1, _INT, _RLIMIT_CORE), _not_equal(2, 0))


def _huge_page_rules() -> Iterable[Rule]:
    """Huge pages are the whole machine's, and no limit of memory counts them."""
    for name, index, flag in (
        ("mmap", 3, _MAP_HUGETLB),
        ("memfd_create", 1, _MFD_HUGETLB),
        ("shmget", 2, _SHM_HUGETLB),
    ):
        yield _allow([name], _masked(index, flag, 0))
        yield _answer([name], errno.ENOMEM, _masked(index, flag, flag))


def _cache_rules() -> Iterable[Rule]:
    """Sandboxes share the cached pages of an image: whoever can evict one sees whether another reads it."""
    for other in _other_than(3, {_FADV_DONTNEED}, bits=3):
        yield _allow(["fadvise64"], other)
    yield _answer(["fadvise64"], 0, _masked(3, _INT, _FADV_DONTNEED))
    yield _allow(["preadv2"], _masked(5, _INT & ~_RWF_KNOWN, 0))
    yield _answer(["preadv2"], errno.EOPNOTSUPP, _masked(5, _RWF_NOWAIT, _RWF_NOWAIT))
    yield _answer(["preadv2"], errno.EOPNOTSUPP, _masked(5, _RWF_NOWAIT | _RWF_DONTCACHE, _RWF_DONTCACHE))


def _lock_rules() -> Iterable[Rule]:
    """Refuses locks of open file descriptions: they have no owner that could be made to answer for their number.
    Programs then take other locks."""
    refused = (_F_OFD_SETLK, _F_OFD_SETLKW)
    for other in _other_than(1, refused, bits=6):
        yield _allow(["fcntl"], other)
    yield _allow(["fcntl"], _masked(1, _INT & ~0x3F, _F_LINUX))
    for command in refused:
        yield _answer(["fcntl"], errno.EINVAL, _masked(1, _INT, command))


def _program_rules() -> Iterable[Rule]:
    """Refuses filters of system calls: the kernel compiles them, the room for them is the whole machine's, and no limit
    counts it."""
    for option in (*_other_than(0, {_PR_SET_SECCOMP}, bits=8), *(_masked(0, _INT, name) for name in _PR_NAMES)):
        yield _allow(["prctl"], option)
    yield _answer(["prctl"], errno.EINVAL, _masked(0, _INT, _PR_SET_SECCOMP))
    yield _answer(["seccomp"], errno.EINVAL)


def _socket_option_rules() -> Iterable[Rule]:
    """Refuses programs for sockets, which the kernel compiles too, and what it keeps for sockets and charges to nobody.

    Joining groups takes the lock of all the machine's networks, and leaving them holds it: with many memberships, long
    enough for nobody to get a sandbox. Flow labels are 4,096 for the whole machine. Keys for TCP and the queues of
    errors and timestamps count for no limit. Programs that ask for errors, as every look-up of a name does, go on
    without. A socket that lingers has whoever closes it last wait, be it another program that it was passed to.
    """
    joins = dict.fromkeys((_MCAST_JOIN_GROUP, _MCAST_JOIN_SOURCE_GROUP), errno.ENODEV)
    programs = (
        *(_SO_ATTACH_FILTER, _SO_LOCK_FILTER, _SO_ATTACH_BPF, _SO_ATTACH_REUSEPORT_CBPF, _SO_ATTACH_REUSEPORT_EBPF),
    )
    timestamps = dict.fromkeys((_SO_TIMESTAMPING, _SO_TIMESTAMPING_NEW), errno.ENOPROTOOPT)
    answers: dict[int, dict[int, int]] = {
        _SOL_SOCKET: {**dict.fromkeys(programs, errno.EPERM), **timestamps, _SO_LINGER: 0},
        _SOL_IP: {
            **joins,
            **dict.fromkeys((_IP_ADD_MEMBERSHIP, _IP_ADD_SOURCE_MEMBERSHIP), errno.ENODEV),
            _IP_RECVERR: 0,
        },
        _SOL_IPV6: {
            **joins,
            **dict.fromkeys((_IPV6_ADD_MEMBERSHIP, _IPV6_JOIN_ANYCAST, _IPV6_FLOWLABEL_MGR), errno.ENODEV),
            _IPV6_RECVERR: 0,
        },
        _SOL_TCP: dict.fromkeys((_TCP_MD5SIG, _TCP_MD5SIG_EXT, _TCP_AO_ADD_KEY), errno.ENOPROTOOPT),
    }
    for level in _other_than(1, answers, bits=9):
        yield _allow(["setsockopt"], level)
    for number, options in answers.items():
        level = _masked(1, _INT, number)
        for other in _other_than(2, options, bits=7):
            yield _allow(["setsockopt"], level, other)
        for option, answer in options.items():
            if answer != errno.EPERM:
                yield _answer(["setsockopt"], answer, level, _masked(2, _INT, option))


def _socket_rules() -> Iterable[Rule]:
    for kind in (_STREAM, _DGRAM, _SEQPACKET):
        yield _allow(["socket", "socketpair"], _equal(0, _UNIX), _of_type(kind))
    for family, types in _SOCKETS_BY_FAMILY.items():
        for kind, protocols in types:
            for protocol in protocols:
                yield _allow(["socket"], _equal(0, family), _of_type(kind), _equal(2, protocol))
    # useradd and its kind stop at any other error: this is what a kernel without audit answers.
    yield _answer(["socket"], errno.EPROTONOSUPPORT, _equal(0, _NETLINK), _equal(2, _NETLINK_AUDIT))


def _of_type(kind: int) -> Rule:
    return _masked(1, _INT & ~_SOCKET_FLAGS, kind)


def _personalities(ptrace: bool) -> tuple[int, ...]:
    """Allows debuggers to switch address randomisation off."""
    return (0, 0xFFFFFFFF, _NO_RANDOMIZE) if ptrace else (0, 0xFFFFFFFF)


def _other_than(index: int, values: Collection[int], *, bits: int = 32) -> Iterable[Rule]:
    """Returns conditions of which one holds for every number of `bits` bits except `values`.

    One comparison for "not equal" would look at all 64 bits of the argument, and a set high bit would pass. So the
    numbers are divided into blocks that begin with the same bits. The fewer bits, the fewer blocks, each of which costs
    time when a sandbox is made.
    """

    def divide(first: int, bits: int) -> Iterable[tuple[int, int]]:
        if not any(first <= value < first + (1 << bits) for value in values):
            yield first, bits
        elif bits:
            yield from divide(first, bits - 1)
            yield from divide(first + (1 << bits - 1), bits - 1)

    return (_masked(index, _INT & -(1 << size), first) for first, size in divide(0, bits))


def _allow(names: Sequence[str], *conditions: Rule) -> Rule:
    rule: Rule = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    return {**rule, "args": list(conditions)} if conditions else rule


def _answer(names: Sequence[str], number: int, *conditions: Rule) -> Rule:
    """Makes the call do nothing and return the error `number`; success if it is 0."""
    rule: Rule = {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    return {**rule, "args": list(conditions)} if conditions else rule


def _equal(index: int, value: int) -> Rule:
    return {"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_EQ"}


def _not_equal(index: int, value: int) -> Rule:
    return {"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_NE"}


def _masked(index: int, mask: int, value: int) -> Rule:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def ipc_sysctls(shm_bytes: int) -> dict[str, str]:
    """Limits SysV objects, which belong to no process: the kernel can kill nobody to get their memory back."""
    return {
        "kernel.shmmax": str(shm_bytes),
        "kernel.shmall": str(shm_bytes // getpagesize()),
        "kernel.msgmni": "32",
        "kernel.msgmnb": "16384",
        "kernel.sem": "250 32000 100 128",
    }
