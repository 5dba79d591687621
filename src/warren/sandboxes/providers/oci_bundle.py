"""config.json of a sandbox, from its spec. Pure.

All paths of the host in it are below BUNDLE, where the launcher mounts the bundle for this one sandbox: the root
filesystem, the disk, the agent and the user namespace are in place when the runtime reads the file. The root is
read-only, and every writable path is a directory of the one disk or a small tmpfs; or the root is writable and its
changes are on that disk.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from warren.model.image import NO_CONFIG, ImageConfig
from warren.model.spec import AGENT_PROGRAM, MIB, SEARCH_PATH, WRITABLE, Limits, SandboxSpec
from warren.sandboxes.host.disk_room import DISK_POINT
from warren.sandboxes.providers.hardening import (
    READONLY_PATHS,
    TERMINALS,
    agent_capabilities,
    ipc_sysctls,
    masked_paths,
    seccomp_oci,
)
from warren.sandboxes.providers.image_defaults import default_directory, default_user

PARENT: Final = "/warren"  # the cgroup above those of all sandboxes
BUNDLE: Final = "/run/warren/bundle"
LISTEN_FD: Final = 3
UIDS: Final = 65536
CPU_PERIOD_US: Final = 100_000
VIEW: Final = ("cpuinfo", "loadavg", "meminfo", "stat")
"""Files of /proc that show the sandbox's limits instead of the machine."""

# User code reaches its own limit (RLIMIT_NPROC) before the cgroup's: the agent can always fork.
PIDS_RESERVE: Final = 64

ANY_ID: Final = "@sandbox@"  # stands for the id where a text is made for all sandboxes of a kind

