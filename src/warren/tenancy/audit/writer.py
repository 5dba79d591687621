"""A thread that writes audit entries, so that no request waits for a disk or a network.

`add` puts an entry into a queue of bounded length. The thread waits for entries, lets more come for a fraction of a
second, and writes them in one go. It counts the entries that do not fit into the queue or cannot be written, and writes
the count as an entry of its own before the next ones, as soon as that is possible.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from warren.logs import get_log
from warren.model.audit import DROPPED, AuditEntry, CommandText
from warren.tenancy.audit.entries import encode_entry, encode_redacted
from warren.tenancy.audit.rotating_files import Appended

FLUSH_S: Final = 0.2
QUEUE_MOST: Final = 20_000
_HELD_MOST: Final = 32 * 1024 * 1024  # characters of all that waits
_BATCH: Final = 1000
_TURN: Final = 8  # so many entries are encoded before other threads get their turn
_TURN_S: Final = 0.0001

_log = get_log("warren.audit")


class _Queued(NamedTuple):
    entry: AuditEntry
    secrets: tuple[str, ...]
    size: int


class AuditLines(Protocol):
    """Where the lines are written. Used by one thread. `append` raises nothing, and may block."""

    def append(self, lines: Sequence[bytes]) -> Appended: ...
    def close(self) -> None: ...


class AuditWriter:
    def __init__(self, lines: AuditLines, commands: CommandText, queue_most: int = QUEUE_MOST) -> None:
        self._lines = lines
        self._commands = commands
        self._queue_most = queue_most
        self._queue: deque[_Queued] = deque()
        self._changed = threading.Condition()
        self._added = self._done = self._held = 0
        self._dropped = _Dropped()
        self._hurry = self._stopping = False
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="warren-audit", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def dropped(self) -> int:
        """The number of all lost entries."""
        return self._dropped.total

    def add(self, entry: AuditEntry, secrets: Iterable[str]) -> None:
        queued = _measure(entry, secrets)
        with self._changed:
            if queued is None or not self._has_room(queued):
                self._dropped.count(entry)
                return
            self._queue.append(queued)
            self._held += queued.size
            self._added += 1
            if len(self._queue) == 1:
                self._changed.notify_all()

    def _has_room(self, queued: _Queued) -> bool:
        full = len(self._queue) >= self._queue_most or self._held + queued.size > _HELD_MOST
        return not (full or self._stopping)

    def flush(self, timeout_s: float) -> bool:
        """Blocks until what was added before is written, or lost; for the time-out at most."""
        with self._changed:
            goal = self._added
            self._hurry = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._done >= goal, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Blocks until all is written and the thread has ended; for the time-out at most."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._write(batch)
            except Exception as exc:  # the audit log depends on this thread: it must survive
                _log.error("audit_entries_lost", count=len(batch), exc=exc)
                with self._changed:
                    for queued in batch:
                        self._dropped.count(queued.entry)
            with self._changed:
                self._done += len(batch)
                self._changed.notify_all()
        self._write([])
        self._lines.close()

    def _next_batch(self) -> list[_Queued]:
        """Waits for entries. An empty batch means that no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping)
            if len(self._queue) < _BATCH:
                self._changed.wait_for(lambda: self._hurry or self._stopping, FLUSH_S)
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), _BATCH))]
            self._held -= sum(queued.size for queued in batch)
            self._hurry = self._hurry and bool(self._queue)
            return batch

    def _write(self, batch: Sequence[_Queued]) -> None:
        with self._changed:
            note, noted = self._dropped.as_entry(), self._dropped.unreported
        ready = [(entry, line) for entry, line in self._encode_all(batch) if line]
        lines = [encode_entry(note)] if note else []
        if not lines and not ready:
            return
        count, trouble = self._lines.append([*lines, *(line for _, line in ready)])
        with self._changed:
            if note and count:
                self._dropped.set_reported(noted)
            for entry, _ in ready[max(0, count - len(lines)) :]:
                self._dropped.count(entry)
        self._log_change(trouble)

    def _encode_all(self, batch: Sequence[_Queued]) -> Iterable[tuple[AuditEntry, bytes]]:
        for number, (entry, secrets, _) in enumerate(batch):
            if number % _TURN == _TURN - 1:
                time.sleep(_TURN_S)  # else the event loop would wait milliseconds for its turn
            yield entry, self._encode(entry, secrets)

    def _encode(self, entry: AuditEntry, secrets: Sequence[str]) -> bytes:
        """Gives nothing for an entry that cannot be encoded: no content may end this thread."""
        try:
            return encode_redacted(entry, secrets, self._commands)
        except Exception as exc:
            _log.warning("audit_entry_not_encoded", error=type(exc).__name__)
            with self._changed:
                self._dropped.count(entry)
            return b""

    def _log_change(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            _log.warning("audit_not_written", action="drop_entries", error=trouble)
        elif self._trouble and not trouble:
            _log.warning("audit_written_again", dropped=self.dropped)
        self._trouble = trouble


def _measure(entry: AuditEntry, secrets: Iterable[str]) -> _Queued | None:
    """None for an entry that cannot be looked at."""
    try:
        return _Queued(entry, tuple(secrets), sum(map(_size, entry.detail.values())))
    except Exception:
        return None


def _size(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(len(one) for one in value if isinstance(one, str))
    return len(value) if isinstance(value, str) else 1


class _Dropped:
    """Lost entries, among them those that no entry in the log reports yet."""

    def __init__(self) -> None:
        self.total = self.unreported = 0
        self._first = self._last = 0.0

    def count(self, entry: AuditEntry) -> None:
        at = entry.at if isinstance(entry.at, int | float) and math.isfinite(entry.at) else self._last
        self._first = min(self._first, at) if self.unreported else at
        self._last = max(self._last, at) if self.unreported else at
        self.total += 1
        self.unreported += 1

    def as_entry(self) -> AuditEntry | None:
        if not self.unreported:
            return None
        detail = {"count": self.unreported, "first_at": self._first, "last_at": self._last}
        return AuditEntry(self._last, DROPPED, result="lost", detail=detail)

    def set_reported(self, count: int) -> None:
        self.unreported -= count
