"""Records in the Redis that also holds the sessions. redis_lua.py says which keys there are."""

from collections.abc import Sequence
from typing import Final

from warren.interfaces.records import Record
from warren.stores.redis_link import RedisLink
from warren.stores.redis_lua import lua_list, script

_FIELDS: Final = ("kind", "id", "value", "version", "group", "due")

_RECORDS: Final = f"""
local RECORD = {lua_list(_FIELDS)}

local function records(kind, ids)
  local found = {{}}
  for _, id in ipairs(ids) do found[#found + 1] = call('HMGET', key('record', kind, id), unpack(RECORD)) end
  return found
end
"""

GET: Final = script(
    _RECORDS,
    body="""
local found = records(ARGV[3], {ARGV[4]})[1]
return found[1] and found
""",
)

PUT: Final = script(
    _RECORDS,
    body="""
local one = from(3, RECORD)
local name = key('record', one.kind, one.id)
local version, by, group = unpack(call('HMGET', name, 'version', 'by', 'group'))
if tonumber(version or 0) ~= tonumber(one.version) - 1 then
  return version and is_ours(by, version, one.version) and 1 or 0
end
call('HSET', name, 'by', with_ours(by or ''), unpack(flat(one)))
call('ZADD', key('ids', one.kind), 0, one.id)
if group and group ~= one.group then call('ZREM', key('grouped', one.kind, group), one.id) end
if one.group ~= '' then call('ZADD', key('grouped', one.kind, one.group), 0, one.id) end
if one.due == '' then call('ZREM', key('later', one.kind), one.id)
else call('ZADD', key('later', one.kind), one.due, one.id) end
return 1
""",
)

DELETE: Final = script(
    body="""
local kind, id = ARGV[3], ARGV[4]
local name = key('record', kind, id)
if call('EXISTS', key('did', token)) == 1 then return 1 end
local group = call('HGET', name, 'group')
if not group then return 0 end
call('DEL', name)
call('ZREM', key('ids', kind), id)
call('ZREM', key('grouped', kind, group), id)
call('ZREM', key('later', kind), id)
call('SET', key('did', token), '1', 'PX', DID_MS)
return 1
"""
)

LIST: Final = script(
    _RECORDS,
    body="""
local kind, group, after, limit = unpack(ARGV, 3, 6)
local set = group == '' and key('ids', kind) or key('grouped', kind, group)
return records(kind, call('ZRANGEBYLEX', set, '(' .. after, '+', 'LIMIT', 0, limit))
""",
)

DUE: Final = script(
    _RECORDS,
    body="return records(ARGV[3], call('ZRANGEBYSCORE', key('later', ARGV[3]), '-inf', ARGV[4], 'LIMIT', 0, ARGV[5]))",
)

COUNT: Final = script(
    body="return call('ZCARD', ARGV[4] == '' and key('ids', ARGV[3]) or key('grouped', ARGV[3], ARGV[4]))"
)


class RedisRecords:
    def __init__(self, link: RedisLink) -> None:
        self._link, self._run = link, link.run

    async def get(self, kind: str, record_id: str) -> Record | None:
        found = await self._run(GET, kind, record_id)
        return None if found is None else _record(found)

    async def put(self, record: Record) -> bool:
        return bool(await self._run(PUT, *_row(record)))

    async def delete(self, kind: str, record_id: str) -> bool:
        return bool(await self._run(DELETE, kind, record_id))

    async def list(self, kind: str, *, group: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        return [_record(one) for one in await self._run(LIST, kind, group, after, max(0, limit))]

    async def due(self, kind: str, now: float, limit: int) -> Sequence[Record]:
        return [_record(one) for one in await self._run(DUE, kind, float(now), max(0, limit))]

    async def count(self, kind: str, *, group: str = "") -> int:
        return int(await self._run(COUNT, kind, group))

    async def sync(self) -> None:
        """A Redis that `warren serve --workers` has started survives a loss of power by this; all others by their own
        settings."""
        await self._link.sync()


def _row(record: Record) -> tuple[str | int | float | None, ...]:
    """Returns the record's values in the order of `_FIELDS`."""
    due = None if record.due is None else float(record.due)
    return record.kind, record.id, record.value, record.version, record.group, due


def _record(values: Sequence[bytes]) -> Record:
    kind, record_id, value, version, group, due = (one.decode(errors="surrogatepass") for one in values)
    return Record(kind, record_id, value, int(version), group, float(due) if due else None)
