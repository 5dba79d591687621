"""The isolation really in force: what the kernel reports (process_facts.py), compared with what was asked for.

Nothing here trusts that a runtime did what it was asked. `Wanted` holds the values that a provider asked for, taken
from the same constants, so that a change there is checked here at once.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warren.model.errors import IsolationUnavailable
from warren.model.spec import MIB, WORKSPACE, Isolation, Layer
from warren.sandboxes.host.disk_room import DISK_POINT
from warren.sandboxes.host.process_facts import Facts, Mount, ext4_room, gather
from warren.sandboxes.host.seccomp_program import SystemCallFilter
from warren.sandboxes.host.volumes import volume_on

__all__ = ["GROWING", "PROMISED", "UNREADABLE", "Evidence", "Wanted", "capability_mask", "check", "gather", "judge"]

# A v1 kernel without a limit of socket buffers still makes good sandboxes; the worker's log and the doctor report it.
PROMISED: Final = frozenset(Layer) - {Layer.GUEST_KERNEL, Layer.SOCKET_LIMIT}

GROWING: Final = frozenset(
    {
        Layer.SYSTEM_CALLS,
        Layer.MASKED_PATHS,
        Layer.MOUNT_FLAGS,
        Layer.LOOPBACK_ONLY,
        Layer.NO_NETWORK,
        Layer.SOCKET_LIMIT,
        Layer.RLIMITS,
        Layer.INODE_LIMIT,
        Layer.NO_HOST_FILES,
    }
)
"""Layers that may differ from what is wanted now: a later version may want more than an older version's sandbox has,
and the network may have been opened since.
"""

UNREADABLE: Final = "this machine does not let it be read: "

_NAMESPACES: Final = {
    Layer.USER_NAMESPACE: "user",
    Layer.PID_NAMESPACE: "pid",
    Layer.MOUNT_NAMESPACE: "mnt",
    Layer.NETWORK_NAMESPACE: "net",
    Layer.IPC_NAMESPACE: "ipc",
    Layer.UTS_NAMESPACE: "uts",
    Layer.CGROUP_NAMESPACE: "cgroup",
}
_CAPABILITY_SETS: Final = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_CAP_NUMBERS: Final = {
    **{"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6},
    **{"CAP_SETUID": 7, "CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10},
}
_CPU_SLACK: Final = 0.001
_CORE: Final = "Max core file size"

# File systems of the kernel itself: nobody can store a file in them.
_PSEUDO: Final = frozenset({"proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2"})
_SHOWS_THE_HOST: Final = frozenset({"proc", "sysfs"})
_MACHINE: Final = frozenset({"sysfs", "cgroup", "cgroup2"})
# Kernel modules make these in every new network namespace. They are down, and nobody inside may bring them up.
_UNUSED_TUNNELS: Final = frozenset(
    {"tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}
)
_BYTES_PER_INODE: Final = 4096


@dataclass(frozen=True, slots=True)
class Wanted:
    """The isolation that a sandbox should have.

    `uids` are the host uids that belong to it alone. `memory` and `disk` are in bytes. `sockets_apart`: socket buffers
    do not count as memory (cgroup v1). `rlimits` are the highest values by the name in /proc/PID/limits.
    `shown_of_proc` are the names at the top of /proc that may be seen there; `masked` are other paths that may not.
    `closed` are writable mounts that no command can write to, because only the agent may enter them. `writable_root`:
    the root should be writable. `volumes`: the directory with the images of named volumes, which a sandbox may have.
    """

    uids: range
    capabilities: frozenset[str]
    memory: int
    sockets_apart: bool
    cpus: float
    pids: int
    disk: int
    rlimits: Mapping[str, int]
    shown_of_proc: frozenset[str]
    masked: tuple[str, ...]
    read_only: tuple[str, ...]
    system_calls: SystemCallFilter
    program: str
    closed: frozenset[str] = frozenset()
    volumes: Path | None = None
    writable_root: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    layers: dict[Layer, str] = field(default_factory=dict)
    missing: dict[Layer, str] = field(default_factory=dict)

    def note(self, layer: Layer, holds: bool, evidence: str) -> None:
        (self.layers if holds else self.missing)[layer] = evidence

    def note_faults(self, layer: Layer, faults: Iterable[str], evidence: str) -> None:
        """Notes that the layer holds if there are no faults; otherwise the first faults are the reason."""
        found = list(faults)
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        self.note(layer, not found, "; ".join(found[:3]) + more if found else evidence)


def judge(facts: Facts, wanted: Wanted) -> Evidence:
    """Returns which layers the facts prove, each with its evidence."""
    found = Evidence()
    for layer, kind in _NAMESPACES.items():
        ours, theirs = facts.host_namespaces.get(kind), facts.namespaces.get(kind)
        found.note(layer, theirs is not None and ours != theirs, f"{theirs}, the host's is {ours}")
    _judge_identity(facts, found, wanted)
    _judge_system_calls(facts, found, wanted)
    _judge_resources(facts, found, wanted)
    _judge_rlimits(facts, found, wanted)
    _judge_disk(facts, found, wanted)
    _judge_mounts(facts, found, wanted)
    _judge_handles(facts, found, wanted)
    _judge_network(facts, found)
    found.note(Layer.GUEST_KERNEL, False, "the kernel is the host's")
    return found


def check(isolation: Isolation, required: Iterable[Layer], promised: Iterable[Layer] = ()) -> None:
    """Raises IsolationUnavailable, with every layer that is not in force.

    A promised layer may be absent if this machine does not let anybody read it; a layer that the caller requires may
    not.
    """
    absent = {layer for layer in required if layer not in isolation}
    absent |= {layer for layer in promised if layer not in isolation and not _is_unreadable(isolation, layer)}
    if absent:
        reasons = "; ".join(
            f"{layer}: {isolation.missing.get(layer, 'unknown to this provider')}" for layer in sorted(absent)
        )
        raise IsolationUnavailable(
            f"{isolation.provider} with {isolation.runtime} cannot give the isolation that is required ({reasons})",
            remedy="`warren doctor` says what is missing on this machine",
        )


def capability_mask(names: Iterable[str]) -> int:
    return sum(1 << _CAP_NUMBERS[name] for name in names)


def _is_unreadable(isolation: Isolation, layer: Layer) -> bool:
    return isolation.missing.get(layer, "").startswith(UNREADABLE)


def _judge_identity(facts: Facts, found: Evidence, wanted: Wanted) -> None:
    uids = wanted.uids
    ids = [int(word) for name in ("Uid", "Gid") for word in facts.status.get(name, "0").split()]
    ids += [int(word) for word in facts.status.get("Groups", "").split()]
    shown = f"uid {facts.status.get('Uid', '?').split()[0]} on the host"
    found.note(Layer.UNIQUE_UID, all(number in uids for number in ids), f"{shown}, of {uids.start} to {uids.stop - 1}")
    found.note(Layer.NO_HOST_ROOT, 0 not in ids, shown)
    allowed = capability_mask(wanted.capabilities)
    sets = {name: int(facts.status.get(name, "ffffffffffffffff"), 16) for name in _CAPABILITY_SETS}
    evidence = ", ".join(f"{name} {value:x}" for name, value in sets.items())
    found.note(Layer.CAPABILITIES, all(value & ~allowed == 0 for value in sets.values()), evidence)
    no_new_privs, seccomp = facts.status.get("NoNewPrivs"), facts.status.get("Seccomp")
    found.note(Layer.NO_NEW_PRIVS, no_new_privs == "1", f"NoNewPrivs {no_new_privs}")
    found.note(Layer.SECCOMP, seccomp == "2", f"Seccomp {seccomp} (2 is a filter)")


def _judge_system_calls(facts: Facts, found: Evidence, wanted: Wanted) -> None:
    if facts.why_no_programs:
        found.note(Layer.SYSTEM_CALLS, False, UNREADABLE + facts.why_no_programs)
        return
    if not facts.programs:
        found.note(Layer.SYSTEM_CALLS, False, "no filter is loaded")
        return
    digest, excess = wanted.system_calls.excess(facts.programs)
    instructions = sum(len(program) // 8 for program in facts.programs)
    shown = f"the loaded filter ({instructions} instructions, {digest[:16]})"
    found.note(Layer.SYSTEM_CALLS, not excess, f"{shown}: {excess or 'it allows nothing beyond the list'}")


def _judge_resources(facts: Facts, found: Evidence, wanted: Wanted) -> None:
    limits = facts.limits
    memory = "none" if limits.memory is None else f"{limits.memory // MIB} MiB"
    shown = f"memory limit {memory}, of {wanted.memory // MIB} MiB"
    found.note(Layer.MEMORY_LIMIT, limits.memory is not None and limits.memory <= wanted.memory, shown)
    if limits.swap is None and not facts.swap_on_host:
        found.note(Layer.SWAP_OFF, True, "the host has no swap")
    else:
        found.note(Layer.SWAP_OFF, limits.swap == 0, f"swap limit {limits.swap}")
    if wanted.sockets_apart:
        in_bounds = limits.sockets is not None and limits.sockets <= wanted.memory
        found.note(Layer.SOCKET_LIMIT, in_bounds, f"buffers of sockets: at most {limits.sockets} bytes")
    else:
        bound = ", the number of UDP sockets is limited" if limits.bounds_datagrams else ""
        found.note(Layer.SOCKET_LIMIT, limits.memory is not None, f"buffers of sockets count as memory{bound}")
    in_bounds = limits.cpus is not None and limits.cpus <= wanted.cpus + _CPU_SLACK
    found.note(Layer.CPU_LIMIT, in_bounds, f"cpu limit {limits.cpus} cores, of {wanted.cpus}")
    in_bounds = limits.pids is not None and limits.pids <= wanted.pids
    found.note(Layer.PIDS_LIMIT, in_bounds, f"at most {limits.pids} processes, of {wanted.pids}")


def _judge_rlimits(facts: Facts, found: Evidence, wanted: Wanted) -> None:
    shown = ", ".join(
        f"{name.removeprefix('Max ')} {facts.rlimits.get(name, ('?', '?'))[1]}" for name in wanted.rlimits
    )
    found.note_faults(Layer.RLIMITS, _rlimit_faults(facts, wanted), shown)


def _rlimit_faults(facts: Facts, wanted: Wanted) -> Iterable[str]:
    for name, most in wanted.rlimits.items():
        soft, hard = facts.rlimits.get(name, (None, None))
        if soft is None or hard is None or max(soft, hard) > most:
            yield f"{name.removeprefix('Max ')} is {hard}, not {most}"
    # With a limit of 0 the kernel still starts the helper of a piped core pattern; only 1 prevents it.
    if facts.core_pipe and facts.rlimits.get(_CORE, (0, 0))[0] != 1:
        yield "a crash starts the host's core pattern: the core file size is not 1"


def _judge_disk(facts: Facts, found: Evidence, wanted: Wanted) -> None:
    known = _known_volumes(facts, wanted)
    volumes = {mount.where: known[mount.source] for mount in facts.mounts.visible if _is_volume(mount, known)}
    disk = _mounted_at(facts, DISK_POINT) or _below_volume(facts, WORKSPACE, known)
    size, inodes = (0, 0) if disk is None else _disk_size(disk)
    where = WORKSPACE if disk is None else disk.where
    shown = "no disk of its own" if disk is None else f"{disk.kind} on {disk.source}, {size // MIB} MiB"
    faults = list(_unlimited(facts, wanted, disk, volumes))
    if not 0 < size <= wanted.disk:
        faults.insert(0, f"{where}: {shown}, of {wanted.disk // MIB} MiB")
    shared = "".join(f"; {where} is the volume {name}" for where, name in volumes.items())
    found.note_faults(
        Layer.DISK_LIMIT, faults, f"{where}: {shown}{shared}; nothing else can be written without a limit"
    )
    found.note(Layer.INODE_LIMIT, 0 < inodes <= size // _BYTES_PER_INODE, f"{where}: {inodes} inodes")


def _mounted_at(facts: Facts, path: str) -> Mount | None:
    mount = facts.mounts.showing(path)
    return mount if mount is not None and mount.where == path else None


def _below_volume(facts: Facts, path: str, volumes: Mapping[str, str]) -> Mount | None:
    """Returns what is mounted at the path below any volume."""
    found = [mount for mount in facts.mounts.mounts if mount.where == path and not _is_volume(mount, volumes)]
    return found[-1] if found else None


def _known_volumes(facts: Facts, wanted: Wanted) -> Mapping[str, str]:
    """Returns the ids of the volumes by the devices that have them. A sandbox's disk is at ten places, and is looked at
    once."""
    if wanted.volumes is None:
        return {}
    devices = {mount.source for mount in facts.mounts.mounts if mount.kind == "ext4"}
    minors = {device: device.removeprefix("/dev/loop") for device in devices if device.startswith("/dev/loop")}
    found = {device: volume_on(int(minor), wanted.volumes) for device, minor in minors.items()}
    return {device: name for device, name in found.items() if name}


def _is_volume(mount: Mount, volumes: Mapping[str, str]) -> bool:
    """Whether a volume is mounted, with the flags that every one has."""
    return mount.kind == "ext4" and mount.source in volumes and {"nosuid", "nodev"} <= mount.options


def _disk_size(disk: Mount) -> tuple[int, int]:
    """Returns the bytes and inodes that a mount can hold at most; zeros if it is no file system of its own."""
    if disk.kind == "tmpfs":
        return _tmpfs_size(disk)
    return ext4_room(disk.source) if disk.kind == "ext4" and disk.source.startswith("/dev/loop") else (0, 0)


def _tmpfs_size(mount: Mount) -> tuple[int, int]:
    """Returns the size and inodes of a tmpfs. 0 means no limit, as in the kernel."""
    size, inodes = mount.option("size") or "", mount.option("nr_inodes") or ""
    kib = int(size[:-1]) if size.endswith("k") and size[:-1].isdigit() else 0
    return kib * 1024, int(inodes) if inodes.isdigit() else 0


def _unlimited(facts: Facts, wanted: Wanted, disk: Mount | None, volumes: Collection[str]) -> Iterable[str]:
    """Yields the places where a command could write more than it may."""
    for mount in facts.mounts.visible:
        if "ro" in mount.options or mount.kind in _PSEUDO or mount.where in (*wanted.closed, *volumes):
            continue
        if disk is not None and mount.source == disk.source and mount.kind == disk.kind:
            continue
        if disk is not None and mount.kind == "overlay" and _is_on(facts, mount, disk):
            continue
        if mount.kind == "tmpfs" and (all(_tmpfs_size(mount)) or not _open_to(mount, wanted.uids)):
            continue
        yield f"{mount.where} can be written without a limit ({mount.kind})"


def _is_on(facts: Facts, overlay: Mount, disk: Mount) -> bool:
    """Returns whether writes to an overlay go to the disk, and cannot use the disk's reserve: the kernel writes as the
    host's root, who owns a reserve unless another user is named."""
    room = facts.rooms.get(overlay.where)
    reserved = disk.kind != "ext4" or disk.option("resuid") not in (None, "0")
    return room is not None and room == facts.rooms.get(disk.where) and reserved


