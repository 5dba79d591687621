"""A thread that writes audit entries, so that no request waits for a disk or a network.

`add` hands an entry over: it appends to a list without a lock and, unless nothing was recorded for a while, without
waking the thread. The thread looks for entries several times a second, makes lines of them and writes these in one go.
What waits is bounded (fair_queue.py). Entries that do not fit or cannot be written are counted, and the thread writes
the counts as entries of their own before the next ones, as soon as that is possible.

The work for one entry is bounded (redaction.py). When the server stops and a long queue would take too long, the
remaining entries are written without their details, rather than lost.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from warren.governance.audit.entries import encode_entry, encode_redacted, encode_without_detail
from warren.governance.audit.fair_queue import FairQueue, WaitingEntry, tenant_of
from warren.governance.audit.redaction import MAX_SECRETS, MAX_SECRETS_HELD, MAX_TEXT_HELD, CutText, cut_words
from warren.governance.audit.rotating_files import Appended
from warren.kernel.logs import get_log
from warren.model.audit import DROPPED, AuditEntry, CommandText, RequestRecord

FLUSH_S: Final = 0.2
MAX_QUEUE: Final = 20_000
_MAX_HELD: Final = 32 * 1024 * 1024  # characters of all that waits
_MAX_HANDED: Final = 1000  # entries that were handed over and are not yet in the queue
_LARGE: Final = 4096  # an entry with more characters goes into the queue at once
_BATCH: Final = 1000
_ENCODE_MAX_S: Final = 0.2  # how long entries are encoded before they are written
_TURN: Final = 8  # how many entries are encoded before other threads get their turn
_TURN_S: Final = 0.0001
_SLOW_S: Final = 0.002  # after a turn that took longer, other threads get as much time as it took
_IDLE_S: Final = 2.0
_BASE_SIZE: Final = 256
_TENANTS_TOLD: Final = 64

Waiting = WaitingEntry[AuditEntry | RequestRecord]

_log = get_log("warren.audit")


class AuditLines(Protocol):
    """Where the lines are written. Used by one thread. `append` raises nothing, and may block."""

    def append(self, lines: Sequence[bytes]) -> Appended: ...
    def close(self) -> None: ...


class AuditWriter:
    def __init__(self, lines: AuditLines, commands: CommandText, queue_most: int = MAX_QUEUE) -> None:
        self._lines = lines
        self._commands = commands
        self._handed: deque[Waiting] = deque()
        self._handed_most = min(_MAX_HANDED, queue_most)
        self._queue = FairQueue[AuditEntry | RequestRecord](queue_most, _MAX_HELD)
        self._lost = _Losses()
        self._changed = threading.Condition()  # guards the queue, the losses and `_written_below`
        self._written_below = 1  # all entries with smaller numbers are written, or lost
        self._wake = threading.Event()
        self._asleep = self._stopping = False
        self._hasty_from = math.inf  # from then on entries are written without their details
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="warren-audit", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        with self._changed:
            self._put_handed()
            return len(self._queue)

    @property
    def dropped(self) -> int:
        """The number of all lost entries."""
        with self._changed:
            self._put_handed()
            return self._lost.total

    def add(self, entry: AuditEntry | RequestRecord, secrets: Collection[str] | None = ()) -> None:
        try:
            item = _measure(entry, secrets)
        except Exception:  # whatever somebody put into it
            self._count_lost([entry])
            return
        if self._stopping:
            self._count_lost([entry])
            return
        self._handed.append(item)
        if item.size > _LARGE or len(self._handed) >= self._handed_most:
            with self._changed:
                self._put_handed()
        # The thread says that it is asleep before it looks for the last time: either it sees the entry, or we see this.
        if self._asleep:
            self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Blocks until what was added before is written, or lost; for the time-out at most. Returns whether it is."""
        with self._changed:
            self._put_handed()
            goal = self._queue.last_number
            self._wake.set()
            return self._changed.wait_for(lambda: self._written_below > goal, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Blocks until all is written and the thread has ended; for the time-out at most. Returns whether it has."""
        with self._changed:
            self._stopping = True
            self._hasty_from = min(self._hasty_from, time.monotonic() + timeout_s / 2)
            self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _put_handed(self) -> None:
        """Puts what was handed over into the queue, with the lock held."""
        handed = []
        while self._handed:
            handed.append(self._handed.popleft())
        for lost in self._queue.put(handed):
            self._lost.count(lost.entry)

    def _count_lost(self, entries: Sequence[AuditEntry | RequestRecord]) -> None:
        with self._changed:
            for entry in entries:
                self._lost.count(entry)

    # -- in the thread

    def _run(self) -> None:
        while self._wait_for_entries():
            batch: list[tuple[Waiting, bytes]] = []
            try:
                batch = self._encode_batch()
                self._write(batch)
            except Exception as exc:  # the audit log depends on this thread: it must survive
                _log.error("audit_entries_lost", count=len(batch), exc=exc)
                self._count_lost([item.entry for item, _ in batch])
            with self._changed:
                self._written_below = self._queue.oldest_number
                self._changed.notify_all()
        self._write([])
        self._lines.close()
        if unreported := self._lost.unreported:
            _log.error("audit_entries_lost", count=unreported, reason="server_stopped")

    def _wait_for_entries(self) -> bool:
        """Waits for entries; returns False when no more will come. Lets entries gather for a while, unless somebody
        waits for them to be written."""
        idle_since = time.monotonic()
        while True:
            self._wake.wait(0 if self._stopping or len(self._queue) else FLUSH_S)
            self._wake.clear()
            if self._handed or len(self._queue):
                return True
            if self._stopping:
                return False
            if time.monotonic() - idle_since > _IDLE_S:
                self._asleep = True
                if not self._handed and not self._stopping:
                    self._wake.wait()
                self._asleep = False
                idle_since = time.monotonic()

    def _encode_batch(self) -> list[tuple[Waiting, bytes]]:
        """Encodes entries for a bounded time, those of all tenants in turn. They are written as they came."""
        batch: list[tuple[Waiting, bytes]] = []
        until = time.monotonic() + _ENCODE_MAX_S
        while len(batch) < _BATCH and (began := time.monotonic()) < until:
            with self._changed:
                self._put_handed()
                some = self._queue.take(_TURN)
            if not some:
                break
            batch += [(item, self._encode(item)) for item in some]
            took_s = time.monotonic() - began
            time.sleep(took_s if took_s > _SLOW_S and not self._stopping else _TURN_S)  # the event loop's turn
        return sorted(batch, key=lambda one: one[0].number)

    def _encode(self, item: Waiting) -> bytes:
        """Returns an empty line for an entry that cannot be encoded: no content may end this thread."""
        try:
            entry = item.entry.as_entry() if isinstance(item.entry, RequestRecord) else item.entry
            if time.monotonic() > self._hasty_from:
                return encode_without_detail(entry, "the server was stopping")
            return encode_redacted(entry, item.secrets, self._commands)
        except Exception as exc:
            _log.warning("audit_entry_not_encoded", error=type(exc).__name__)
            self._count_lost([item.entry])
            return b""

    def _write(self, batch: Sequence[tuple[Waiting, bytes]]) -> None:
        with self._changed:
            notes = self._lost.as_entries()
        ready = [(item, line) for item, line in batch if line]
        if not notes and not ready:
            return
        count, trouble = self._lines.append([*map(encode_entry, notes), *(line for _, line in ready)])
        with self._changed:
            for note in notes[:count]:
                self._lost.set_reported(note)
            for item, _ in ready[max(0, count - len(notes)) :]:
                self._lost.count(item.entry)
        self._log_change(trouble)

    def _log_change(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            _log.warning("audit_not_written", action="drop_entries", error=trouble)
        elif self._trouble and not trouble:
            _log.warning("audit_written_again", dropped=self.dropped)
        self._trouble = trouble


def _measure(entry: AuditEntry | RequestRecord, secrets: Collection[str] | None) -> Waiting:
    """Returns an entry for the queue, with no more of long texts and of many secrets than will be looked at. Raises if
    the entry holds what cannot be measured."""
    detail = entry.notes if isinstance(entry, RequestRecord) else entry.detail
    held: tuple[str, ...] | None = ()
    size = _BASE_SIZE
    if secrets is None or len(secrets) > MAX_SECRETS:
        held = None
    elif secrets:
        held = tuple(secrets)
        size += sum(map(len, held))
        if size > MAX_SECRETS_HELD:
            held, size = None, _BASE_SIZE
    cut: dict[str, Any] = {}
    for name, value in detail.items():
        if isinstance(value, str):
            size += min(len(value), MAX_TEXT_HELD)
            if len(value) > MAX_TEXT_HELD:
                cut[name] = CutText.of(value)
        elif isinstance(value, list | tuple):
            try:
                is_short = len(value) + sum(map(len, value)) <= MAX_TEXT_HELD
            except TypeError:  # not all of them are texts
                is_short = False
            words = None if is_short else cut_words(value)
            if words:
                cut[name] = words
            size += 2 * MAX_TEXT_HELD if words else len(value)
    if not cut:
        return WaitingEntry(entry, held, size)
    if isinstance(entry, RequestRecord):
        return WaitingEntry(entry._replace(notes={**detail, **cut}), held, size)
    return WaitingEntry(replace(entry, detail={**detail, **cut}), held, size)


class _Losses:
    """Counts lost entries: all of them, and by tenant those that no entry in the log reports yet."""

    def __init__(self) -> None:
        self.total = 0
        self._unreported: dict[str, _Loss] = {}

    @property
    def unreported(self) -> int:
        return sum(loss.count for loss in self._unreported.values())

    def count(self, entry: AuditEntry | RequestRecord) -> None:
        self.total += 1
        tenant = tenant_of(entry)
        if tenant not in self._unreported and len(self._unreported) >= _TENANTS_TOLD:
            tenant = ""
        loss = self._unreported.setdefault(tenant, _Loss())
        at = entry.at if isinstance(entry.at, int | float) and math.isfinite(entry.at) else loss.last_at
        loss.first_at = min(loss.first_at, at) if loss.count else at
        loss.last_at = max(loss.last_at, at) if loss.count else at
        loss.count += 1

    def as_entries(self) -> list[AuditEntry]:
        return [
            AuditEntry(
                loss.last_at,
                DROPPED,
                tenant,
                result="lost",
                detail={"count": loss.count, "first_at": loss.first_at, "last_at": loss.last_at},
            )
            for tenant, loss in self._unreported.items()
        ]

    def set_reported(self, note: AuditEntry) -> None:
        loss = self._unreported[note.tenant]
        loss.count -= note.detail["count"]
        if not loss.count:
            del self._unreported[note.tenant]


@dataclass(slots=True)
class _Loss:
    count: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
