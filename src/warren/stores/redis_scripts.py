"""The scripts of sessions and Idempotency-Keys. redis_lua.py says which keys there are and how scripts work."""

from typing import Final

from warren.interfaces.store import ANSWER_GONE, SHORT_ANSWER
from warren.model.session import SessionState
from warren.stores.common import EVICTED_AT_ONCE
from warren.stores.redis_lua import lua_list, lua_set, script

VERSION: Final = 1
FIELDS: Final = (
    *("id", "tenant", "thread", "state", "environment", "version", "created", "deadline", "epoch", "over"),
    *("key_id", "disk", "void", "gpus", "data"),
)

SESSIONS: Final = f"""
local FIELDS = {lua_list(FIELDS)}
local INDEXED = {lua_list(FIELDS[:-1])}
local ACTIVE = {lua_set(state for state in SessionState if state.is_active)}
local USABLE = {lua_set(state for state in SessionState if state.is_usable)}
local COUNTED = {lua_set(state for state in SessionState if state.is_counted)}
local PAUSED = {lua_set(state for state in SessionState if state.is_paused)}
local HELD = {{'sessions', 'disk', 'gpus', 'paused'}}
local EXPIRING = {lua_set(state for state in SessionState if state.expires)}

local function known(id)
  local values = call('HMGET', key('session', id), 'by', unpack(INDEXED))
  if not values[1] then return nil end
  local one = {{by = values[1]}}
  for at, name in ipairs(INDEXED) do one[name] = values[at + 1] end
  return one
end

-- What one session takes up, in the order of HELD.
local function takes(one)
  if not one or not COUNTED[one.state] then return {{0, 0, 0, 0}} end
  local paused = PAUSED[one.state] and 1 or 0
  return {{1 - paused, tonumber(one.disk), tonumber(one.gpus or 0), paused}}
end

local function hold(one, sign)
  for _, name in ipairs({{key('held', one.tenant), key('held', one.tenant, one.key_id)}}) do
    for number, amount in ipairs(takes(one)) do
      if amount ~= 0 then call('HINCRBY', name, HELD[number], string.format('%d', sign * amount)) end
    end
    local left = call('HMGET', name, 'sessions', 'paused')
    if tonumber(left[1] or 0) + tonumber(left[2] or 0) == 0 then call('DEL', name) end
  end
end

-- Compares with the caps, of the tenant and then of the key, which begin at an argument. Returns nothing, or what is
-- taken up in addition, and what the tenant and the key hold.
local function excess(one, before, first)
  local more, after, then_, sums, over = {{}}, takes(one), takes(before), {{}}, false
  for number, _ in ipairs(HELD) do more[number] = after[number] - then_[number] end
  for level, name in ipairs({{key('held', one.tenant), key('held', one.tenant, one.key_id)}}) do
    local held = call('HMGET', name, unpack(HELD))
    for number, amount in ipairs(more) do
      local sum, most = tonumber(held[number] or 0), tonumber(ARGV[first + (level - 1) * #HELD + number - 1])
      sums[#sums + 1] = sum
      over = over or (most and amount > 0 and sum + amount > most)
    end
  end
  if not over then return nil end
  for _, sum in ipairs(sums) do more[#more + 1] = sum end
  return {{'quota', unpack(more)}}
end

-- Adds a session to the indexes that depend on its state; `leave` removes it.
local function enter(one)
  call('HINCRBY', key('counts'), one.state, 1)
  if EXPIRING[one.state] then call('ZADD', key('due'), one.deadline, one.id) end
  if COUNTED[one.state] then hold(one, 1) end
  if ACTIVE[one.state] then
    call('ZADD', key('active'), one.created, one.id)
    call('ZADD', key('live', one.tenant), one.created, one.id)
    if one.thread ~= '' then call('SET', key('holder', one.tenant, one.thread), one.id) end
  else
    call('ZADD', key('ended', one.epoch), one.over, one.id)
    call('SADD', key('epochs'), one.epoch)
  end
end

local function leave(one)
  call('ZREM', key('due'), one.id)
  call('HINCRBY', key('counts'), one.state, -1)
  if COUNTED[one.state] then hold(one, -1) end
  if ACTIVE[one.state] then
    call('ZREM', key('active'), one.id)
    call('ZREM', key('live', one.tenant), one.id)
    local holder = key('holder', one.tenant, one.thread)
    if call('GET', holder) == one.id then call('DEL', holder) end
  else
    call('ZREM', key('ended', one.epoch), one.id)
  end
end
"""

