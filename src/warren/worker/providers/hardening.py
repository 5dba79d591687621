"""What code in a sandbox may ask of the kernel: system calls, capabilities, paths of /proc.

Pure, and shared by all providers that use this machine's kernel. The filter allows the system calls that are listed
and refuses all others, including those of future kernels, with EPERM; it kills a process that uses another ABI than the
native one. Three rules shape the conditions on arguments:

- The kernel cuts an `int` argument to 32 bits but the filter sees 64. An equality that allows may
  ignore this (a stray high bit merely refuses); whatever must be refused is compared under a mask.
- A filter cannot read memory, so a call that takes its flags by pointer (clone3) gets ENOSYS: libc then uses the older
  call, whose flags the filter can see.
- Sockets are allowed by family *and* protocol: asking for a rare protocol makes the kernel load it.
"""

import errno
import platform
from collections.abc import Iterable, Sequence
from resource import getpagesize
from typing import Any, Final

# SETPCAP only to empty the bounding set of the commands it starts.
AGENT_CAPABILITIES: Final = ("CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP")

_ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}

_FILES: Final = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64
    fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock
    fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr getxattrat
    lchown lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat
    mknod mknodat newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead
    readlink readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir sendfile setxattr setxattrat
    splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink unlinkat utime
    utimensat utimes vmsplice write writev
"""
_EVENTS: Final = """
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd
    eventfd2 inotify_add_watch inotify_init inotify_init1 inotify_rm_watch pipe pipe2 poll ppoll pselect6 select
    signalfd signalfd4 timerfd_create timerfd_gettime timerfd_settime
    io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit
"""
_MEMORY: Final = """
    brk cachestat get_mempolicy madvise map_shadow_stack mbind membarrier memfd_create mincore mlock mlock2 mlockall
    mmap mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_madvise
    remap_file_pages set_mempolicy set_mempolicy_home_node
"""
_PROCESSES: Final = """
    arch_prctl capget capset execve execveat exit exit_group fork get_robust_list get_thread_area getcpu getegid
    geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage
    getsid gettid getuid ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self
    pause pidfd_open pidfd_send_signal prctl prlimit64 restart_syscall rseq rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp set_robust_list
    set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setpgid setpriority setregid setresgid
    setresuid setreuid setrlimit setsid setuid sigaltstack tgkill time times tkill uretprobe vfork wait4 waitid
    futex futex_requeue futex_wait futex_waitv futex_wake
"""
_SOCKETS: Final = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg
    sendto setsockopt shutdown
"""
_SYSTEM: Final = """
    alarm clock_getres clock_gettime clock_nanosleep getitimer getrandom gettimeofday nanosleep setitimer sysinfo
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime uname
"""
_IPC: Final = """
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget
    semop semtimedop shmat shmctl shmdt shmget
"""
_TRACING: Final = "kcmp process_vm_readv process_vm_writev ptrace"

_NEW_NAMESPACES: Final = 0x7E020000
_TIOCSTI: Final = 0x5412
_NO_RANDOMIZE: Final = 0x0040000
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_ICMP, _TCP, _UDP, _ICMPV6 = 1, 6, 17, 58
_PROTOCOLS: Final = {
    _INET: (0, _ICMP, _TCP, _UDP),
    _INET6: (0, _TCP, _UDP, _ICMPV6),
    _NETLINK: (0,),  # NETLINK_ROUTE: libc lists the interfaces with it
}

_MASKED: Final = """
    /proc/acpi /proc/asound /proc/bus /proc/cmdline /proc/config.gz /proc/interrupts /proc/iomem /proc/ioports
    /proc/kallsyms /proc/kcore /proc/key-users /proc/keys /proc/kmsg /proc/kpagecgroup /proc/kpagecount
    /proc/kpageflags /proc/latency_stats /proc/modules /proc/partitions /proc/pressure /proc/sched_debug
    /proc/schedstat /proc/scsi /proc/slabinfo /proc/softirqs /proc/swaps /proc/sysvipc /proc/timer_list
    /proc/timer_stats /proc/vmallocinfo /proc/zoneinfo
    /sys/devices/virtual/powercap /sys/firmware /sys/fs /sys/kernel /sys/module /sys/power
"""
MASKED_PATHS: Final = tuple(_MASKED.split())
READONLY_PATHS: Final = ("/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

Rule = dict[str, Any]


def seccomp_oci(*, ptrace: bool = False, machine: str = "") -> dict[str, Any]:
    """The `linux.seccomp` of an OCI runtime's config.json."""
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


def _rules(ptrace: bool) -> list[Rule]:
    plain = " ".join((_FILES, _EVENTS, _MEMORY, _PROCESSES, _SOCKETS, _SYSTEM, _IPC, _TRACING if ptrace else ""))
    return [
        _allow(sorted(plain.split())),
        _allow(["clone"], _masked(0, _NEW_NAMESPACES, 0)),
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        *_socket_rules(),
        *(_allow(["personality"], _masked(0, 0xFFFFFFFF, value)) for value in _personalities(ptrace)),
        *_unequal("ioctl", 1, _TIOCSTI),
    ]


def _socket_rules() -> Iterable[Rule]:
    yield _allow(["socket", "socketpair"], _equal(0, _UNIX))
    for family, protocols in _PROTOCOLS.items():
        for protocol in protocols:
            yield _allow(["socket"], _equal(0, family), _equal(2, protocol))


def _personalities(ptrace: bool) -> tuple[int, ...]:
    """Debuggers switch address randomisation off."""
    return (0, 0xFFFFFFFF, _NO_RANDOMIZE) if ptrace else (0, 0xFFFFFFFF)


def _unequal(name: str, index: int, value: int) -> Iterable[Rule]:
    """Allows every 32-bit argument but one: those that differ from it in some bit.

    One comparison for "not equal" would look at all 64 bits, and a set high bit would pass.
    """
    for bit in range(32):
        mask = 1 << bit
        yield _allow([name], _masked(index, mask, ~value & mask))


def _allow(names: Sequence[str], *conditions: Rule) -> Rule:
    rule: Rule = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    return {**rule, "args": list(conditions)} if conditions else rule


def _equal(index: int, value: int) -> Rule:
    return {"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_EQ"}


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
