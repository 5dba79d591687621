"""Remembers what clients said about the commands that they started, to list commands and to find them by their tags.

The sandbox itself knows a command by its id, its pid and the beginning of its line. A command whose record is gone,
because the server was restarted or too many others came after it, is shown with those.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

from warren.kernel.fair_share import FairShare

_MAX_CHARACTERS: Final = 16 * 1024 * 1024
_RECORD_CHARACTERS: Final = 1000  # what a record takes beside the texts of its client
_SHARE: Final = 8  # one sandbox may have this part of it: an eighth


@dataclass(frozen=True, slots=True)
class StartedCommand:
    """`config` has cmd, args, envs and cwd as the client gave them. Without `stdin` nothing can be written to the
    command."""

    config: dict[str, Any]
    tag: str | None = None
    stdin: bool = True
    size: int = field(default=0, compare=False)


class StartedCommands:
    """The records, and who reads the output of which command: one that is read must not be forgotten."""

    def __init__(self, max_characters: int = _MAX_CHARACTERS) -> None:
        self._readers: Counter[tuple[str, str]] = Counter()
        self._awaited: set[tuple[str, str]] = set()
        self._records: dict[str, dict[str, StartedCommand]] = {}  # by session id and process id
        self._sizes = FairShare(max_characters, each=max_characters // _SHARE)  # by session id, in characters

    def __repr__(self) -> str:
        records = sum(map(len, self._records.values()))
        return f"<StartedCommands: {records} records, {len(self._readers)} read, {len(self._awaited)} awaited>"

    def add(self, session_id: str, process_id: str, record: StartedCommand) -> None:
        """The oldest records of a sandbox make way for its newer ones; those of others only when all take too much, and
        then those of the sandbox that takes the most."""
        self.remove(session_id, process_id)
        self._records.setdefault(session_id, {})[process_id] = record
        self._sizes.take(session_id, record.size + _RECORD_CHARACTERS)
        while self._sizes.held(session_id) > self._sizes.each:
            self._remove_oldest(session_id)
        while self._sizes.in_all > self._sizes.total:
            self._remove_oldest(self._sizes.largest())

    def _remove_oldest(self, session_id: str) -> None:
        self.remove(session_id, next(iter(self._records[session_id])))

    def find(self, session_id: str, process_id: str) -> StartedCommand | None:
        records = self._records.get(session_id)
        return records.get(process_id) if records is not None else None

    def remove(self, session_id: str, process_id: str) -> None:
        records = self._records.get(session_id)
        if records is None:
            return
        if (record := records.pop(process_id, None)) is not None:
            self._sizes.give_back(session_id, record.size + _RECORD_CHARACTERS)
        if not records:
            del self._records[session_id]

    def close_stdin(self, session_id: str, process_id: str) -> None:
        if (record := self.find(session_id, process_id)) is not None:
            self._records[session_id][process_id] = replace(record, stdin=False)

    def begin_reading(self, session_id: str, process_id: str) -> None:
        self._readers[session_id, process_id] += 1

    def end_reading(self, session_id: str, process_id: str) -> None:
        name = (session_id, process_id)
        self._readers[name] -= 1
        if not self._readers[name]:
            del self._readers[name]

    def is_read(self, session_id: str, process_id: str) -> bool:
        return (session_id, process_id) in self._readers

    def begin_awaiting(self, session_id: str, process_id: str) -> bool:
        """Returns False if the end of the command is awaited already, to forget it."""
        name = (session_id, process_id)
        if name in self._awaited:
            return False
        self._awaited.add(name)
        return True

    def end_awaiting(self, session_id: str, process_id: str) -> None:
        self._awaited.discard((session_id, process_id))
