"""The probes that need nothing but a process in the sandbox: it sees by itself whether what it tries is refused."""

from typing import Final

from warren_attack.probe import Group, Inside, Probe, within

_E, _K, _L, _N = Group.ESCAPE, Group.KERNEL, Group.LEAKS, Group.NETWORK
_VSOCK, _ALG, _PACKET = 40, 38, 17
_METADATA = ("169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200")


def _refused(id: str, tries: str, *calls: tuple[str, list[int]]) -> Probe[Inside]:
    return within(id, _K, tries, "kernel:refused", calls=[list(call) for call in calls])


ESCAPE: Final = (
    within("unshare", _E, "unshare each kind of namespace", "escape:unshare_namespaces"),
    within("clone", _E, "clone into each kind of namespace, also with stray high bits", "escape:clone_namespaces"),
    within("clone3", _E, "clone3 into each kind of namespace", "escape:clone3_namespaces"),
    within("setns", _E, "enter the namespaces of PID 1", "escape:enter_namespaces"),
    within("mount", _E, "mount ten kinds of file systems, bind /proc", "escape:mount_filesystems"),
    within("remount-rw", _E, "make read-only mounts writable", "escape:remount_writable"),
    within("new-mount-api", _E, "fsopen, open_tree, move_mount, fspick, fsmount, fsconfig", "escape:new_mount_calls"),
    within("umount", _E, "take masks and mounts away", "escape:unmount"),
    within("chroot", _E, "chroot and pivot_root", "escape:change_root"),
    within("write-system", _E, "write to /, /usr, /etc, replace system files", "escape:write_system_files"),
    within("mknod", _E, "make device nodes in every writable place", "escape:make_devices"),
    within("become-root", _E, "become root or another user", "escape:become_root"),
    within("capabilities", _E, "have or gain a capability in any of the five sets", "escape:capability_sets"),
    within("no-new-privs", _E, "run without no_new_privs", "escape:no_new_privileges"),
    within("setuid", _E, "gain rights by the image's setuid programs", "escape:setuid_programs"),
)
KERNEL: Final = (
    within("seccomp", _K, "run without a filter of system calls", "escape:seccomp_filter"),
    within("io-uring", _K, "io_uring", "kernel:io_uring"),
    within("userfaultfd", _K, "userfaultfd, by call and by device", "kernel:user_faults"),
    within("bpf", _K, "load a map or program into the kernel", "kernel:bpf"),
    within("perf", _K, "count and sample events of the kernel", "kernel:perf_events"),
    within("keyrings", _K, "use the kernel's keyrings", "kernel:keyrings"),
    within("clock", _K, "set or bend the clock", "kernel:set_clock"),
    within("file-handles", _K, "open a file of the host's disk by its inode number", "kernel:file_handles"),
    within("personality", _K, "change the personality", "kernel:personality"),
    within("unknown-calls", _K, "call numbers that this or a later kernel may know", "kernel:unknown_calls"),
    within("other-abi", _K, "32-bit system calls", "kernel:other_abi"),
    within("tiocsti", _K, "push input into a terminal (TIOCSTI, TIOCLINUX)", "kernel:push_terminal_input"),
    within("line-disciplines", _K, "give a terminal another line discipline", "kernel:line_disciplines"),
    within("vsock", _K, "AF_VSOCK: speak with the hypervisor", "kernel:one_family", family=_VSOCK),
    within("af-alg", _K, "AF_ALG: the kernel's cryptography (CVE-2026-31431)", "kernel:one_family", family=_ALG),
    within("af-packet", _K, "AF_PACKET: raw frames", "kernel:one_family", family=_PACKET),
    within("raw-sockets", _K, "raw IP sockets", "kernel:raw_sockets"),
    within("socket-families", _K, "every other socket family there is", "kernel:socket_families"),
    within("rare-protocols", _K, "SCTP, DCCP, MPTCP …, netlink beyond routes", "kernel:rare_protocols"),
    _refused(
        "kexec", "load another kernel", ("kexec_load", [0, 1 << 40, 0, 0]), ("kexec_file_load", [-1, -1, 0, 0, 1 << 30])
    ),
    _refused(
        *("modules", "load or remove kernel modules", ("init_module", [0, 0, 0])),
        *(("finit_module", [-1, 0, 1 << 30]), ("delete_module", [0, 0])),
    ),
    _refused("swap", "add or remove swap", ("swapon", [0, 0]), ("swapoff", [0])),
    _refused("reboot", "restart the machine", ("reboot", [0, 0, 0, 0])),
    _refused("fanotify", "watch whole file systems", ("fanotify_init", [0, 0]), ("fanotify_init", [0x200, 0])),
    _refused("memfd-secret", "hide memory from the kernel", ("memfd_secret", [0])),
    _refused("quota", "manage quotas", ("quotactl", [0x800007 << 8, 0, 0, 0]), ("quotactl_fd", [-1, 0, 0, 0])),
    _refused(
        *("names", "change host and domain name, accounting, terminals", ("sethostname", [0, 1 << 20])),
        *(("setdomainname", [0, 1 << 20]), ("acct", [0]), ("vhangup", [])),
    ),
    _refused(
        *("other-memory", "move or free other processes' pages", ("move_pages", [1, 0, 0, 0, 0, 0])),
        *(("migrate_pages", [1, 0, 0, 0]), ("process_mrelease", [-1, 0])),
    ),
    _refused("mount-facts", "ask for all mounts", ("statmount", [0, 0, 0, 0]), ("listmount", [0, 0, 0, 0])),
    _refused("ports", "reach the machine's ports", ("iopl", [3]), ("ioperm", [0, 1, 1]), ("modify_ldt", [17, 0, 0])),
)
COMMANDS: Final = (
    within("ptrace-command", Group.AGENT, "trace another command of the same user", "agent:trace_another_command"),
    within("inherited-fds", Group.AGENT, "find a descriptor that is not our own", "agent:inherited_descriptors"),
)
LEAKS: Final = (
    within("sysctl", _L, "write any of /proc/sys (core_pattern, modprobe …) and sysrq", "leaks:write_sysctl"),
    within("proc-files", _L, "write any other file of /proc", "leaks:write_proc"),
    within("kernel-secrets", _L, "read kcore, kallsyms, keys, timer_list, iomem …", "leaks:read_kernel_secrets"),
    within("proc-top", _L, "read anything at the top of /proc that programs do not need", "leaks:top_of_proc"),
    within("kernel-log", _L, "read the kernel's log", "leaks:kernel_log"),
    within("sys", _L, "write to /sys, or read of the host in it", "leaks:sys_tree"),
    within("cgroup", _L, "see or write the cgroup tree, release_agent", "leaks:cgroup_tree"),
    within("private-files", _L, "read /etc/shadow, root's files, host keys", "leaks:private_files"),
    within(
        *("page-cache", _L, "evict pages of the image, and look whether others read them"),
        "kernel_state:evict_shared_pages",
    ),
)
NETWORK: Final = (
    within("interfaces", _N, "find an interface besides lo", "network:interfaces"),
    within("routes", _N, "find a route", "network:routes"),
    within(
        "metadata", _N, "reach the cloud's metadata service", "network:connect", targets=[[h, 80] for h in _METADATA]
    ),
    within(
        *("link-local", _N, "reach link-local, private and multicast addresses", "network:connect"),
        targets=[[host, 80] for host in ("169.254.1.1", "fe80::1", "192.0.2.1", "10.0.0.1", "224.0.0.251")],
    ),
    within("dns", _N, "ask a name server", "network:resolve"),
    within("reconfigure", _N, "add interfaces, addresses, routes", "network:reconfigure"),
    within("bind-outside", _N, "bind addresses of other networks", "network:bind_outside"),
)
LIMITS: Final = (
    within("raise-limits", Group.LIMITS, "raise our own limits, priority, scheduling", "limits:raise_limits"),
    within("lock-memory", Group.LIMITS, "lock 64 MiB of memory", "limits:lock_memory", mib=64),
    within("core-dump", Group.LIMITS, "dump a core", "limits:dump_core"),
    within("core-limit", Group.LIMITS, "make a crash start the host's core handler", "kernel_state:change_core_limit"),
    within("native-aio", Group.LIMITS, "take the machine's asynchronous operations", "kernel_state:native_aio"),
    within("huge-memory", Group.LIMITS, "have huge pages by mmap, memfd or shmget", "kernel_state:huge_pages"),
    within(
        *("kernel-programs", Group.LIMITS, "make the kernel compile filters of sockets and calls"),
        "kernel_state:kernel_programs",
    ),
    within(
        *("kept-for-sockets", Group.LIMITS, "make the kernel keep group memberships, flow labels and keys of sockets"),
        "kernel_state:kept_for_sockets",
    ),
    within("unowned-locks", Group.LIMITS, "take locks that have no owner", "kernel_state:unowned_locks"),
)
PROBES: Final[tuple[Probe[Inside], ...]] = (*ESCAPE, *KERNEL, *COMMANDS, *LEAKS, *NETWORK, *LIMITS)
NOT_AS_ROOT: Final = frozenset({"write-system", "become-root", "private-files"})
"""What root may do in its own sandbox."""