_KEYS: Final = (
    f"""
local SHORT_ANSWER = {SHORT_ANSWER}
"""
    + """
local function unlink(name, session_id, epoch)
  if session_id and session_id ~= '' then
    call('SREM', key('keys', session_id), name)
  elseif epoch then
    call('ZREM', key('claimed', epoch), name)
  end
end

local function counted(size)
  return size > SHORT_ANSWER and size or 0
end

-- Adds to the sums of a tenant's claimed keys and of all.
local function count(tenant, keys, bytes)
  for _, sums in ipairs({key('answers', tenant), key('answers')}) do
    call('HINCRBY', sums, 'bytes', string.format('%d', bytes))
    if call('HINCRBY', sums, 'keys', keys) <= 0 then call('DEL', sums) end
  end
end

local function sums_of(tenant, field)
  return tonumber(call('HGET', key('answers', tenant), field) or 0), tonumber(call('HGET', key('answers'), field) or 0)
end

local function forget(name)
  local old = call('HMGET', name, 'session', 'epoch', 'tenant')
  local size = call('HSTRLEN', name, 'answer')
  if call('DEL', name) == 1 and old[3] then
    count(old[3], -1, -counted(size))
    call('ZREM', key('answered', old[3]), name)
  end
  unlink(name, old[1], old[2])
end

local function remember(name, print, session_id)
  local old = call('HMGET', name, 'session', 'epoch')
  call('HSET', name, 'print', print, 'session', session_id, 'answer', '', 'epoch', '', 'by', token)
  unlink(name, old[1], old[2])
  call('SADD', key('keys', session_id), name)
end
"""
)

# With '1', an empty Redis is initialized at once.
OPEN: Final = script(
    body=f"""
if ARGV[3] == '1' and call('EXISTS', KEYS[1]) == 0 then call('SET', KEYS[1], {VERSION}) end
local info = redis.pcall('INFO', 'memory')
local policy = type(info) == 'string' and info:match('maxmemory_policy:(%S+)') or ''
return {{call('GET', KEYS[1]) or '', policy}}
"""
)

# Returns {which, session}; what `excess` returns if it would be too much; {'blank'} if Redis has lost its data.
ADD: Final = script(
    SESSIONS,
    _KEYS,
    body="""
if call('EXISTS', KEYS[1]) == 0 then return {'blank'} end
local one = from(3, FIELDS)
local at = 3 + #FIELDS
local name, print = nil, ARGV[at + 11]
if ARGV[at + 8] ~= '' then name = key('key', one.tenant, ARGV[at + 9], ARGV[at + 10]) end
local mine = key('session', one.id)
local born = call('HGET', mine, 'born')
if born == token then return {'new'} end

if name then
  local kept = call('HMGET', name, 'print', 'session', 'by')
  if kept[1] then
    local void, data = unpack(call('HMGET', key('session', kept[2]), 'void', 'data'))
    if void ~= '1' then
      if kept[1] ~= print then return {'reused'} end
      if data then return {kept[3] == token and 'thread' or 'key', data} end
    end
  end
end

local holder = one.thread ~= '' and call('GET', key('holder', one.tenant, one.thread))
if holder then
  local state, data = unpack(call('HMGET', key('session', holder), 'state', 'data'))
  if data then
    if name and USABLE[state] then remember(name, print, holder) end
    return {'thread', data}
  end
end

local too_much = excess(one, nil, at)
if too_much then return too_much end

if born then return {'conflict'} end
call('HSET', mine, 'by', token, 'born', token, unpack(flat(one)))
call('ZADD', key('listed', one.tenant), one.created, one.id)
if one.thread ~= '' then call('ZADD', key('thread', one.tenant, one.thread), one.created, one.id) end
enter(one)
if name then remember(name, print, one.id) end
return {'new'}
""",
)

REMEMBER: Final = script(
    SESSIONS,
    _KEYS,
    body="""
remember(key('key', ARGV[3], ARGV[4], ARGV[5]), ARGV[6], ARGV[7])
return 1
""",
)

# Returns the session, nothing, or {'blank'} if that is unknown because Redis has lost its data.
_FOUND: Final = """
return found or (call('EXISTS', KEYS[1]) == 0 and {'blank'})
"""

GET: Final = script(
    body=f"""
local tenant, data = unpack(call('HMGET', key('session', ARGV[4]), 'tenant', 'data'))
local found = tenant == ARGV[3] and data
{_FOUND}
"""
)

FIND: Final = script(
    body=f"""
local found = call('HGET', key('session', ARGV[3]), 'data')
{_FOUND}
"""
)

OF_THREAD: Final = script(
    body=f"""
local id = call('GET', key('holder', ARGV[3], ARGV[4])) or call('ZREVRANGE', key('thread', ARGV[3], ARGV[4]), 0, 0)[1]
local found = id and call('HGET', key('session', id), 'data')
{_FOUND}
"""
)