def _open_to(mount: Mount, uids: range) -> bool:
    """Returns whether a uid of the sandbox may write to the top of a tmpfs."""
    mode = int(mount.option("mode") or "1777", 8)
    return bool(mode & 0o002) or int(mount.option("uid") or 0) in uids or int(mount.option("gid") or 0) in uids


def _judge_mounts(facts: Facts, found: Evidence, wanted: Wanted) -> None:
    table = facts.mounts
    root = table.showing("/")
    shown = "not mounted" if root is None else ",".join(sorted(root.options))
    wish = "; the sandbox was asked for with a writable root" if wanted.writable_root else ""
    found.note(Layer.READ_ONLY_ROOT, root is not None and "ro" in root.options, f"/ is {shown}{wish}")
    hidden = [f"/proc/{name}" for name in sorted(facts.top_of_proc - wanted.shown_of_proc)]
    bare = [path for path in hidden if _shows_host(table.showing(path)) is not None]
    bare += [path for path in wanted.masked if _shows_host(table.showing(path)) is not None and os.path.lexists(path)]
    faults = [f"{path} is not masked" for path in bare]
    faults += [f"{path} can be written" for path in wanted.read_only if _is_writable(facts, path)]
    faults += [f"{mount.where} shows the host ({mount.kind})" for mount in table.visible if mount.kind in _MACHINE]
    shown = f"{len(hidden) + len(wanted.masked)} paths are masked or not there, nothing shows /sys or cgroups"
    found.note_faults(Layer.MASKED_PATHS, faults, shown)
    count = len(table.mounts)
    found.note_faults(
        Layer.MOUNT_FLAGS,
        _flag_faults(facts),
        f"nosuid and nodev on all of {count} mounts but the kernel's own, masks and /dev",
    )


