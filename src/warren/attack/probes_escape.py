"""Ways out of the sandbox, and system calls that have no business in it."""

import os
from pathlib import Path

from warren.attack.arena import Arena
from warren.attack.host_view import NAMESPACES
from warren.attack.probe import Group, Probe, ProbeResult, judged, not_applicable, within
from warren.model.operations import Command
from warren.model.spec import Layer

_E, _K = Group.ESCAPE, Group.KERNEL
_VSOCK, _ALG, _PACKET = 40, 38, 17
_LEAST_UID = 100_000


async def _namespaces(arena: Arena) -> ProbeResult:
    ours = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES}
    theirs, others = arena.host.namespaces(), arena.neighbour_host.namespaces()
    shared = [kind for kind in NAMESPACES if kind != "user" and theirs[kind] in (ours[kind], others[kind])]
    return judged(not shared, f"shared with the host or the neighbour: {', '.join(shared) or 'none'}")


async def _user_namespace(arena: Arena) -> ProbeResult:
    ours, theirs = os.readlink("/proc/self/ns/user"), arena.host.namespaces()["user"]
    if ours == theirs and Layer.USER_NAMESPACE in arena.sandbox.isolation.missing:
        return not_applicable(f"the provider {arena.provider.name} has none for each sandbox, and says so itself")
    return judged(theirs not in (ours, arena.neighbour_host.namespaces()["user"]), f"{theirs}, the host's is {ours}")


async def _uids(arena: Arena) -> ProbeResult:
    first = [int(word) for word in arena.host.status("Uid").split()]
    mine, other = (
        {arena.host.uid, *first},
        {arena.neighbour_host.uid, int(arena.neighbour_host.status("Uid").split()[0])},
    )
    evidence = f"on the host: agent {first[0]}, user {arena.host.uid}; the neighbour's user {arena.neighbour_host.uid}"
    return judged(min(mine) >= _LEAST_UID and not mine & other and arena.host.uid not in first, evidence)


async def _leaked_descriptors(arena: Arena) -> ProbeResult:
    """CVE-2024-21626: a descriptor of the host's tree left open in the first process is a way out."""
    names = arena.host.descriptors()
    paths = [name for name in names if name.startswith("/") and not name.startswith(("/dev/null", "/dev/pts"))]
    return judged(not paths, f"PID 1 holds {len(names)} descriptors; of files: {', '.join(paths) or 'none'}")


async def _host_programs(arena: Arena) -> ProbeResult:
    """CVE-2019-5736: overwrite the runtime, or our agent, through /proc/1/exe."""
    exe = Path(f"/proc/{arena.host.first_pid}/exe")
    before = exe.read_bytes()
    outcome = await arena.inside("agent:write_proc", who="agent")
    line = "for p in /proc/1/exe /.warren/agent; do echo x >> $p || echo x > $p; done"
    result = await arena.sandbox.exec(Command(shell=line, timeout_s=10))
    same = exe.read_bytes() == before
    return judged(
        same and result.exit_code != 0, f"the agent's file is {'unchanged' if same else 'CHANGED'}; {outcome.evidence}"
    )


def _refused(id: str, tries: str, *calls: tuple[str, list[int]]) -> Probe:
    return within(id, _K, tries, "kernel:refused", calls=[list(call) for call in calls])


PROBES: tuple[Probe, ...] = (
    Probe("namespaces", _E, "share a namespace with the host or the neighbour (seen from the host)", _namespaces),
    Probe("user-namespace", _E, "share the user namespace of host or neighbour (seen from the host)", _user_namespace),
    Probe("unique-uid", _E, "run as root or as the neighbour's uid on the host (seen from the host)", _uids),
    Probe(
        "leaked-descriptors",
        _E,
        "find a descriptor of the host in PID 1 (CVE-2024-21626; from the host)",
        _leaked_descriptors,
    ),
    Probe(
        "overwrite-runtime",
        _E,
        "overwrite the runtime or the agent through /proc/1/exe (CVE-2019-5736)",
        _host_programs,
    ),
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