# The common change, of times only, does not touch the indexes that depend on the state.
_SWAP_FROM: Final = """
local one = from(3, FIELDS)
local old = known(one.id)
if not old or old.tenant ~= one.tenant then return 0 end
if tonumber(old.version) ~= tonumber(one.version) - 1 then
  return is_ours(old.by, old.version, one.version) and 1 or 0
end
one.thread, one.created, one.environment = old.thread, old.created, old.environment
"""
_SWAP_TO: Final = """
local same = true
for _, name in ipairs({'state', 'epoch', 'over', 'key_id', 'disk'}) do same = same and one[name] == old[name] end
if not same then leave(old) end
call('HSET', key('session', one.id), 'by', with_ours(old.by), unpack(flat(one)))
if not same then
  enter(one)
elseif EXPIRING[one.state] then
  call('ZADD', key('due'), one.deadline, one.id)
end
return 1
"""
SWAPPING: Final = _SWAP_FROM + _SWAP_TO
# Returns what `excess` returns if it would be too much.
SWAP: Final = script(
    SESSIONS,
    body=f"""
{_SWAP_FROM}
local too_much = excess(one, old, 3 + #FIELDS)
if too_much then return too_much end
{_SWAP_TO}
""",
)

# Returns 1 if the session was stored: it was missing or older, and its thread had no other.
RESTORE: Final = script(
    SESSIONS,
    body="""
local one = from(3, FIELDS)
local old, mine = known(one.id), key('session', one.id)
if old and old.by:sub(1, TOKEN_BYTES) == token then return 1 end
if old and tonumber(old.version) >= tonumber(one.version) then return 0 end
local holder = one.thread ~= '' and call('GET', key('holder', one.tenant, one.thread))
if holder and holder ~= one.id then return 0 end
if old then leave(old) end
call('HSET', mine, 'by', token, 'born', token, unpack(flat(one)))
call('ZADD', key('listed', one.tenant), one.created, one.id)
if one.thread ~= '' then call('ZADD', key('thread', one.tenant, one.thread), one.created, one.id) end
enter(one)
return 1
""",
)

# One step through an index, newest first. Returns {last id, its creation, sessions}. Examines a bounded number of
# sessions, and of MiB, because every client of Redis waits for a script. Metadata is compared as text only.
WALK: Final = script(
    body="""
local MAX_BYTES, size = 4194304, 0
local index, tenant, thread, after, score = unpack(ARGV, 3, 7)
local environment, limit, most, states, texts = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10]), {}, {}
local at = 12 + tonumber(ARGV[11])
for number = 12, at - 1 do states[ARGV[number]] = true end
for number = at, #ARGV do texts[#texts + 1] = ARGV[number] end

local function is_wanted(found)
  if not found[3] or not states[found[1]] then return false end
  if environment ~= '' and environment ~= found[2] then return false end
  for _, text in ipairs(texts) do
    if not found[3]:find(text, 1, true) then return false end
  end
  return true
end

local function is_before(one, other)
  for number = 1, math.min(#one, #other) do
    local a, b = one:byte(number), other:byte(number)
    if a ~= b then return a < b end
  end
  return #one < #other
end

local names = {listed = {tenant}, live = {tenant}, thread = {tenant, thread}, active = {}}
local set, rank, found, looked = key(index, unpack(names[index])), 0, {}, 0
if after ~= '' then
  if score == '' and index == 'active' then score = call('HGET', key('session', after), 'created') end
  if score == '' then score = call('ZSCORE', key('listed', tenant), after) end
  if not score then return {'', '', found} end
  rank = call('ZCOUNT', set, '(' .. score, '+inf')
end
local start, start_score = after, tonumber(score)
while true do
  local ids = call('ZREVRANGE', set, rank, rank + 99, 'WITHSCORES')
  if #ids == 0 then return {'', '', found} end
  for number = 1, #ids, 2 do
    if #found >= limit or looked >= most or size >= MAX_BYTES then return {after, score, found} end
    local id, created = ids[number], ids[number + 1]
    if tonumber(created) ~= start_score or is_before(id, start) then
      after, score, looked = id, created, looked + 1
      local one = call('HMGET', key('session', id), 'state', 'environment', 'data')
      size = size + #(one[3] or '')
      if is_wanted(one) then found[#found + 1] = one[3] end
    end
  end
  rank = rank + 100
end
"""
)

DUE: Final = script(
    body="""
local found = {}
for _, id in ipairs(call('ZRANGEBYSCORE', key('due'), '-inf', ARGV[3], 'LIMIT', 0, ARGV[4])) do
  found[#found + 1] = call('HGET', key('session', id), 'data')
end
return found
"""
)

ACTIVE_IDS: Final = script(body="return call('ZREVRANGE', key('active'), 0, -1)")

