"""Records in the Redis that also holds the sessions."""

from collections.abc import Sequence

from warren.interfaces.records import Record
from warren.stores import redis_record_scripts as scripts
from warren.stores.redis_link import RedisLink


class RedisRecords:
    def __init__(self, link: RedisLink) -> None:
        self._run = link.run

    async def get(self, kind: str, record_id: str) -> Record | None:
        found = await self._run(scripts.GET_RECORD, kind, record_id)
        return None if found is None else _record(found)

    async def put(self, record: Record) -> bool:
        return bool(await self._run(scripts.PUT_RECORD, *_row(record)))

    async def delete(self, kind: str, record_id: str) -> bool:
        return bool(await self._run(scripts.DELETE_RECORD, kind, record_id))

    async def list(self, kind: str, *, group: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        return [_record(one) for one in await self._run(scripts.LIST_RECORDS, kind, group, after, max(0, limit))]

    async def due(self, kind: str, now: float, limit: int) -> Sequence[Record]:
        return [_record(one) for one in await self._run(scripts.DUE_RECORDS, kind, float(now), max(0, limit))]

    async def count(self, kind: str, *, group: str = "") -> int:
        return int(await self._run(scripts.COUNT_RECORDS, kind, group))


def _row(record: Record) -> tuple[str | int | float | None, ...]:
    """In the order of `scripts.RECORD_FIELDS`."""
    due = None if record.due is None else float(record.due)
    return record.kind, record.id, record.value, record.version, record.group, due


def _record(values: Sequence[bytes]) -> Record:
    kind, record_id, value, version, group, due = (one.decode(errors="surrogatepass") for one in values)
    return Record(kind, record_id, value, int(version), group, float(due) if due else None)
