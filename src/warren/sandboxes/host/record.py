"""The record of a sandbox: written before the sandbox exists, and read by later processes.

Whoever makes a sandbox's directory holds a lock, `recording`, until the record is in it. A `pid` means that the sandbox
was started; the start time tells its first process from a later one with the same pid, and the boot id reveals a
restart of the machine. When the first process ends, the kernel kills all others of the sandbox.
"""

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from warren.model.errors import ProviderUnavailable
from warren.model.spec import IoLimits, Layer, Limits, SandboxSpec
from warren.sandboxes.host import orphans
from warren.sandboxes.host.freezing import let_die
from warren.sandboxes.host.processes import boot_id, has_let_go, open_process, readable, start_time

NAME: Final = "record.json"
_LOCK: Final = ".making"
_TRIES: Final = 100
_PAUSE_S: Final = 0.01
_DEATH_S: Final = 20.0
_LOOK_S: Final = 0.5


@cache
def _own_start_time(pid: int) -> int:
    return start_time(pid) or 0


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """What is known about a sandbox. `image` is the handle of its disk's image (disk_images.py). `disk_layout` says how
    a disk with ids of its own is used (disk_stream.py); None if the ids on it are the host's, as older versions made
    it, or if it is no image. `maker` is the process that it is made for."""

    sandbox_id: str
    boot_id: str
    runtime: str
    uid_index: int
    spec: SandboxSpec
    pid: int = 0
    start_time: int = 0
    image: str = ""
    disk_layout: dict[str, Any] | None = None
    maker: int = field(default_factory=os.getpid)
    maker_start_time: int = field(default_factory=lambda: _own_start_time(os.getpid()))

    def made_for(self, pid: int, began: int) -> Self:
        return replace(self, maker=pid, maker_start_time=began)

    def started(self, pid: int) -> Self:
        return replace(self, pid=pid, start_time=start_time(pid) or 0)

    @property
    def abandoned(self) -> bool:
        """Whether nobody will ever use it: it has ended and only its maker could use it, or its maker died while making
        it."""
        maker_lives = self.boot_id == boot_id() and start_time(self.maker) == self.maker_start_time
        return not maker_lives and not self.alive() and (self.spec.ephemeral or not self.pid)

    def alive(self) -> bool:
        return self.pid > 0 and self.boot_id == boot_id() and start_time(self.pid) == self.start_time

    def save(self, directory: Path) -> None:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "spec"}
        text = f'{json.dumps(values)[:-1]}, "spec": {_spec_json(self.spec)}}}'.encode()
        temporary = f"{directory}/.{NAME}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while text:
                text = text[os.write(fd, text) :]
        finally:
            os.close(fd)
        # Renamed when complete: a reader never sees half a record.
        os.rename(temporary, f"{directory}/{NAME}")

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """Returns the record; None if it is missing or cannot be read."""
        try:
            with open(f"{directory}/{NAME}", "rb") as file:
                values: dict[str, Any] = json.loads(file.read())
            return cls(**{**values, "spec": _spec(values["spec"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


_last_spec: tuple[SandboxSpec, str] | None = None


def _spec_json(spec: SandboxSpec) -> str:
    """Returns the spec as JSON, cached: most sandboxes are made like the one before, and each saves its spec twice."""
    global _last_spec
    known = _last_spec
    if known is None or known[0] != spec:
        known = _last_spec = spec, json.dumps(asdict(spec) | {"require": sorted(spec.require)})
    return known[1]


def _spec(values: dict[str, Any]) -> SandboxSpec:
    limits = Limits(**values["limits"])
    require = frozenset(Layer(name) for name in values["require"])
    io = IoLimits(**values.get("io", {}))
    gpus = tuple(values.get("gpus", ()))
    return SandboxSpec(**{**values, "limits": limits, "io": io, "require": require, "gpus": gpus})


@contextmanager
def recording(folder: Path) -> Iterator[None]:
    """Must be held while a directory in the folder has no record yet. Several may hold it at once; it ends with its
    process."""
    with _locked(folder, fcntl.LOCK_SH):
        yield


async def find_abandoned(folder: Path, names: Iterable[str], kind: type[SandboxRecord] = SandboxRecord) -> list[str]:
    """Returns which of the directories in the folder a dead maker has left."""
    records = {name: kind.load(folder / name) for name in names}
    left = [name for name, record in records.items() if record is not None and record.abandoned]
    bare = [name for name, record in records.items() if record is None]
    for _ in range(_TRIES if bare else 0):
        try:
            # Nobody is recording now, so whoever made a directory that has no record is dead.
            with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return left + [name for name in bare if (folder / name).is_dir() and kind.load(folder / name) is None]
        except BlockingIOError:
            await asyncio.sleep(_PAUSE_S)
    return left


@contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    """A file beside the folder has the lock, because the folder itself may be removed and made again."""
    fd = os.open(f"{folder}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, operation)
        yield
    finally:
        os.close(fd)


async def kill_first_process(record: SandboxRecord) -> None:
    """Kills the first process and returns when it is dead, or has nothing left but its entry in the table of processes.
    Reaps it if it is a child of this process."""
    await _kill_first_process(record)
    if record.pid and record.boot_id == boot_id():
        orphans.reap(record.pid, record.start_time)


async def _kill_first_process(record: SandboxRecord) -> None:
    with open_process(record.pid) as pidfd:
        # Checked after opening: the pidfd then refers to the process that was checked.
        if pidfd is None or not record.alive():
            return
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            await asyncio.wait_for(_end_of(record.pid, pidfd), _DEATH_S)
        except ProcessLookupError:
            return
        except TimeoutError:
            raise ProviderUnavailable(f"process {record.pid} of a sandbox does not die") from None


async def _end_of(pid: int, pidfd: int) -> None:
    # The pidfd comes first: a first process lets go before it has killed the others of its sandbox.
    while True:
        let_die(pid)  # each time: somebody may be freezing it just now
        with suppress(TimeoutError):
            return await asyncio.wait_for(readable(pidfd), _LOOK_S)
        if has_let_go(pid):
            return


async def wait_for_first_process(record: SandboxRecord) -> None:
    """Returns when the first process has ended."""
    with open_process(record.pid) as pidfd:
        if pidfd is not None and record.alive():
            await readable(pidfd)
