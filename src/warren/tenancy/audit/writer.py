"""A thread that writes deeds down, so that no request waits for a disk or a network.

`give` puts a deed into a queue of bounded length. The thread sleeps until there is one, lets more come for a fraction
of a second, and writes them in one go. What does not fit into the queue, or cannot be written, is counted; the count
is written as a line of its own before the next deeds, as soon as that is possible.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from warren.model.audit import DROPPED, CommandText, Deed
from warren.tenancy.audit.deeds import kept_line, line_of
from warren.tenancy.audit.journal import Appended

FLUSH_S: Final = 0.2
QUEUE_MOST: Final = 20_000
_HELD_MOST: Final = 32 * 1024 * 1024  # characters of all that waits
_BATCH: Final = 1000
_TURN: Final = 8  # so many deeds are made ready before other threads get their turn
_TURN_S: Final = 0.0001

_log = logging.getLogger("warren.audit")


class _Given(NamedTuple):
    deed: Deed
    secrets: tuple[str, ...]
    size: int


class AuditLines(Protocol):
    """Where the lines go. Used by one thread. `append` raises nothing, and may take its time."""

    def append(self, lines: Sequence[bytes]) -> Appended: ...
    def close(self) -> None: ...


class AuditWriter:
    def __init__(self, journal: AuditLines, commands: CommandText, queue_most: int = QUEUE_MOST) -> None:
        self._journal = journal
        self._commands = commands
        self._queue_most = queue_most
        self._queue: deque[_Given] = deque()
        self._changed = threading.Condition()
        self._given = self._done = self._held = 0
        self._dropped = _Dropped()
        self._hurry = self._stopping = False
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="warren-audit", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def dropped(self) -> int:
        """All that were ever lost."""
        return self._dropped.ever

    def give(self, deed: Deed, secrets: Iterable[str]) -> None:
        given = _given(deed, secrets)
        with self._changed:
            if given is None or not self._has_room(given):
                self._dropped.count(deed)
                return
            self._queue.append(given)
            self._held += given.size
            self._given += 1
            if len(self._queue) == 1:
                self._changed.notify_all()

    def _has_room(self, given: _Given) -> bool:
        full = len(self._queue) >= self._queue_most or self._held + given.size > _HELD_MOST
        return not (full or self._stopping)

    def flush(self, timeout_s: float) -> bool:
        """Blocks until what was given before is written, or lost; at most so long."""
        with self._changed:
            goal = self._given
            self._hurry = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._done >= goal, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Blocks until all is written and the thread has ended; at most so long."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._write(batch)
            except Exception:  # without this thread there is no record any more
                _log.exception("%d deeds were lost", len(batch))
                with self._changed:
                    for given in batch:
                        self._dropped.count(given.deed)
            with self._changed:
                self._done += len(batch)
                self._changed.notify_all()
        self._write([])
        self._journal.close()

    def _next_batch(self) -> list[_Given]:
        """Waits for deeds; none come any more when it is empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping)
            if len(self._queue) < _BATCH:
                self._changed.wait_for(lambda: self._hurry or self._stopping, FLUSH_S)
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), _BATCH))]
            self._held -= sum(given.size for given in batch)
            self._hurry = self._hurry and bool(self._queue)
            return batch

    def _write(self, batch: Sequence[_Given]) -> None:
        with self._changed:
            note, noted = self._dropped.note(), self._dropped.untold
        ready = [(deed, line) for deed, line in self._ready(batch) if line]
        lines = [line_of(note)] if note else []
        if not lines and not ready:
            return
        count, trouble = self._journal.append([*lines, *(line for _, line in ready)])
        with self._changed:
            if note and count:
                self._dropped.told(noted)
            for deed, _ in ready[max(0, count - len(lines)) :]:
                self._dropped.count(deed)
        self._tell(trouble)

    def _ready(self, batch: Sequence[_Given]) -> Iterable[tuple[Deed, bytes]]:
        for number, (deed, secrets, _) in enumerate(batch):
            if number % _TURN == _TURN - 1:
                time.sleep(_TURN_S)  # the event loop would wait milliseconds for its turn else
            yield deed, self._line(deed, secrets)

    def _line(self, deed: Deed, secrets: Sequence[str]) -> bytes:
        """Empty if it cannot be written at all: whatever somebody put into it must not end this thread."""
        try:
            return kept_line(deed, secrets, self._commands)
        except Exception as exc:
            _log.warning("a deed could not be written down: %s", type(exc).__name__)
            with self._changed:
                self._dropped.count(deed)
            return b""

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._told:
            _log.warning("the audit record cannot be written, deeds are lost until this is over: %s", trouble)
        elif self._told and not trouble:
            _log.warning("the audit record is written again, %d deeds were lost so far", self.dropped)
        self._told = trouble


def _given(deed: Deed, secrets: Iterable[str]) -> _Given | None:
    """None for what cannot even be looked at."""
    try:
        return _Given(deed, tuple(secrets), sum(map(_size, deed.detail.values())))
    except Exception:
        return None


def _size(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(len(one) for one in value if isinstance(one, str))
    return len(value) if isinstance(value, str) else 1


class _Dropped:
    """What was lost, and not yet told in the record itself."""

    def __init__(self) -> None:
        self.ever = self.untold = 0
        self._first = self._last = 0.0

    def count(self, deed: Deed) -> None:
        at = deed.at if isinstance(deed.at, int | float) and math.isfinite(deed.at) else self._last
        self._first = min(self._first, at) if self.untold else at
        self._last = max(self._last, at) if self.untold else at
        self.ever += 1
        self.untold += 1

    def note(self) -> Deed | None:
        if not self.untold:
            return None
        detail = {"count": self.untold, "first_at": self._first, "last_at": self._last}
        return Deed(self._last, DROPPED, result="lost", detail=detail)

    def told(self, count: int) -> None:
        self.untold -= count
