"""The isolation really in force, read back from the kernel.

Nothing here trusts what a runtime was asked for. All evidence comes from the host's /proc and
/sys about the sandbox's first process; nothing inside the sandbox is opened.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warren.model.errors import IsolationUnavailable, SandboxLost
from warren.model.spec import MIB, WORKSPACE, Isolation, Layer
from warren.worker.host.cgroups import CgroupLimits

ALL_BUT_KERNEL: Final = frozenset(Layer) - {Layer.GUEST_KERNEL}

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
_CAP_NUMBERS: Final = {"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SETPCAP": 8}


@dataclass(frozen=True, slots=True)
class Mount:
    root: str
    where: str
    options: frozenset[str]
    kind: str
    source: str
    super_options: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What /proc and /sys say about one process."""

    status: Mapping[str, str]
    namespaces: Mapping[str, str]
    host_namespaces: Mapping[str, str]
    mounts: tuple[Mount, ...]
    limits: CgroupLimits
    swap_on_host: bool
    block_bytes: Callable[[str], int] = field(default=lambda _: 0)


@dataclass(frozen=True, slots=True)
class Evidence:
    layers: dict[Layer, str] = field(default_factory=dict)
    missing: dict[Layer, str] = field(default_factory=dict)

    def note(self, layer: Layer, holds: bool, evidence: str) -> None:
        (self.layers if holds else self.missing)[layer] = evidence


def gather(pid: int, limits: CgroupLimits) -> Facts:
    """Raises SandboxLost when the process is gone."""
    try:
        return Facts(
            status=parse_status(Path(f"/proc/{pid}/status").read_text()),
            namespaces=_namespaces(str(pid)),
            host_namespaces=_namespaces("self"),
            mounts=parse_mountinfo(Path(f"/proc/{pid}/mountinfo").read_text()),
            limits=limits,
            swap_on_host=len(Path("/proc/swaps").read_text().splitlines()) > 1,
            block_bytes=_block_bytes,
        )
    except (FileNotFoundError, ProcessLookupError):
        raise SandboxLost(f"the sandbox's first process ({pid}) has ended") from None


def judge(facts: Facts, *, uids: range, capabilities: Iterable[str]) -> Evidence:
    """Which layers the facts prove. `uids` are the host uids that belong to this sandbox alone."""
    found = Evidence()
    for layer, kind in _NAMESPACES.items():
        ours, theirs = facts.host_namespaces.get(kind), facts.namespaces.get(kind)
        found.note(layer, theirs is not None and ours != theirs, f"{theirs}, the host's is {ours}")
    _judge_identity(facts, found, uids, frozenset(capabilities))
    _judge_resources(facts, found)
    _judge_files(facts, found)
    found.note(Layer.GUEST_KERNEL, False, "the kernel is the host's")
    return found


def check(isolation: Isolation, required: Iterable[Layer]) -> None:
    """Raises IsolationUnavailable that names every required layer which is not in force."""
    absent = sorted(layer for layer in required if layer not in isolation)
    if absent:
        reasons = "; ".join(f"{layer}: {isolation.missing.get(layer, 'unknown to this provider')}" for layer in absent)
        raise IsolationUnavailable(
            f"{isolation.provider} with {isolation.runtime} cannot give the isolation that is required ({reasons})",
            remedy="`warren doctor` says what is missing on this machine",
        )


def _judge_identity(facts: Facts, found: Evidence, uids: range, capabilities: frozenset[str]) -> None:
    ids = [int(word) for name in ("Uid", "Gid") for word in facts.status.get(name, "0").split()]
    shown = f"uid {facts.status.get('Uid', '?').split()[0]} on the host"
    found.note(Layer.UNIQUE_UID, all(number in uids for number in ids), f"{shown}, of {uids.start} to {uids.stop - 1}")
    found.note(Layer.NO_HOST_ROOT, 0 not in ids, shown)
    allowed = sum(1 << _CAP_NUMBERS[name] for name in capabilities)
    sets = {name: int(facts.status.get(name, "ffffffffffffffff"), 16) for name in _CAPABILITY_SETS}
    evidence = ", ".join(f"{name} {value:x}" for name, value in sets.items())
    found.note(Layer.CAPABILITIES, all(value & ~allowed == 0 for value in sets.values()), evidence)
    no_new_privs, seccomp = facts.status.get("NoNewPrivs"), facts.status.get("Seccomp")
    found.note(Layer.NO_NEW_PRIVS, no_new_privs == "1", f"NoNewPrivs {no_new_privs}")
    found.note(Layer.SECCOMP, seccomp == "2", f"Seccomp {seccomp} (2 is a filter)")


def _judge_resources(facts: Facts, found: Evidence) -> None:
    limits = facts.limits
    memory = "none" if limits.memory is None else f"{limits.memory // MIB} MiB"
    found.note(Layer.MEMORY_LIMIT, limits.memory is not None, f"memory limit {memory}")
    if limits.swap is None and not facts.swap_on_host:
        found.note(Layer.SWAP_OFF, True, "the host has no swap")
    else:
        found.note(Layer.SWAP_OFF, limits.swap == 0, f"swap limit {limits.swap}")
    found.note(Layer.CPU_LIMIT, limits.cpus is not None, f"cpu limit {limits.cpus} cores")
    found.note(Layer.PIDS_LIMIT, limits.pids is not None, f"at most {limits.pids} processes")


def _judge_files(facts: Facts, found: Evidence) -> None:
    root = _mounted_at(facts.mounts, "/")
    found.note(Layer.READ_ONLY_ROOT, root is not None and "ro" in root.options, f"/ is {_options(root)}")
    disk = _mounted_at(facts.mounts, WORKSPACE)
    size = 0 if disk is None else _size(disk, facts.block_bytes)
    kind = "no disk of its own" if disk is None else f"{disk.kind} on {disk.source}, {size // MIB} MiB"
    found.note(Layer.DISK_LIMIT, size > 0, f"{WORKSPACE}: {kind}")


def _mounted_at(mounts: Iterable[Mount], where: str) -> Mount | None:
    """The topmost one: later mounts hide earlier ones."""
    return next((mount for mount in reversed(tuple(mounts)) if mount.where == where), None)


def _options(mount: Mount | None) -> str:
    return "not mounted" if mount is None else ",".join(sorted(mount.options))


def _size(mount: Mount, block_bytes: Callable[[str], int]) -> int:
    """The bytes this mount can hold at most; 0 if it is not a file system of its own."""
    if mount.kind == "tmpfs":
        sizes = [word[5:] for word in mount.super_options.split(",") if word.startswith("size=")]
        return int(sizes[0].rstrip("k")) * 1024 if sizes and sizes[0].endswith("k") else 0
    return block_bytes(mount.source) if mount.source.startswith("/dev/loop") else 0


def _block_bytes(device: str) -> int:
    try:
        return int(Path(f"/sys/block/{device.removeprefix('/dev/')}/size").read_text()) * 512
    except (OSError, ValueError):
        return 0


def _namespaces(pid: str) -> dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in _NAMESPACES.values()}


def parse_status(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    return tuple(_parse_mount(line) for line in text.splitlines() if " - " in line)


def _parse_mount(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    words, (kind, source, super_options) = before.split(" "), after.split(" ", 2)
    return Mount(words[3], words[4], frozenset(words[5].split(",")), kind, source, super_options)
