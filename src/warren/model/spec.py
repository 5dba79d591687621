"""The specification of a sandbox: its image, its limits, and the layers of isolation it requires."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from warren.model.errors import InvalidRequest
from warren.model.gpus import check_gpus

MIB = 1024 * 1024
MAX_VARIABLE = 128 * 1024 - 2  # the kernel's limit for name and value together
MAX_ENV = MIB

USER = "sandboxuser"
USER_UID = 1000
HOME = "/home/sandboxuser"
WORKSPACE = "/workspace"
AGENT_PROGRAM = "/.warren/agent"
RUNNERS = "/.warren/runners"  # the programs of code contexts, one directory per language
SEARCH_PATH = "/home/sandboxuser/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Directories on the sandbox's disk, with their modes. Agent frameworks write to those from /mnt/data on.
WRITABLE: dict[str, int] = {
    WORKSPACE: 0o755,
    HOME: 0o755,
    "/tmp": 0o1777,
    "/var/tmp": 0o1777,
    "/home/user": 0o755,
    "/mnt/data": 0o755,
    "/large_tool_results": 0o755,
    "/conversation_history": 0o755,
    "/memories": 0o755,
    "/outputs": 0o755,
}


class Layer(StrEnum):
    """A layer of isolation, read back from the kernel once the sandbox runs. NO_NETWORK applies until the session's
    rules open the network."""

    USER_NAMESPACE = "user_namespace"
    PID_NAMESPACE = "pid_namespace"
    MOUNT_NAMESPACE = "mount_namespace"
    NETWORK_NAMESPACE = "network_namespace"
    IPC_NAMESPACE = "ipc_namespace"
    UTS_NAMESPACE = "uts_namespace"
    CGROUP_NAMESPACE = "cgroup_namespace"
    UNIQUE_UID = "unique_uid"
    NO_HOST_ROOT = "no_host_root"
    CAPABILITIES = "capabilities"
    NO_NEW_PRIVS = "no_new_privs"
    SECCOMP = "seccomp"
    SYSTEM_CALLS = "system_calls"
    READ_ONLY_ROOT = "read_only_root"
    MASKED_PATHS = "masked_paths"
    MOUNT_FLAGS = "mount_flags"
    NO_HOST_FILES = "no_host_files"
    LOOPBACK_ONLY = "loopback_only"
    NO_NETWORK = "no_network"
    MEMORY_LIMIT = "memory_limit"
    SWAP_OFF = "swap_off"
    SOCKET_LIMIT = "socket_limit"
    CPU_LIMIT = "cpu_limit"
    PIDS_LIMIT = "pids_limit"
    RLIMITS = "rlimits"
    DISK_LIMIT = "disk_limit"
    INODE_LIMIT = "inode_limit"
    GUEST_KERNEL = "guest_kernel"


@dataclass(frozen=True, slots=True)
class Limits:
    memory_mb: int = 512
    cpus: float = 0.5
    pids: int = 256
    disk_mb: int = 1024
    open_files: int = 1024

    def __post_init__(self) -> None:
        _within("memory_mb", self.memory_mb, 64, 1024 * 1024)
        _within("cpus", self.cpus, 0.05, 256)
        _within("pids", self.pids, 8, 32768)
        _within("disk_mb", self.disk_mb, 16, 1024 * 1024)
        _within("open_files", self.open_files, 64, 1024 * 1024)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most that any caller may ask for, regardless of its quota; None means no ceiling. What the environment itself
    specifies is always allowed. `files`: open files of all processes of a sandbox together."""

    memory_mb: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk_mb: int | None = None
    open_files: int | None = None
    files: int | None = None


NO_CEILINGS = Ceilings()


@dataclass(frozen=True, slots=True)
class IoLimits:
    """How fast a sandbox may read from its disk, and write to it: MiB and operations a second; 0 means no limit."""

    mbps: int = 0
    iops: int = 0

    def __post_init__(self) -> None:
        _within("io.mbps", self.mbps, 0, 1024 * 1024)
        _within("io.iops", self.iops, 0, 1 << 30)

    def __bool__(self) -> bool:
        return bool(self.mbps or self.iops)


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a provider is asked to make.

    `require`: if the sandbox would lack one of these layers, it is not started. `ephemeral`: the sandbox ends by itself
    when the process that made it is gone. `writable_root`: the root can be written to; the changes lie on the sandbox's
    disk. `sudo`: commands may run as root of the sandbox's user namespace. `gpus`: the ids of graphics processors that
    the sandbox gets for itself; `any` stands for a free one. `disk`: the name of a saved disk that the sandbox's own
    begins as a copy of; empty for an empty disk.
    """

    image: str = "base"
    limits: Limits = field(default_factory=Limits)
    env: dict[str, str] = field(default_factory=dict)
    require: frozenset[Layer] = frozenset()
    ptrace: bool = False
    ephemeral: bool = False
    io: IoLimits = field(default_factory=IoLimits)
    labels: dict[str, str] = field(default_factory=dict)
    writable_root: bool = False
    sudo: bool = False
    gpus: tuple[str, ...] = ()
    disk: str = ""

    def __post_init__(self) -> None:
        check_image_name(self.image)
        check_gpus(self.gpus)
        for name, value in self.env.items():
            check_env(name, value)


@dataclass(frozen=True, slots=True)
class Isolation:
    """The isolation that is really in force: each layer with the evidence from the kernel. `gpus`: the graphics
    processors that the sandbox can open, with their device nodes and the rules that open them."""

    provider: str
    runtime: str
    layers: dict[Layer, str]
    missing: dict[Layer, str]
    gpus: dict[str, str] = field(default_factory=dict)

    def __contains__(self, layer: object) -> bool:
        return layer in self.layers


def is_image_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}", name) is not None and ".." not in name


def check_image_name(name: str) -> None:
    if not is_image_name(name):
        raise InvalidRequest(f"{name!r} is not an image name", remedy="it has letters, digits and . _ / : @ -")


def is_disk_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) is not None


def check_disk_name(name: str) -> None:
    if not is_disk_name(name):
        raise InvalidRequest(
            f"{name[:80]!r} is no name of a saved disk", remedy="use up to 64 letters, digits, _ and -"
        )


def check_env(name: str, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InvalidRequest(f"{name!r} is not a name for an environment variable")
    if "\0" in value:
        raise InvalidRequest(f"the environment variable {name} has a NUL byte in its value")
    if len(name) + _bytes(value) > MAX_VARIABLE:
        raise InvalidRequest(
            f"the environment variable {name} is longer than {MAX_VARIABLE} bytes, no program could start with it",
            remedy="write it to a file",
        )


def check_env_size(env: Mapping[str, str]) -> None:
    size = sum(len(name) + _bytes(value) for name, value in env.items())
    if size > MAX_ENV:
        raise InvalidRequest(
            f"the environment variables have {size} bytes together, at most {MAX_ENV} are taken",
            remedy="write them to a file",
        )


def _bytes(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode(errors="replace"))


def _within(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidRequest(f"the limit {name} is {value}, it must be between {low} and {high}")
