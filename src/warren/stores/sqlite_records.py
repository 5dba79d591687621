"""Records in the file that also holds the sessions. Every call works on the event loop itself, as theirs do."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from warren.interfaces.records import Record
from warren.stores.sqlite_file import SqliteFile

_COLUMNS: Final = 'kind, id, value, version, "group", due'
_INSERT: Final = f"INSERT OR IGNORE INTO records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
_CHANGE: Final = """UPDATE records SET value = ?, version = ?, "group" = ?, due = ?
    WHERE kind = ? AND id = ? AND version = ?"""
_DUE: Final = f"SELECT {_COLUMNS} FROM records WHERE kind = ? AND due <= ? ORDER BY due, id LIMIT ?"


class SqliteRecords:
    """`writable` is awaited before each change: it says when the file may be written to."""

    def __init__(self, file: SqliteFile, writable: Callable[[], Awaitable[None]]) -> None:
        self._run = file.run
        self._writable = writable

    async def get(self, kind: str, record_id: str) -> Record | None:
        row = self._run(f"SELECT {_COLUMNS} FROM records WHERE kind = ? AND id = ?", kind, record_id).fetchone()
        return None if row is None else Record(*row)

    async def put(self, record: Record) -> bool:
        await self._writable()
        if record.version == 1:
            return self._run(_INSERT, *_row(record)).rowcount == 1
        changes = record.value, record.version, record.group, record.due
        return self._run(_CHANGE, *changes, record.kind, record.id, record.version - 1).rowcount == 1

    async def delete(self, kind: str, record_id: str) -> bool:
        await self._writable()
        return self._run("DELETE FROM records WHERE kind = ? AND id = ?", kind, record_id).rowcount == 1

    async def list(self, kind: str, *, group: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        which, values = _which(kind, group)
        sql = f"SELECT {_COLUMNS} FROM records WHERE {which} AND id > ? ORDER BY id LIMIT ?"
        return [Record(*row) for row in self._run(sql, *values, after, max(0, limit)).fetchall()]

    async def due(self, kind: str, now: float, limit: int) -> Sequence[Record]:
        return [Record(*row) for row in self._run(_DUE, kind, now, max(0, limit)).fetchall()]

    async def count(self, kind: str, *, group: str = "") -> int:
        which, values = _which(kind, group)
        return int(self._run(f"SELECT count(*) FROM records WHERE {which}", *values).fetchone()[0])


def _row(record: Record) -> tuple[Any, ...]:
    return record.kind, record.id, record.value, record.version, record.group, record.due


def _which(kind: str, group: str) -> tuple[str, tuple[str, ...]]:
    return ('kind = ? AND "group" = ?', (kind, group)) if group else ("kind = ?", (kind,))