# Returns the sums of a tenant, then those of one of its keys.
HELD: Final = script(
    SESSIONS,
    body="""
local sums = call('HMGET', key('held', ARGV[3]), unpack(HELD))
for _, sum in ipairs(call('HMGET', key('held', ARGV[3], ARGV[4]), unpack(HELD))) do sums[#sums + 1] = sum end
return sums
""",
)

COUNT: Final = script(body="return call('HGETALL', key('counts'))")

# One step. Returns {sessions removed, whether there may be more}.
PURGE: Final = script(
    SESSIONS,
    _KEYS,
    body="""
local epoch, before, left, gone = ARGV[3], ARGV[4], tonumber(ARGV[5]), 0

local function old(kind, other)
  local found = {}
  if left > 0 and other == epoch then
    found = call('ZRANGEBYSCORE', key(kind, other), '-inf', '(' .. before, 'LIMIT', 0, left)
  elseif left > 0 then
    found = call('ZRANGE', key(kind, other), 0, left - 1)
  end
  left = left - #found
  return found
end

local function drop(id, other)
  local one = known(id)
  if not one then return call('ZREM', key('ended', other), id) end
  leave(one)
  call('ZREM', key('listed', one.tenant), id)
  if one.thread ~= '' then call('ZREM', key('thread', one.tenant, one.thread), id) end
  for _, name in ipairs(call('SMEMBERS', key('keys', id))) do call('DEL', name) end
  call('DEL', key('keys', id), key('session', id))
  gone = gone + 1
end

for _, other in ipairs(call('SMEMBERS', key('epochs'))) do
  for _, id in ipairs(old('ended', other)) do drop(id, other) end
  for _, name in ipairs(old('claimed', other)) do forget(name) end
  if call('EXISTS', key('ended', other), key('claimed', other)) == 0 then call('SREM', key('epochs'), other) end
end
return {gone, left <= 0 and 1 or 0}
""",
)

# ARGV 3 to 5 name the key, 6 is its fingerprint. For a new key, 9 and 10 are the maxima for the tenant and for all;
# returns {'quota', theirs, all} when one is reached.
CLAIM_KEY: Final = script(
    _KEYS,
    body="""
local name = key('key', unpack(ARGV, 3, 5))
local kept = call('HMGET', name, 'print', 'answer', 'by')
if kept[1] and kept[3] ~= token then
  if kept[1] ~= ARGV[6] then return {'reused'} end
  return {'known', kept[2]}
end
if kept[1] then return {'new'} end
local mine, all = sums_of(ARGV[3], 'keys')
if mine >= tonumber(ARGV[9]) or all >= tonumber(ARGV[10]) then return {'quota', mine, all} end
call('HSET', name, 'print', ARGV[6], 'session', '', 'answer', '', 'epoch', ARGV[7], 'by', token, 'tenant', ARGV[3])
call('ZADD', key('claimed', ARGV[7]), ARGV[8], name)
call('SADD', key('epochs'), ARGV[7])
count(ARGV[3], 1, 0)
return {'new'}
""",
)

# ARGV 8 and 9 are the maximal bytes of answers for the tenant and for all; the tenant's oldest answers make room.
ANSWER_KEY: Final = script(
    _KEYS,
    body=f"""
local name, tenant, answer = key('key', unpack(ARGV, 3, 5)), ARGV[3], ARGV[7]
local kept = call('HMGET', name, 'print', 'tenant')
if kept[1] ~= ARGV[6] then return end
if not kept[2] then
  call('HSET', name, 'answer', answer)
  return
end
local answered = key('answered', tenant)
local growth = counted(#answer) - counted(call('HSTRLEN', name, 'answer'))

local function excess()
  local mine, all = sums_of(tenant, 'bytes')
  return math.max(mine + growth - tonumber(ARGV[8]), all + growth - tonumber(ARGV[9]))
end

call('ZREM', answered, name)
for _ = 1, {EVICTED_AT_ONCE} do
  if excess() <= 0 then break end
  local oldest = call('ZPOPMIN', answered)[1]
  if not oldest then break end
  local size = counted(call('HSTRLEN', oldest, 'answer'))
  if size > 0 then
    call('HSET', oldest, 'answer', '{ANSWER_GONE}')
    count(tenant, 0, -size)
  end
end
if excess() > 0 then
  growth = growth - counted(#answer)
  answer = '{ANSWER_GONE}'
end
call('HSET', name, 'answer', answer)
count(tenant, 0, growth)
local time = call('TIME')
if counted(#answer) > 0 then call('ZADD', answered, time[1] .. '.' .. string.format('%06d', time[2]), name) end
""",
)

RELEASE_KEY: Final = script(
    _KEYS,
    body="""
local name = key('key', unpack(ARGV, 3, 5))
if call('EXISTS', key('did', token)) == 0 and call('HGET', name, 'print') == ARGV[6] then
  forget(name)
  call('SET', key('did', token), '1', 'PX', DID_MS)
end
""",
)