_CRUN_PROGRAM: Final = "run.oci.seccomp_bpf_data"
_ANY_BASE: Final = 98765432109876543210
_DEVICES: Final = (("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0))
_NAMESPACES: Final = ("pid", "ipc", "uts", "mount", "cgroup", "network")

Json = dict[str, Any]
Devices = tuple[tuple[int, int], ...]


def config(
    spec: SandboxSpec,
    *,
    sandbox_id: str,
    uid_base: int,
    swap_limit: bool,
    top_of_proc: frozenset[str],
    machine: str = "",
    program: bytes = b"",
    network_sysctls: Mapping[str, str] | None = None,
    seeded: bool = False,
    image: ImageConfig = NO_CONFIG,
    devices: Devices = (),
    memlock: int = 0,
) -> Json:
    """`swap_limit`: this kernel can limit memory and swap together. `top_of_proc`: the names there. `program`: what the
    rules for system calls were compiled to before; only crun can use it, others compile the rules. `seeded`: some of
    the writable directories are not empty in the image. `image`: what the image says of itself. `devices`: numbers of
    character devices beyond the usual ones. `memlock`: the limit of locked memory, if the agent is to set it."""
    return {
        **({"annotations": {_CRUN_PROGRAM: b64encode(program).decode()}} if program else {}),
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "process": _process(agent_argv(spec, image, memlock), agent_capabilities(sudo=spec.sudo)),
        "root": {"path": "rootfs", "readonly": not spec.writable_root},
        "mounts": [*_mounts(spec.limits), *_disk_mounts(spec, seeded)],
        "linux": {
            "namespaces": [*({"type": kind} for kind in _NAMESPACES), {"type": "user", "path": f"{BUNDLE}/userns"}],
            "uidMappings": _mapping(uid_base),
            "gidMappings": _mapping(uid_base),
            "cgroupsPath": cgroup_path(sandbox_id),
            "resources": _resources(spec.limits, swap_limit, devices),
            "rootfsPropagation": "private",
            "sysctl": {**ipc_sysctls(shm_bytes(spec.limits)), **(network_sysctls or {})},
            "maskedPaths": [path for path in masked_paths(top_of_proc) if path != "/sys"],  # it is not mounted
            "readonlyPaths": list(READONLY_PATHS),
            "seccomp": seccomp_oci(ptrace=spec.ptrace, machine=machine) if machine else seccomp_oci(ptrace=spec.ptrace),
        },
    }


def config_json(
    spec: SandboxSpec,
    *,
    sandbox_id: str,
    uid_base: int,
    swap_limit: bool,
    top_of_proc: frozenset[str],
    program: bytes = b"",
    network_sysctls: Mapping[str, str] | None = None,
    seeded: bool = False,
    image: ImageConfig = NO_CONFIG,
    devices: Devices = (),
    memlock: int = 0,
) -> str:
    """Returns `config` as JSON. Sandboxes of one kind differ in two places only, so the rest is made once."""
    settings = tuple((network_sysctls or {}).items())
    text = _config_template(
        *(spec.limits, spec.ptrace, spec.ephemeral, spec.writable_root, spec.sudo),
        *(swap_limit, top_of_proc, program, settings, seeded, image.user, image.workdir, devices, memlock),
    )
    return text.replace(ANY_ID, sandbox_id).replace(str(_ANY_BASE), str(uid_base))


def with_command(config: str, argv: Sequence[str]) -> str:
    """Returns the config of a sandbox that runs something else than the agent."""
    made = json.loads(config)
    made["process"]["args"] = list(argv)
    return json.dumps(made)


@lru_cache(maxsize=8)
def _config_template(
    limits: Limits,
    ptrace: bool,
    ephemeral: bool,
    writable_root: bool,
    sudo: bool,
    swap_limit: bool,
    top_of_proc: frozenset[str],
    program: bytes,
    network_sysctls: tuple[tuple[str, str], ...],
    seeded: bool,
    user: str,
    workdir: str,
    devices: Devices,
    memlock: int,
) -> str:
    spec = SandboxSpec(limits=limits, ptrace=ptrace, ephemeral=ephemeral, writable_root=writable_root, sudo=sudo)
    made = config(
        spec,
        sandbox_id=ANY_ID,
        uid_base=_ANY_BASE,
        swap_limit=swap_limit,
        top_of_proc=top_of_proc,
        program=program,
        network_sysctls=dict(network_sysctls),
        seeded=seeded,
        image=ImageConfig(user=user, workdir=workdir),
        devices=devices,
        memlock=memlock,
    )
    return json.dumps(made)


def agent_argv(spec: SandboxSpec, image: ImageConfig = NO_CONFIG, memlock: int = 0) -> list[str]:
    """Where commands may be root, the agent has another uid: one that no command can be started with."""
    return [
        *(AGENT_PROGRAM, "--listen-fd", str(LISTEN_FD)),
        *("--uids", f"1-{UIDS - 2}"),
        *("--nproc", str(spec.limits.pids)),
        *(["--memlock", str(memlock)] if memlock else []),
        *(["--ephemeral"] if spec.ephemeral else []),
        *(["--user", user] if (user := default_user(image)) else []),
        *(["--workspace", directory] if (directory := default_directory(image)) else []),
        *(["--allow-root", "--become", str(UIDS - 1)] if spec.sudo else []),
    ]


def cgroup_path(sandbox_id: str) -> str:
    return f"{PARENT}/{sandbox_id}"


def disk_directories() -> dict[str, tuple[str, int]]:
    """Returns the writable paths, each with its directory on the disk and its mode."""
    return {path: (path.strip("/").replace("/", "-"), mode) for path, mode in WRITABLE.items()}


def shm_bytes(limits: Limits) -> int:
    return min(64 * MIB, limits.memory_mb * MIB // 8)


def _process(argv: list[str], capabilities: tuple[str, ...]) -> Json:
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": argv,
        "env": [f"PATH={SEARCH_PATH}"],
        "cwd": "/",
        "noNewPrivileges": True,
        "capabilities": {
            kind: list(capabilities) if kind in ("bounding", "effective", "permitted") else []
            for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")
        },
        "oomScoreAdj": 0,
    }


def _mapping(uid_base: int) -> list[Json]:
    return [{"containerID": 0, "hostID": uid_base, "size": UIDS}]


def _mounts(limits: Limits) -> list[Json]:
    return [
        _mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
        _mount("/dev", "bind", f"{BUNDLE}/dev", "bind", "ro", "nosuid", "noexec"),
        _mount(
            *("/dev/pts", "devpts", "devpts", "nosuid", "noexec"),
            *("newinstance", "ptmxmode=0666", "mode=0620", "gid=5", f"max={TERMINALS}"),
        ),
        _mount(
            *("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777"),
            *(f"size={shm_bytes(limits)}", "nr_inodes=4096"),
        ),
        *(
            _mount(f"/proc/{name}", "bind", f"{BUNDLE}/view/{name}", "bind", "ro", "nosuid", "nodev", "noexec")
            for name in VIEW
        ),
    ]


def _disk_mounts(spec: SandboxSpec, seeded: bool) -> list[Json]:
    binds = [
        _mount(path, "bind", f"{BUNDLE}/disk/{directory}", "bind", "rw", "nosuid", "nodev")
        for path, (directory, _) in disk_directories().items()
    ]
    mark = _mount(DISK_POINT, "bind", f"{BUNDLE}/disk/mark", "bind", "ro", "nosuid", "nodev", "noexec")
    return [*([] if spec.writable_root else binds), *([mark] if spec.writable_root or seeded else [])]


def _mount(destination: str, kind: str, source: str, *options: str) -> Json:
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}


def _resources(limits: Limits, swap_limit: bool, devices: Devices = ()) -> Json:
    memory = limits.memory_mb * MIB
    return {
        "memory": {"limit": memory, "swap": memory} if swap_limit else {"limit": memory},
        "cpu": {"quota": round(limits.cpus * CPU_PERIOD_US), "period": CPU_PERIOD_US},
        "pids": {"limit": limits.pids + PIDS_RESERVE},
        "devices": [
            {"allow": False, "access": "rwm"},
            *(
                {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rw"}
                for major, minor in (*((major, minor) for _, major, minor in _DEVICES), *devices)
            ),
            {"allow": True, "type": "c", "major": 5, "minor": 2, "access": "rw"},
            {"allow": True, "type": "c", "major": 136, "access": "rw"},
        ],
    }
