"""What clients said about the commands that they started, for lists and to find commands by their tags.

The sandbox itself knows a command by its id, its pid and the beginning of its line. A command whose record is gone,
because the server was restarted or too many others came after it, is shown with those.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any, Final

_MOST_RECORDS: Final = 10_000
_MOST_CHARACTERS: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Record:
    """`config` has cmd, args, envs and cwd as the client gave them. Without `stdin` nothing can be written to it."""

    config: dict[str, Any]
    tag: str | None = None
    stdin: bool = True
    size: int = field(default=0, compare=False)


class StartedCommands:
    """The records, and who reads the output of which command: one that is read must not be forgotten."""

    def __init__(self) -> None:
        self._readers: Counter[tuple[str, str]] = Counter()
        self._awaited: set[tuple[str, str]] = set()
        self._records: OrderedDict[tuple[str, str], Record] = OrderedDict()
        self._size = 0

    def __repr__(self) -> str:
        return (
            f"<StartedCommands: {len(self._records)} records, {len(self._readers)} read, {len(self._awaited)} awaited>"
        )

    def add(self, session_id: str, process_id: str, record: Record) -> None:
        self._records[session_id, process_id] = record
        self._size += record.size
        while len(self._records) > _MOST_RECORDS or self._size > _MOST_CHARACTERS:
            self._size -= self._records.popitem(last=False)[1].size

    def find(self, session_id: str, process_id: str) -> Record | None:
        return self._records.get((session_id, process_id))

    def remove(self, session_id: str, process_id: str) -> None:
        if (record := self._records.pop((session_id, process_id), None)) is not None:
            self._size -= record.size

    def close_stdin(self, session_id: str, process_id: str) -> None:
        if (record := self.find(session_id, process_id)) is not None:
            self._records[session_id, process_id] = replace(record, stdin=False)

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
        """False if somebody awaits the end of the command already, to forget it."""
        name = (session_id, process_id)
        if name in self._awaited:
            return False
        self._awaited.add(name)
        return True

    def end_awaiting(self, session_id: str, process_id: str) -> None:
        self._awaited.discard((session_id, process_id))
