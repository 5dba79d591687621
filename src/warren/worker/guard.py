"""Keeps a part of the machine's memory and disk free.

The worker asks the guard before it makes a sandbox: a machine that runs out of memory loses everybody's sandboxes.
The reserve of memory is 5 % of it, at least 256 MiB. The reserve of the disk is 1024 MB, or 2 % of a file system
where that is less, so that a small file system is not full from the start.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from warren.interfaces.worker import GuardStats
from warren.model.errors import MachineFull
from warren.model.spec import Ceilings, Limits
from warren.sandboxes.host.disk_room import default_reserve_mb, tightest
from warren.sandboxes.host.machine_size import default_reserve_of

MAX_SANDBOXES: Final = 4000
SANDBOX_MB: Final = 8
TIGHT, EASY = 2, 3  # pressure begins and ends at these multiples of the reserve
_FRESH_S: Final = 0.2
_RETRY_S: Final = 5.0
_FILES_SHARE: Final = 0.8
_POOLS_SHARE: Final = 4
_MAX_PIDS: Final = 8192
_MAX_OPEN_FILES: Final = 65536


@dataclass(frozen=True, slots=True)
class Room:
    """What a machine has in all and free: memory and disk in MiB, open files as numbers."""

    memory_total: int
    memory_free: int
    disk_total: int
    disk_free: int
    files_total: int = 1 << 62
    files_open: int = 0


@dataclass(frozen=True, slots=True)
class Reserve:
    """What must stay free on a machine, in MiB, and how many sandboxes it may hold."""

    memory: int
    disk: int
    max_sandboxes: int = MAX_SANDBOXES


def default_memory_reserve(room: Room) -> int:
    return default_reserve_of(room.memory_total)


def default_disk_reserve(room: Room) -> int:
    return default_reserve_mb(room.disk_total)


def refusal(room: Room, reserve: Reserve, live: int, creating: int) -> MachineFull | None:
    """Returns why one more sandbox is refused beside `live` ones and `creating` others; None if there is room."""
    if live + creating >= reserve.max_sandboxes:
        return _full(
            "sandboxes",
            f"there are {live + creating} sandboxes on this machine, {reserve.max_sandboxes} are allowed",
            "end sessions that are not needed any more, or allow more sandboxes",
        )
    # A sandbox that is being made has not taken its memory yet, so it is subtracted here.
    memory = room.memory_free - SANDBOX_MB * (creating + 1)
    if memory < reserve.memory:
        return _full(
            "memory",
            f"this machine has {max(0, memory)} MiB of memory to spare, {reserve.memory} MiB must stay free",
            "end sessions that are not needed any more, or add memory",
        )
    if room.files_open > room.files_total * _FILES_SHARE:
        return _full(
            "files",
            f"{room.files_open} of the {room.files_total} files that this machine can have open are open",
            "end sessions that have many files open, or raise fs.file-max",
        )
    if room.disk_free < reserve.disk:
        return _full(
            "disk",
            f"the state directory's disk has {room.disk_free} MiB free, {reserve.disk} MiB must stay free",
            "free some space there, or move the state directory",
        )
    return None


def _full(what: str, message: str, remedy: str) -> MachineFull:
    error = MachineFull(message, remedy=remedy, retry_after_s=_RETRY_S)
    error.what = what
    return error


def is_tight(room: Room, reserve: Reserve, *, was_tight: bool = False) -> bool:
    """Whether the machine is close to full. Pressure ends with more room than it begins with, so that a pool does not
    make again at once what it has just given up."""
    times = EASY if was_tight else TIGHT
    return room.memory_free < times * reserve.memory or room.disk_free < times * reserve.disk


def most_ahead(room: Room, reserve: Reserve, live: int) -> int:
    """Returns how many sandboxes all pools together may hold when they grow beyond their sizes: as many as fit into a
    quarter of the memory that is free above the level of pressure, and at most half of those that may still be made."""
    memory = (room.memory_free - EASY * reserve.memory) // _POOLS_SHARE // SANDBOX_MB
    return max(0, min(memory, (reserve.max_sandboxes - live) // 2))


def read_room(state_dir: Path) -> Room:
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    disk = read_disk(state_dir)
    files = Path("/proc/sys/fs/file-nr").read_text().split()
    return Room(
        memory_total=_mib(memory["MemTotal"]),
        memory_free=_mib(memory["MemAvailable"]),
        disk_total=disk.f_blocks * disk.f_frsize >> 20,
        disk_free=disk.f_bavail * disk.f_frsize >> 20,
        files_total=int(files[2]),
        files_open=int(files[0]),
    )


def read_room_for_disks(state_dir: Path) -> Room:
    """Returns the room as `read_room`, but that of the storage for disks if there is less of it."""
    total, free = tightest(state_dir, lambda total: default_reserve_mb(total >> 20) << 20)
    return replace(read_room(state_dir), disk_total=total >> 20, disk_free=free >> 20)


def read_disk(path: Path) -> os.statvfs_result:
    """Returns what is known of the disk that `path` is on, or will be on once it is made."""
    while True:
        try:
            return os.statvfs(path)
        except (FileNotFoundError, NotADirectoryError):
            path = path.parent


def default_ceilings(room: Room, cores: int, processes: int) -> Ceilings:
    """Returns the most that one sandbox may have on a machine with room for `processes` processes: half of its memory
    and disk, an eighth of its processes, a quarter of its open files. Never less than the default limits."""
    usual = Limits()
    return Ceilings(
        memory_mb=max(usual.memory_mb, room.memory_total // 2),
        cpus=max(2.0, float(cores)),
        pids=max(1024, min(_MAX_PIDS, processes // 8)),
        disk_mb=max(usual.disk_mb, room.disk_total // 2),
        open_files=_MAX_OPEN_FILES,
        files=max(usual.open_files * usual.pids, room.files_total // 4),
    )


def _mib(entry: str) -> int:
    return int(entry.split()[0]) >> 10


class MachineGuard:
    """Reads the machine's room at most five times a second. `freeing` returns how many bytes of destroyed sandboxes are
    being given back to the disk; they count as free."""

    def __init__(
        self,
        state_dir: Path,
        min_free_memory_mb: int | None = None,
        min_free_disk_mb: int | None = None,
        max_sandboxes: int = MAX_SANDBOXES,
        *,
        room: Callable[[Path], Room] = read_room_for_disks,
        now: Callable[[], float] = time.monotonic,
        freeing: Callable[[], int] = lambda: 0,
    ) -> None:
        self._state_dir, self._read, self._now, self._freeing = state_dir.absolute(), room, now, freeing
        self._room, self._read_at = room(self._state_dir), now()
        self.reserve = Reserve(
            default_memory_reserve(self._room) if min_free_memory_mb is None else min_free_memory_mb,
            default_disk_reserve(self._room) if min_free_disk_mb is None else min_free_disk_mb,
            max_sandboxes,
        )
        self._tight = False

    def __repr__(self) -> str:
        room = self.room()
        return f"<MachineGuard {room.memory_free} MiB of memory and {room.disk_free} MiB of disk free>"

    def room(self) -> Room:
        if self._now() - self._read_at >= _FRESH_S:
            room = self._read(self._state_dir)
            self._room, self._read_at = replace(room, disk_free=room.disk_free + (self._freeing() >> 20)), self._now()
        return self._room

    def check(self, live: int, creating: int = 0) -> None:
        """Raises MachineFull unless there is room for one more, beside `live` sandboxes and `creating` others."""
        if (error := refusal(self.room(), self.reserve, live, creating)) is not None:
            raise error

    def pressure(self) -> bool:
        """Whether the machine is close to full."""
        self._tight = is_tight(self.room(), self.reserve, was_tight=self._tight)
        return self._tight

    def most_ahead(self, live: int) -> int:
        return most_ahead(self.room(), self.reserve, live)

    def stats(self, live: int = 0) -> GuardStats:
        """Returns the figures; while the machine cannot be read, those of the last time."""
        with suppress(Exception):  # pools report it
            self.room()
        room, reserve = self._room, self.reserve
        return GuardStats(
            memory_free_mb=room.memory_free,
            memory_reserve_mb=reserve.memory,
            disk_free_mb=room.disk_free,
            disk_reserve_mb=reserve.disk,
            max_sandboxes=reserve.max_sandboxes,
            pressure=is_tight(room, reserve, was_tight=self._tight),
            pool_ceiling=most_ahead(room, reserve, live),
        )
