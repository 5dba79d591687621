"""A thread that writes the logs of sessions, so that no command waits for a disk.

`add` hands an entry over, as that of the audit record does (audit/writer.py): what waits is bounded, and shared fairly
between tenants (audit/fair_queue.py). Entries for which there is no room, or which the disk does not take, are counted,
and the log of their session says how many were not kept.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final

from warren.governance.audit.fair_queue import FairQueue, WaitingEntry
from warren.governance.session_logs.entries import CommandLogs, NewEntry
from warren.governance.session_logs.files import LogFiles, Name, Written
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.logs import get_log
from warren.sessions.schemas import timestamp

MAX_QUEUE: Final = 20_000
_MAX_HELD: Final = 32 * 1024 * 1024
_MAX_HANDED: Final = 1000
_LARGE: Final = 4096
_GATHER_S: Final = 0.1
_TURN: Final = 8
_TURN_S: Final = 0.0001
_SLOW_S: Final = 0.002  # after a turn that took longer, other threads get as much time as it took
_BATCH_S: Final = 0.2
_LOST_TOLD: Final = 1000
_TOLD: Final = 10_000

_log = get_log("warren.session_logs")


class Room(IntEnum):
    """What the quota of a tenant leaves for a log."""

    NOTHING = 0
    NO_OUTPUT = 1
    ALL = 2


class LogWriter:
    """`room` says what may be written to a log; the log says when that changes. `wake` is called in the thread with the
    logs that have new entries."""

    def __init__(
        self,
        files: LogFiles,
        commands: CommandLogs,
        *,
        room: Callable[[Name], Room] = lambda name: Room.ALL,
        wake: Callable[[Mapping[Name, Written]], None] = lambda written: None,
        wall: Callable[[], float] = time.time,
        queue_most: int = MAX_QUEUE,
    ) -> None:
        self._files, self._commands, self._room, self._wake_readers, self._wall = files, commands, room, wake, wall
        self._handed: deque[WaitingEntry[NewEntry]] = deque()
        self._handed_most = min(_MAX_HANDED, queue_most)
        self._queue = FairQueue[NewEntry](queue_most, _MAX_HELD)
        self._lost: Counter[Name] = Counter()
        self._told_room = BoundedDict[Name, Room](_TOLD)
        self._changed = threading.Lock()  # guards the queue and the losses
        self._busy = False
        self._wake = threading.Event()
        self._stopping = False
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="warren-session-logs", daemon=True)
        self._thread.start()

    def add(self, new: NewEntry) -> None:
        """Never waits for the disk, and raises nothing."""
        item = WaitingEntry(new, None, new.measure())
        self._handed.append(item)
        if item.size > _LARGE or len(self._handed) >= self._handed_most:
            with self._changed:
                self._put_handed()
        if not self._wake.is_set():
            self._wake.set()

    def last_added(self) -> int:
        """Returns the number of what was added last, for `has_written`."""
        with self._changed:
            self._put_handed()
            return self._queue.last_number

    def has_written(self, number: int) -> bool:
        """Whether what was added up to this number is written, or lost."""
        with self._changed:
            return self._queue.oldest_number > number and not self._busy

    def close(self, timeout_s: float = 5.0) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout_s)

    def _put_handed(self) -> None:
        handed = []
        while self._handed:
            handed.append(self._handed.popleft())
        for lost in self._queue.put(handed):
            self._count_lost(lost.entry.name)

    def _count_lost(self, name: Name, count: int = 1) -> None:
        if name in self._lost or len(self._lost) < _LOST_TOLD:
            self._lost[name] += count

    # -- in the thread

    def _run(self) -> None:
        while not self._stopping or self._handed or len(self._queue):
            self._wake.wait()
            self._wake.clear()
            if not self._stopping:
                time.sleep(_GATHER_S)
            while self._handed or len(self._queue):
                try:
                    self._write(self._take_batch())
                except Exception as exc:  # all logs depend on this thread: it must survive
                    _log.error("session_log_entries_lost", exc=exc)
                with self._changed:
                    self._busy = False
        self._files.close()

    def _take_batch(self) -> dict[Name, list[dict[str, Any]]]:
        """Makes entries of what waits, for a bounded time, and of all tenants in turn."""
        batch: dict[Name, list[dict[str, Any]]] = {}
        until = time.monotonic() + _BATCH_S
        while (began := time.monotonic()) < until:
            with self._changed:
                self._put_handed()
                some = self._queue.take(_TURN)
                self._busy = True
            if not some:
                break
            for item in some:
                name, room = item.entry.name, self._room(item.entry.name)
                entries = batch.setdefault(name, [])
                if room is not self._told_room.get(name, Room.ALL):
                    self._tell_room(name, room, entries)
                found = self._entries_of(item.entry, room)
                if room is not Room.NOTHING:
                    entries += found
            took_s = time.monotonic() - began
            time.sleep(took_s if took_s > _SLOW_S and not self._stopping else _TURN_S)
        return batch

    def _entries_of(self, new: NewEntry, room: Room) -> Iterable[dict[str, Any]]:
        """Returns nothing for an entry that cannot be made: no content may end this thread."""
        try:
            return list(self._commands.entries_of(new, with_output=room is Room.ALL))
        except Exception as exc:
            _log.warning("session_log_entry_not_made", error=type(exc).__name__)
            self._count_lost(new.name)
            return ()

    def _tell_room(self, name: Name, room: Room, entries: list[dict[str, Any]]) -> None:
        texts = {
            Room.ALL: "the quota logs_mb has room again",
            Room.NO_OUTPUT: "the quota logs_mb is nearly used up: output is not kept",
            Room.NOTHING: "the quota logs_mb is used up: nothing is kept",
        }
        entries.append(self.note(texts[room]))
        self._told_room[name] = room
        if room is Room.ALL:
            del self._told_room[name]

    def _write(self, batch: Mapping[Name, list[dict[str, Any]]]) -> None:
        written: dict[Name, Written] = {}
        trouble = ""
        with self._changed:
            lost, self._lost = self._lost, Counter()
        for name in {**batch, **lost}:
            entries = batch.get(name, [])
            if count := lost.get(name):
                entries.insert(0, self.note(f"{count} entries were not kept: too many came at once"))
            try:
                if entries:
                    written[name] = self._files.append(name, entries)
            except OSError as exc:
                trouble = exc.strerror or str(exc)
                with self._changed:
                    self._count_lost(name, len(batch.get(name, ())) + (count or 0))
        if trouble and trouble != self._trouble:
            _log.warning("session_logs_not_written", action="drop_entries", error=trouble)
        elif self._trouble and not trouble and written:
            _log.info("session_logs_written_again")
        self._trouble = trouble or ("" if written else self._trouble)
        if written:
            self._wake_readers(written)

    def note(self, text: str) -> dict[str, Any]:
        return {"at": timestamp(self._wall()), "kind": "note", "text": text}
