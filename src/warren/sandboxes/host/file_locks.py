"""Ends processes of sandboxes that hold too many record locks (fcntl F_SETLK).

The kernel charges locks to nobody and does not limit them: one processor can take some 600,000 in two seconds, 110 MiB
that no cgroup sees. So the watch reads the allocator's count of locks, for the whole machine, many times a second. Only
if it exceeds what one sandbox may have, the watch reads the list of locks, in small pieces, until it finds a sandbox
that has too many, and kills that sandbox's processes with the most locks.

While the kernel writes a piece of the list, nobody on the machine can take or release a lock. So after reading the list
in vain the watch pauses for twenty times as long, unless the number of locks doubles meanwhile: otherwise a few
thousand allowed locks would slow down the locks of everybody.

Every lock in the list has a living owner: sandboxes cannot take locks of open files or share open files between
processes (hardening.py), and they hold no more locks by `flock` and leases than open files, which are charged.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from warren.kernel.logs import get_log
from warren.sandboxes.host.freezing import let_die_and_freeze
from warren.sandboxes.host.processes import kill_if
from warren.sandboxes.host.uids import COUNT, FIRST, RANGE
from warren.sandboxes.host.watch import Watch

MAX_LOCKS: Final = 4096
"""How many locks one sandbox may hold."""
_LISTED: Final = 65_536
"""How many entries of the list are read. The kernel starts from its beginning for every piece."""
_HARMLESS: Final = 256
"""A sandbox with no more locks than this is never touched, however many the machine has."""
_PIECE: Final = 4096
_PAUSE: Final = 20
_ROUNDS: Final = 50
_ALLOCATED: Final = Path("/sys/kernel/slab/file_lock_cache/total_objects")
_LIST: Final = Path("/proc/locks")
_OWNER: Final = re.compile(rb" POSIX +\S+ +\S+ (\d+) ")

_log = get_log(__name__)


class Pause:
    """Decides when the list is read again. Times are those of one clock."""

    def __init__(self) -> None:
        self._until = 0.0
        self._seen = 0

    def is_over(self, count: int | None, now: float) -> bool:
        """Returns whether to read the list. `count` is the number of allocated locks; None if it is unknown."""
        if count is not None and count <= MAX_LOCKS:
            return False
        return now >= self._until or (count is not None and count > 2 * self._seen)

    def note(self, count: int | None, began: float, ended: float, *, found: bool) -> None:
        self._seen = count or 0
        self._until = ended if found else ended + _PAUSE * (ended - began)


class FileLockWatch(Watch):
    """Watches the machine's locks. Several workers may do so at once: each ends what it finds."""

    name = "file locks"

    def __init__(self) -> None:
        super().__init__()
        self._pause = Pause()
        self._count: int | None = None

    def _is_too_much(self) -> bool:
        self._count = allocated()
        return self._pause.is_over(self._count, time.monotonic())

    async def _act(self) -> None:
        began = time.monotonic()
        found = await asyncio.to_thread(end_offenders)
        self._pause.note(self._count, began, time.monotonic(), found=found)


def is_counted() -> bool:
    return allocated() is not None


def allocated() -> int | None:
    """Returns the number of locks that the kernel has allocated; None if it does not tell."""
    try:
        return int(_ALLOCATED.read_bytes().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def end_offenders() -> bool:
    """Kills processes until no sandbox has too many locks. Returns whether there was one."""
    sandboxes: dict[int, int | None] = {}
    for again in range(_ROUNDS):
        offenders = find_offenders(_list_owners(), lambda pid: _sandbox_of(pid, sandboxes))
        for pid, locks in offenders.items():
            _log.warning("file_locks_exceeded", action="kill", pid=pid, locks=locks)
            # The uid is checked again under a pidfd: a process of the host is never killed.
            kill_if(pid, lambda pid: sandbox_of(pid) is not None)
        let_die_and_freeze(offenders)
        if not offenders:
            return again > 0
    return True


def find_offenders(owners: Iterable[int], sandbox: Callable[[int], int | None]) -> Mapping[int, int]:
    """Returns the processes to kill, each with its locks seen so far. `owners` yields a process for each lock.

    They are those with the most locks in the first sandbox that has too many. If no sandbox has, but the machine has
    more locks than could be read, they are in the sandbox with the most.
    """
    held, totals, seen = dict[int, Counter[int]](), Counter[int](), 0
    for pid in owners:
        seen += 1
        index = sandbox(pid)
        if index is None:
            continue
        held.setdefault(index, Counter())[pid] += 1
        totals[index] += 1
        if totals[index] > MAX_LOCKS:
            return _largest(held[index])
    if seen < _LISTED or not totals:
        return {}
    index, most = totals.most_common(1)[0]
    return _largest(held[index]) if most > _HARMLESS else {}


def _largest(held: Counter[int]) -> dict[int, int]:
    """Returns the processes with the most locks, which together hold at least half."""
    left, half, found = held.total(), held.total() // 2, dict[int, int]()
    for pid, locks in held.most_common():
        if left <= half:
            break
        found[pid] = locks
        left -= locks
    return found


def _list_owners() -> Iterable[int]:
    """Yields the owner of each lock, in pieces: parsing a long list at once would stop our other threads."""
    count, rest = 0, b""
    with _LIST.open("rb", buffering=0) as file:
        while count < _LISTED and (piece := file.read(_PIECE)):
            lines, _, rest = (rest + piece).rpartition(b"\n")
            for owner in _OWNER.findall(lines + b" "):
                count += 1
                yield int(owner)


def _sandbox_of(pid: int, known: dict[int, int | None]) -> int | None:
    if pid not in known:
        known[pid] = sandbox_of(pid)
    return known[pid]


def sandbox_of(pid: int) -> int | None:
    """Returns the number of the sandbox's uid range; None if the process is gone or belongs to the host."""
    index = (uid_of(pid) - FIRST) // RANGE
    return index if 0 <= index < COUNT else None


def uid_of(pid: int) -> int:
    """Returns the uid of a process; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("\nUid:")[2].split()[0])
