"""The container of a sandbox in the terms of the engine's API, and the files of /etc it gets. Pure.

The hardening is that of the oci provider, with two differences. There is no user namespace per container: the sandbox
has a user uid and an agent uid of its own on the host instead, and its first process, which the engine starts as root
with four capabilities, becomes the agent uid for good. And Docker's own ways in (exec, archive, logs, health checks,
volumes of the image) are closed or unused.

The only paths of the host in it are Warren's own: the sandbox's disk, its terminals, and where its agent listens.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from warren.model.errors import InvalidRequest
from warren.model.image import NO_CONFIG, ImageConfig
from warren.model.spec import AGENT_PROGRAM, HOME, MIB, RUNNERS, SEARCH_PATH, USER, USER_UID, Limits, SandboxSpec
from warren.sandboxes.providers.hardening import (
    AGENT_CAPABILITIES,
    CORE_LIMIT,
    MEMLOCK_BYTES,
    MESSAGE_QUEUE_BYTES,
    PENDING_SIGNALS,
    READONLY_PATHS,
    ipc_sysctls,
    masked_paths,
    seccomp_docker,
)
from warren.sandboxes.providers.image_defaults import default_directory
from warren.sandboxes.providers.oci_bundle import CPU_PERIOD_US, PIDS_RESERVE, VIEW, disk_directories, shm_bytes

RUN: Final = "/.warren/run"
SOCKET: Final = f"{RUN}/agent.sock"
SYSTEM: Final = "system"
SANDBOX_LABEL: Final = "warren.sandbox"
STATE_LABEL: Final = "warren.state"
AGENT_UID: Final = 999

_TTY_GID: Final = 5
_NOBODY: Final = 65534
_HOSTS: Final = "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback sandbox\n"
_OURS: Final = tuple(PurePosixPath(path) for path in ("/.warren", "/etc", "/proc", "/sys", "/dev"))

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EngineImage:
    """`volumes`: where the image wants a volume. Docker would make one on the host's disk, without a limit. `config`:
    what the image says of itself; its user does not count, because a sandbox has a uid of its own on the host."""

    id: str
    volumes: tuple[str, ...] = ()
    config: ImageConfig = NO_CONFIG


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """The directories of the host that a sandbox's container mounts. `places`: the disk, as its writable places see it.

    The agent, the runners, the files of /etc and those of /proc are on the sandbox's own disk: two sandboxes could
    signal each other through the locks of a shared file, and the mount table would show where it is.
    """

    disk: Path
    places: Path
    run: Path
    pts: Path


def container(
    spec: SandboxSpec,
    image: EngineImage,
    place: SandboxPaths,
    *,
    sandbox_id: str,
    state_id: str,
    uid_base: int,
    hard_limits: Mapping[str, int],
    top_of_proc: frozenset[str],
    cgroup_parent: str = "",
    machine: str = "",
) -> Json:
    """`hard_limits`: rlimits that cannot be raised here, by Docker's names; no ulimit goes above them.
    `top_of_proc`: the names there.
    `cgroup_parent`: the cgroup above all sandboxes'; the engine's own if empty."""
    return {
        "Image": image.id,
        "Entrypoint": agent_argv(spec, uid_base, image.config),
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Env": [f"PATH={SEARCH_PATH}"],
        "Labels": {SANDBOX_LABEL: sandbox_id, STATE_LABEL: state_id},
        "Healthcheck": {"Test": ["NONE"]},
        "NetworkDisabled": True,
        "AttachStdout": False,
        "AttachStderr": False,
        "HostConfig": {
            **_host_config(spec, image, place, hard_limits, top_of_proc, machine),
            **({"CgroupParent": cgroup_parent} if cgroup_parent else {}),
        },
    }


def device_request(ids: Sequence[str], cdi: Sequence[str]) -> Json:
    """Returns the request for graphics processors: by their names in CDI files, or else for the vendor's runtime, which
    knows them by number."""
    if cdi:
        return {"Driver": "cdi", "DeviceIDs": list(cdi)}
    return {"Driver": "nvidia", "DeviceIDs": list(ids), "Capabilities": [["gpu", "compute", "utility"]]}


def container_name(sandbox_id: str) -> str:
    return f"warren-{sandbox_id}"


def agent_argv(spec: SandboxSpec, uid_base: int, image: ImageConfig = NO_CONFIG) -> list[str]:
    user = str(uid_base + USER_UID)
    return [
        *(AGENT_PROGRAM, "--socket", SOCKET, "--become", str(uid_base + AGENT_UID)),
        *("--user", user, "--uids", f"{user}-{user}", "--nproc", str(spec.limits.pids)),
        *(["--ephemeral"] if spec.ephemeral else []),
        *(["--workspace", directory] if (directory := default_directory(image)) else []),
    ]


def etc_files(uid_base: int) -> dict[str, str]:
    """The sandbox's own files of /etc: no image knows the uid of its user."""
    user = uid_base + USER_UID
    return {
        "passwd": (
            f"root:x:0:0:root:/root:/bin/sh\n"
            f"{USER}:x:{user}:{user}:{USER}:{HOME}:/bin/sh\n"
            f"nobody:x:{_NOBODY}:{_NOBODY}:nobody:/nonexistent:/bin/false\n"
        ),
        "group": f"root:x:0:\ntty:x:{_TTY_GID}:\n{USER}:x:{user}:\nnogroup:x:{_NOBODY}:\n",
        "hosts": _HOSTS,
        "hostname": "sandbox\n",
        "resolv.conf": "",
    }


