"""The content of a sandbox's directory before it is launched, and the command line that launches it."""

import contextlib
import fcntl
import hashlib
import math
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.interfaces.images import RootFs
from warren.kernel.syncing import sync_file_system
from warren.model.spec import AGENT_PROGRAM, MIB, RUNNERS, WRITABLE
from warren.sandboxes.host.disk_room import DISK_POINT
from warren.sandboxes.host.disks import DISK_FD, FREE_FD, tmpfs_options
from warren.sandboxes.host.empty_network import unix_socket
from warren.sandboxes.host.processes import kill_if
from warren.sandboxes.host.record import SandboxRecord
from warren.sandboxes.host.uids import uid_base
from warren.sandboxes.providers import direct
from warren.sandboxes.providers.gpu_access import INSIDE
from warren.sandboxes.providers.oci_bundle import BUNDLE, LISTEN_FD, disk_directories
from warren.sandboxes.providers.runners import runner_files, write_runners

PID: Final = "pid"
SOCKET: Final = "agent.sock"

_AGENT_NICE: Final = -10
_SUDO: Final = ("usr/local/bin/sudo", "usr/bin/sudo")  # the first is found even where an image installs its own
CHANGES_FD: Final = 4
_DIRECTORIES: Final = [word for name, mode in disk_directories().values() for word in ("--dir", f"{name}:{mode:o}")]
_OWNED: Final = [word for path, mode in WRITABLE.items() for word in ("--own", f"{path}:{mode:o}")]


@dataclass(frozen=True, slots=True)
class Programs:
    launcher: Path
    agent_layer: Path
    runtime: str


def argv(
    record: SandboxRecord,
    programs: Programs,
    *,
    rootfs: RootFs,
    directory: Path,
    loop_disk: bool,
    hide: Path | None,
    move: Path,
    detached: bool,
    send_changes: bool = False,
    devices: Sequence[str] = (),
    gpu_tree: Path | None = None,
) -> list[str]:
    """`hide`: a mount that an OCI runtime must not see. `move`: where a process can try to move to another cgroup.
    Not `detached`: runs to the end of the sandbox. `send_changes`: the launcher sends the descriptor of what is written
    to the root over the socket CHANGES_FD. `devices`: PATH:NAME of nodes beyond the usual ones."""
    base, limits = uid_base(record.uid_index), record.spec.limits
    disk = ("--disk-fd", str(DISK_FD)) if loop_disk else ("--tmpfs", tmpfs_options(limits))
    is_direct = record.runtime == direct.NAME
    return [
        *(str(programs.launcher), "direct" if is_direct else "sandbox", "--at", BUNDLE, "--move", str(move)),
        *("--base", str(base), "--owner", str(base + rootfs.uid), "--worker", str(os.getpid())),
        *("--agent", str(programs.agent_layer), "--root", str(rootfs.path)),
        *(("--tree", "/usr:/usr") if rootfs.host_usr else ()),
        *(("--tree", f"{gpu_tree}:{INSIDE}") if gpu_tree else ()),
        *(word for device in devices for word in ("--device", device)),
        *(word for layer in rootfs.layers for word in ("--layer", str(layer))),
        *disk,
        *(("--saved",) if record.spec.disk else ()),
        *(("--writable", *_OWNED) if record.spec.writable_root else (*_DIRECTORIES, *_seeds(rootfs))),
        *(("--changes", str(CHANGES_FD)) if send_changes else ()),
        *(("--hide", str(hide)) if hide and not is_direct else ()),
        *("--memory", str(limits.memory_mb * MIB), "--cpus", str(math.ceil(limits.cpus))),
        *(("--memlock", "0") if leaves_memlock(record.runtime) else ()),
        *("--nofile", str(limits.open_files), "--fsize", str(limits.disk_mb * MIB)),
        *(_direct_words if is_direct else _runtime_words)(record, programs.runtime, directory, detached),
    ]


def _direct_words(record: SandboxRecord, _: str, directory: Path, detached: bool) -> tuple[str, ...]:
    end = ("--keep", str(LISTEN_FD), "--pid-file", f"{directory}/{PID}") if detached else ("--keep", "2", "--wait")
    return ("--id", record.sandbox_id, *end)


def _runtime_words(record: SandboxRecord, runtime: str, directory: Path, detached: bool) -> tuple[str, ...]:
    return (
        *("--", runtime, "--root", f"{BUNDLE}/state", "run"),
        *(("--detach", "--preserve-fds", "1", "--pid-file", str(directory / PID)) if detached else ()),
        *("--bundle", BUNDLE, record.sandbox_id),
    )


