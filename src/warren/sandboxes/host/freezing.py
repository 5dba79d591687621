"""Stops everything that runs in a cgroup, and lets it run on.

v2 has `cgroup.freeze` in every cgroup, also where the v1 controllers are used beside it (hybrid hosts), and a frozen
process can be killed. v1 has a hierarchy `freezer`, and a frozen process that was killed dies only when it is thawed:
whoever kills processes of a sandbox calls `let_die` or `let_die_and_freeze` after it.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from warren.model.errors import ProviderUnavailable
from warren.sandboxes.host.processes import start_time

FREEZER: Final = "freezer"
_UNIFIED: Final = ""
STANDSTILL_S: Final = 5.0  # a process that waits for a disk stops when the disk has answered
_DEATH_S: Final = 1.0
_PAUSE_S: Final = (0.0001, 0.01)
_MAX_FILE: Final = 4096


@dataclass(frozen=True, slots=True)
class Freezer:
    """The freezer of one cgroup. Every method raises OSError if the cgroup is gone."""

    directory: str
    unified: bool

    def begin(self) -> None:
        self._write("1" if self.unified else "FROZEN")

    def thaw(self) -> None:
        self._write("0" if self.unified else "THAWED")

    def stands_still(self) -> bool:
        if self.unified:
            return b"frozen 1" in _read(f"{self.directory}/cgroup.events")
        return _read(f"{self.directory}/freezer.state").strip() == b"FROZEN"

    def has_begun(self) -> bool:
        if self.unified:
            return _read(f"{self.directory}/cgroup.freeze").strip() == b"1"
        return _read(f"{self.directory}/freezer.state").strip() != b"THAWED"

    def has_processes(self) -> bool:
        return bool(_read(f"{self.directory}/cgroup.procs"))

    def _write(self, text: str) -> None:
        fd = os.open(f"{self.directory}/{'cgroup.freeze' if self.unified else 'freezer.state'}", os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def freezers(directories: Mapping[str, str]) -> Iterator[Freezer]:
    """Yields the freezers of a cgroup, that of v2 first. Some may not exist."""
    for name, unified in ((_UNIFIED, True), (FREEZER, False)):
        if (directory := directories.get(name)) is not None:
            yield Freezer(directory, unified)


def freeze(directories: Mapping[str, str], within_s: float) -> None:
    """Returns when every process of the cgroup stands still. Raises ProviderUnavailable if that cannot be, and then
    all of them run on."""
    for pause_s in freezing(directories, within_s):
        time.sleep(pause_s)


def freezing(directories: Mapping[str, str], within_s: float) -> Iterator[float]:
    """Does what `freeze` does; yields how long the caller is to wait, if it takes more than a few milliseconds."""
    for freezer in freezers(directories):
        with suppress(OSError):
            if freezer.has_processes():
                return (yield from _freeze(freezer, within_s))
    raise ProviderUnavailable("a sandbox cannot be frozen: no process of it is in a cgroup with a freezer")


def _freeze(freezer: Freezer, within_s: float) -> Iterator[float]:
    until, pause_s = time.monotonic() + within_s, _PAUSE_S[0]
    freezer.begin()
    while not freezer.stands_still():
        if time.monotonic() > until:
            freezer.thaw()
            raise ProviderUnavailable(
                f"a process of the sandbox did not stop within {within_s:g} s: it waits for a disk or a device",
                remedy="try again",
            )
        if pause_s < _PAUSE_S[1]:
            time.sleep(pause_s)
        else:
            yield pause_s
        pause_s = min(2 * pause_s, _PAUSE_S[1])
        if not freezer.unified:  # v1 forgets processes that were being forked
            freezer.begin()


def let_die(pid: int) -> None:
    """Thaws the cgroup of a process that was killed, if v1 has frozen it."""
    if (freezer := _v1_freezer(pid)) is not None:
        with suppress(OSError):
            freezer.thaw()


def let_die_and_freeze(pids: Iterable[int]) -> None:
    """Lets processes die that were killed in a cgroup that v1 has frozen, and freezes it again. Call it in a thread."""
    for pid in pids:
        if (freezer := _v1_freezer(pid)) is None:
            continue
        until = time.monotonic() + _DEATH_S
        with suppress(OSError):
            freezer.thaw()
            while start_time(pid) is not None and time.monotonic() < until:
                time.sleep(_PAUSE_S[1])
            freezer.begin()


def _v1_freezer(pid: int) -> Freezer | None:
    """Returns the freezer that holds a process; None if none does."""
    mount = _v1_mount()
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines() if mount else []
        path = next((line.split(":", 2)[2] for line in lines if f",{FREEZER}," in f",{line.split(':', 2)[1]},"), "/")
        freezer = Freezer(f"{mount}{path}", unified=False)
        return freezer if path != "/" and freezer.has_begun() else None
    except OSError:
        return None


@cache
def _v1_mount() -> str:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", ""][:3]
        if kind == "cgroup" and FREEZER in options.split(","):
            return before.split(" ")[4]
    return ""


def is_offered(mounts: Mapping[str, Path]) -> bool:
    """Whether this machine can freeze cgroups. The root of v2 itself has no freezer."""
    if FREEZER in mounts:
        return True
    if (unified := mounts.get(_UNIFIED)) is None:
        return False
    with suppress(OSError):
        return any(os.path.exists(f"{place}/cgroup.freeze") for place in (unified, *unified.iterdir()))
    return False


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MAX_FILE)
    finally:
        os.close(fd)