def directories(image: EngineImage) -> dict[str, tuple[str, int]]:
    """The writable paths, including the image's volumes, each with its directory on the disk and its mode. The name of
    a volume's depends on its path alone: a saved disk may begin a sandbox of another image."""
    places = dict(disk_directories())
    for path in image.volumes:
        if path not in places:
            _check_volume(path)
            places[path] = (f"volume-{hashlib.sha256(path.encode()).hexdigest()[:16]}", 0o755)
    return places


def _check_volume(path: str) -> None:
    volume = PurePosixPath(path)
    clash = ".." in volume.parts or any(volume.is_relative_to(ours) for ours in _OURS)
    if clash or not volume.is_absolute() or volume == PurePosixPath("/"):
        raise InvalidRequest(
            f"the image wants a volume at {path!r}, where a sandbox can have none", remedy="choose another image"
        )


def _host_config(
    spec: SandboxSpec,
    image: EngineImage,
    place: SandboxPaths,
    hard_limits: Mapping[str, int],
    top_of_proc: frozenset[str],
    machine: str,
) -> Json:
    limits = spec.limits
    return {
        "CapDrop": ["ALL"],
        "CapAdd": [name.removeprefix("CAP_") for name in AGENT_CAPABILITIES],
        "SecurityOpt": [
            "no-new-privileges:true",
            f"seccomp={json.dumps(seccomp_docker(ptrace=spec.ptrace, machine=machine))}",
        ],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "MaskedPaths": list(masked_paths(top_of_proc)),
        "ReadonlyPaths": list(READONLY_PATHS),
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        # An engine with userns-remap has one range for all containers; uids of their own keep them apart.
        "UsernsMode": "host",
        **_resources(limits),
        "Ulimits": _ulimits(limits, hard_limits),
        "OomScoreAdj": 0,
        "Init": False,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none", "Config": {}},
        "Mounts": list(_mounts(image, place)),
        "Tmpfs": {
            "/dev/shm": f"rw,nosuid,nodev,noexec,mode=1777,size={shm_bytes(limits)},nr_inodes=4096",
            "/sys/fs/cgroup": "ro,nosuid,nodev,noexec,mode=755,size=4k,nr_inodes=2",  # instead of the cgroups
        },
        "ShmSize": shm_bytes(limits),
        "Sysctls": ipc_sysctls(shm_bytes(limits)),
    }


def _resources(limits: Limits) -> Json:
    memory = limits.memory_mb * MIB
    return {
        "Memory": memory,
        "MemorySwap": memory,
        "CpuPeriod": CPU_PERIOD_US,
        "CpuQuota": round(limits.cpus * CPU_PERIOD_US),
        "PidsLimit": limits.pids + PIDS_RESERVE,
    }


def _ulimits(limits: Limits, hard_limits: Mapping[str, int]) -> list[Json]:
    wanted = {
        "core": CORE_LIMIT,
        "nofile": limits.open_files,
        "memlock": MEMLOCK_BYTES,
        "fsize": limits.disk_mb * MIB,
        "sigpending": PENDING_SIGNALS,
        "msgqueue": MESSAGE_QUEUE_BYTES,
        "nice": 0,
        "rtprio": 0,
    }
    lowered = {name: min(value, hard_limits.get(name, value)) for name, value in wanted.items()}
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in lowered.items()]


def _mounts(image: EngineImage, place: SandboxPaths) -> Iterable[Json]:
    yield _bind(place.disk / SYSTEM / "agent", AGENT_PROGRAM, read_only=True)
    yield _bind(place.disk / SYSTEM / "runners", RUNNERS, read_only=True)
    yield _bind(place.run, RUN)
    yield _bind(place.pts, "/dev/pts")  # the engine's own has as many terminals as the machine
    for name in etc_files(0):
        yield _bind(place.disk / SYSTEM / name, f"/etc/{name}", read_only=True)
    for name in VIEW:
        yield _bind(place.disk / "view" / name, f"/proc/{name}", read_only=True)
    for path, (directory, _) in directories(image).items():
        yield _bind(place.places / directory, path)


def _bind(source: Path, target: str, *, read_only: bool = False) -> Json:
    # Not the short form ("Binds"): that one makes a missing source, and reads a colon in a path as its own.
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }
