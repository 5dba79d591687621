"""The scripts of records: what they do and how is in redis_lua.py."""

from typing import Final

from warren.stores.redis_lua import lua_list, script

RECORD_FIELDS: Final = ("kind", "id", "value", "version", "group", "due")

_RECORDS: Final = f"""
local RECORD = {lua_list(RECORD_FIELDS)}

local function records(kind, ids)
  local found = {{}}
  for _, id in ipairs(ids) do found[#found + 1] = call('HMGET', key('record', kind, id), unpack(RECORD)) end
  return found
end
"""

GET_RECORD: Final = script(
    _RECORDS,
    body="""
local found = records(ARGV[3], {ARGV[4]})[1]
return found[1] and found
""",
)

PUT_RECORD: Final = script(
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

DELETE_RECORD: Final = script(
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

LIST_RECORDS: Final = script(
    _RECORDS,
    body="""
local kind, group, after, limit = unpack(ARGV, 3, 6)
local set = group == '' and key('ids', kind) or key('grouped', kind, group)
return records(kind, call('ZRANGEBYLEX', set, '(' .. after, '+', 'LIMIT', 0, limit))
""",
)

DUE_RECORDS: Final = script(
    _RECORDS,
    body="return records(ARGV[3], call('ZRANGEBYSCORE', key('later', ARGV[3]), '-inf', ARGV[4], 'LIMIT', 0, ARGV[5]))",
)

COUNT_RECORDS: Final = script(
    body="return call('ZCARD', ARGV[4] == '' and key('ids', ARGV[3]) or key('grouped', ARGV[3], ARGV[4]))"
)
