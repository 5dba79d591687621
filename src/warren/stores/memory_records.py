"""Records in memory: gone when the process ends. No operation awaits anything, so each is atomic."""

import heapq
from collections.abc import Iterator, Sequence

from warren.interfaces.records import Record


class MemoryRecords:
    def __init__(self) -> None:
        self._records: dict[tuple[str, str], Record] = {}

    def __repr__(self) -> str:
        return f"<MemoryRecords: {len(self._records)}>"

    async def get(self, kind: str, record_id: str) -> Record | None:
        return self._records.get((kind, record_id))

    async def put(self, record: Record) -> bool:
        known = self._records.get((record.kind, record.id))
        if (known.version if known else 0) != record.version - 1:
            return False
        self._records[record.kind, record.id] = record
        return True

    async def delete(self, kind: str, record_id: str) -> bool:
        return self._records.pop((kind, record_id), None) is not None

    async def list(self, kind: str, *, group: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        return heapq.nsmallest(limit, (one for one in self._of(kind, group) if one.id > after), key=lambda one: one.id)

    async def due(self, kind: str, now: float, limit: int) -> Sequence[Record]:
        late = [(one.due, one.id, one) for one in self._of(kind) if one.due is not None and one.due <= now]
        return [one for _, _, one in heapq.nsmallest(limit, late)]

    async def count(self, kind: str, *, group: str = "") -> int:
        return sum(1 for _ in self._of(kind, group))

    def _of(self, kind: str, group: str = "") -> Iterator[Record]:
        return (one for one in self._records.values() if one.kind == kind and group in ("", one.group))
