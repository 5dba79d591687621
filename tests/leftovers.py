"""Finds what a run of the tests has left on this machine: processes, mounts, cgroups, loop devices, directories.

Everything that a run makes carries the run's name (see this_run.py): in the environment or the command line of a
process, and in the path of a mount, of a loop device's file, of a directory. The cgroups of sandboxes, the processes in
them and their directories in /run/warren carry only the sandbox's id; `SandboxIds` notes the ids that appear below the
run's directory.
"""

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Set
from pathlib import Path
from typing import Final

from this_run import patience

_PATIENCE_S: Final = patience(10.0)  # the kernel removes cgroups and namespaces with a delay
_LOOK_EVERY_S: Final = 0.05  # a runtime needs longer than that to make a sandbox
_ZOMBIE: Final = "Z"


class SandboxIds:
    """Notes the id of every sandbox that appears in a state directory below `root`, from `start` to `stop`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox-ids", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> frozenset[str]:
        self._stop.set()
        self._thread.join()
        self.look()
        return frozenset(self._seen)

    def look(self) -> None:
        for state_dir in _entries(self._root):
            for folder in ("sandboxes", "docker"):
                self._seen.update(_entries(f"{self._root}/{state_dir}/{folder}"))

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            self.look()


def wait_for_leftovers(name: str, sandbox_ids: Set[str], kept: Collection[Path] = ()) -> list[str]:
    """Returns what is still left of the run after some seconds. `kept`: directories of the run that may stay."""
    deadline = time.monotonic() + _PATIENCE_S
    while (left := leftovers(name, sandbox_ids, kept)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def leftovers(name: str, sandbox_ids: Set[str], kept: Collection[Path] = ()) -> list[str]:
    return sorted(
        {
            *_processes(name, sandbox_ids),
            *_mounts(name),
            *_cgroups(sandbox_ids),
            *_loop_devices(name),
            *_namespaces(name),
            *_directories(name, kept),
            *_run_directories(sandbox_ids),
        }
    )


def _processes(name: str, sandbox_ids: Set[str]) -> Iterator[str]:
    spared = set(_own_family())
    for pid in filter(str.isdigit, _entries("/proc")):
        if int(pid) in spared or _state(pid) == _ZOMBIE:
            continue
        command = _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        in_sandbox = not sandbox_ids.isdisjoint(_text(f"/proc/{pid}/cgroup").replace("\n", "/").split("/"))
        if in_sandbox or name in command or name in _text(f"/proc/{pid}/environ"):
            yield f"process {pid}: {command[:200]}"


def _own_family() -> Iterator[int]:
    """Yields this process and its ancestors: they carry the name and are expected to live."""
    pid = os.getpid()
    while pid > 0:
        yield pid
        pid = int((_stat(str(pid)) or "? 0").split()[1])


def _state(pid: str) -> str:
    return (_stat(pid) or _ZOMBIE).split()[0]


def _stat(pid: str) -> str:
    """Returns the state, the parent and so on; empty if the process is gone."""
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].strip()


def _mounts(name: str) -> Iterator[str]:
    points = (line.split()[4] for line in _text("/proc/self/mountinfo").splitlines())
    return (f"mount {point}" for point in points if name in point)


def _cgroups(sandbox_ids: Set[str]) -> Iterator[str]:
    root = Path("/sys/fs/cgroup")
    for top in (*root.glob("warren"), *root.glob("*/warren")):
        yield from (f"cgroup {top / entry}" for entry in _entries(top) if entry in sandbox_ids)


def _loop_devices(name: str) -> Iterator[str]:
    for device in Path("/sys/block").glob("loop*/loop/backing_file"):
        if name in (file := _text(device).strip()):
            yield f"loop device {device.parts[3]}: {file}"


def _namespaces(name: str) -> Iterator[str]:
    return (f"network namespace {entry}" for entry in _entries("/run/netns") if entry.startswith(name))


def _directories(name: str, kept: Collection[Path]) -> Iterator[str]:
    return (f"directory {path}" for path in Path("/tmp").glob(f"{name}/*") if path not in kept)


def _run_directories(sandbox_ids: Set[str]) -> Iterator[str]:
    """Records and sockets of sandboxes are in memory, outside of the run's directories."""
    run = Path("/run/warren")
    for folder in (run / "docker", *run.glob("sandboxes/*")):
        yield from (f"directory {folder / entry}" for entry in _entries(folder) if entry in sandbox_ids)


def _entries(directory: str | Path) -> Iterable[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return ()


def _text(path: str | Path) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""