def _seeds(rootfs: RootFs) -> list[str]:
    names = disk_directories()
    return [
        word for path in rootfs.seeded if path in names for word in ("--seed", f"{names[path][0]}:{path.strip('/')}")
    ]


def leaves_memlock(runtime: str) -> bool:
    """Whether the agent limits locked memory instead of the launcher. crun raises its own limit before it loads the
    rules for devices. If the launcher or config.json had lowered it, root could not raise it, and crun would fail."""
    return runtime == "crun"


def kill_strays(sandbox_id: str) -> int:
    """Kills launchers and runtimes that work on this sandbox, and returns how many there were.

    When a runtime is killed its children go on, and would finish a sandbox that nobody waits for. Until the agent
    starts, which is in the sandbox's cgroup, all of them have the command line that was made here.
    """
    marks = {sandbox_id.encode(), BUNDLE.encode()}
    found = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit() and marks <= _arguments(entry):
            found += 1
            kill_if(int(entry), lambda pid: marks <= _arguments(str(pid)))
    return found


def _arguments(pid: str) -> set[bytes]:
    """Returns the command line of a process; nothing if it has ended."""
    try:
        return set(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    except OSError:
        return set()


@contextlib.contextmanager
def in_memory(config: str) -> Iterator[int]:
    """Yields a descriptor from which config.json can be read once."""
    fd = os.memfd_create("config.json")
    try:
        os.write(fd, config.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def agent_layer(agent: Path, folder: Path, *, sudo: bool = False) -> Path:
    """Makes a tree with only the agent and the runners in it and places for disk and GPU libraries, named after its
    content, so that it never changes under a sandbox. With `sudo`, it has that name too: the agent's program is
    both."""
    points = f"{DISK_POINT} {INSIDE}".encode()
    runners = repr(runner_files()).encode()
    digest = hashlib.sha256(points + runners + agent.read_bytes()).hexdigest()[:16]
    layer = folder / (f"{digest}-sudo" if sudo else digest)
    if not layer.is_dir():
        making = Path(tempfile.mkdtemp(dir=folder))
        making.chmod(0o755)
        inside = making / AGENT_PROGRAM.strip("/")
        inside.parent.mkdir(mode=0o755)
        shutil.copyfile(agent, inside)
        inside.chmod(0o711)  # nobody can read it, so nobody can look into what runs it (agent/keeper.c)
        inside.parent.chmod(0o755)
        write_runners(making / RUNNERS.strip("/"))
        for point in (DISK_POINT, INSIDE):
            (making / point.strip("/")).mkdir(mode=0o755)
            (making / point.strip("/")).chmod(0o755)
        for name in _SUDO if sudo else ():
            (making / name).parent.mkdir(mode=0o755, parents=True)
            (making / name).symlink_to(AGENT_PROGRAM)
        sync_file_system(making)
        try:
            making.rename(layer)
        except OSError:  # another process was first
            shutil.rmtree(making)
    return layer


def has_room_for_sudo(rootfs: RootFs) -> bool:
    """Whether the directories of the layer with `sudo` would hide no link of the image."""
    folders = {folder for name in _SUDO for folder in Path(name).parents[:-1]}
    return not any((tree / folder).is_symlink() for tree in (rootfs.path, *rootfs.layers) for folder in folders)


def make_mount_points(root: Path) -> None:
    """Makes a root filesystem of nothing but mount points."""
    for name in ("proc", "dev", "sys", *(path.strip("/") for path in disk_directories())):
        (root / name).mkdir(parents=True, exist_ok=True)


async def listening(directory: Path) -> socket.socket:
    """Returns a socket for the agent. It is bound through a descriptor, because its path is limited to 107 bytes."""
    listener = await unix_socket()
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        finally:
            os.close(folder)
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def changes_socket() -> Iterator[tuple[socket.socket, int]]:
    """Yields the end that receives a descriptor, and the launcher's end, which sends it. The number of the launcher's
    end is FREE_FD or more: no other descriptor that the launcher is given takes its place."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        ours.setblocking(False)
        fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, FREE_FD)
        try:
            yield ours, fd
        finally:
            os.close(fd)


def received_descriptor(ours: socket.socket) -> int:
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    return descriptors[0]


def read_pid(directory: Path) -> int:
    with open(f"{directory}/{PID}", "rb", buffering=0) as file:
        return int(file.read())


def raise_priority(pid: int) -> None:
    """Puts the agent before what it runs, which it sets to 0. The launcher has started it with a low priority."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, _AGENT_NICE)