def _shows_host(mount: Mount | None) -> Mount | None:
    """Returns the mount if it shows the host's /proc or /sys."""
    return mount if mount is not None and mount.kind in _SHOWS_THE_HOST else None


def _is_writable(facts: Facts, path: str) -> bool:
    mount = _shows_host(facts.mounts.showing(path))
    return mount is not None and "ro" not in mount.options and os.path.lexists(path)


def _flag_faults(facts: Facts) -> Iterable[str]:
    for mount in facts.mounts.visible:
        if "nosuid" in mount.options and "nodev" in mount.options:
            continue
        mask = mount.where.startswith(("/proc/", "/sys")) and ("ro" in mount.options or mount.root == "/null")
        if mount.kind in _PSEUDO or mask:
            continue
        needed = {"nosuid"} if mount.where == "/dev" or mount.where.startswith("/dev/") else {"nosuid", "nodev"}
        if lacking := needed - mount.options:
            yield f"{mount.where} lacks {' and '.join(sorted(lacking))}"


def _judge_handles(facts: Facts, found: Evidence, wanted: Wanted) -> None:
    """Judges descriptors, root and working directory: a single one of the host's would lead out of the sandbox."""
    faults = [f"a descriptor leads to {link}" for link, mount in facts.descriptors if mount not in facts.mounts.ids]
    if facts.root == facts.host_root:
        faults.append("its root is the host's")
    if facts.cwd != facts.root:
        faults.append("its working directory is not its root")
    if facts.program != wanted.program:
        faults.append(f"it runs {facts.program}")
    shown = f"{wanted.program} at / of its own, {facts.descriptor_count} descriptors, none of a file outside"
    found.note_faults(Layer.NO_HOST_FILES, faults, shown)


def _judge_network(facts: Facts, found: Evidence) -> None:
    others = facts.interfaces - {"lo"} - _UNUSED_TUNNELS
    faults = [f"there is an interface {name}" for name in sorted(others)]
    faults += [f"a route goes through {name}" for name in sorted(facts.routed - {"lo"})]
    found.note_faults(Layer.LOOPBACK_ONLY, faults, f"interfaces: {', '.join(sorted(facts.interfaces)) or 'none'}")
    if facts.is_led_out:
        faults.append("its connections are led outside, through a worker's proxy")
    found.note_faults(Layer.NO_NETWORK, faults, "loopback only, and no rule of a session opens more")
