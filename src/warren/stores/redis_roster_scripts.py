"""The scripts of the roster of workers and coordinators; redis_lua.py says how scripts work. The keys are:

    worker:ID       hash: the report, home, epoch, `until` (when the lease is over, by Redis' clock), draining
                    ('1': an operator ordered it; UNTIL_STARTED, FOR_GOOD: until the worker registers again)
    workers         set of their ids
    coordinators    hash: id -> when it was last heard of, and its address
    settling        since when Redis has been empty

A Redis that has lost its data has no version under the name in braces. Then no session is added until the workers have
had the time of a lease to publish theirs again: otherwise a thread could get a second sandbox.
"""

from typing import Final

from warren.stores.redis_lua import script
from warren.stores.redis_scripts import SESSIONS, SWAPPING, VERSION

LEASE_S: Final = 8.0
"""Seconds without a heartbeat after which coordinators give a worker up. The worker counts too, and then serves nobody
until its next heartbeat succeeds.
"""

COORDINATOR_S: Final = 15.0

UNTIL_STARTED: Final = "until started"
FOR_GOOD: Final = "for good"

_ROSTER: Final = f"""
local LEASE, COORDINATOR = {LEASE_S}, {COORDINATOR_S}

local function clock()
  local time = call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function stamp(moment)
  return string.format('%.6f', moment)
end

local function settle(now)
  if call('EXISTS', KEYS[1]) == 1 then return 1 end
  local since = call('GET', key('settling'))
  if not since then
    call('SET', key('settling'), stamp(now))
  elseif now - tonumber(since) > LEASE then
    call('SET', KEYS[1], {VERSION})
    call('DEL', key('settling'))
    return 1
  end
  return 0
end

local function coordinators(now)
  local found, all = {{}}, call('HGETALL', key('coordinators'))
  for at = 1, #all, 2 do
    local when, address = all[at + 1]:match('^(%S+) (.*)$')
    if now - tonumber(when) > COORDINATOR then
      call('HDEL', key('coordinators'), all[at])
    else
      found[#found + 1] = all[at]
      found[#found + 1] = address
    end
  end
  return found
end

local function run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and info:match('run_id:(%S+)') or ''
end
"""

# Arguments: ID, home, report, the last epoch that the worker knows. Returns {'ok', epoch} or {'taken', report}.
ENTER: Final = script(
    _ROSTER,
    body="""
local id, home, report, known = unpack(ARGV, 3, 6)
local now, mine = clock(), key('worker', id)
local old = call('HMGET', mine, 'home', 'until', 'epoch', 'report', 'by')
if old[5] == token then return {'ok', old[3]} end
if old[1] and old[1] ~= home and tonumber(old[2]) > now then return {'taken', old[4]} end
local epoch = math.max(tonumber(old[3] or '0'), tonumber(known)) + 1
call('HSET', mine, 'home', home, 'report', report, 'epoch', string.format('%d', epoch), 'until', stamp(now + LEASE),
  'by', token)
if call('HGET', mine, 'draining') ~= '1' then call('HDEL', mine, 'draining') end
call('SADD', key('workers'), id)
settle(now)
return {'ok', string.format('%d', epoch)}
""",
)

# Arguments: ID, epoch, report (empty: unchanged). Returns {'ok', run id, coordinators...}, {'unknown'}, {'lapsed'} or
# {'superseded'}.
BEAT: Final = script(
    _ROSTER,
    body="""
local id, epoch, report = unpack(ARGV, 3, 5)
local now, mine = clock(), key('worker', id)
local old = call('HMGET', mine, 'epoch', 'until')
if not old[1] then return {'unknown'} end
if old[1] ~= epoch then return {'superseded'} end
if tonumber(old[2]) < now then return {'lapsed'} end
call('HSET', mine, 'until', stamp(now + LEASE))
if report ~= '' then call('HSET', mine, 'report', report) end
settle(now)
return {'ok', run_id(), unpack(coordinators(now))}
""",
)

# For a worker that stops in order. Its sessions are not taken for ARGV[6] seconds, in which it may come back.
LEAVE: Final = script(
    _ROSTER,
    body="""
local mine, now = key('worker', ARGV[3]), clock()
local old = call('HMGET', mine, 'epoch', 'until')
if old[1] ~= ARGV[4] or tonumber(old[2]) < now then return 0 end
call('HSET', mine, 'report', ARGV[5], 'until', stamp(now + tonumber(ARGV[6])))
return 1
""",
)

# Arguments: ID and address of the coordinator. Returns {settled, run id, number of coordinators, time, {report, epoch,
# seconds left, draining}...}.
WATCH: Final = script(
    _ROSTER,
    body="""
local now = clock()
call('HSET', key('coordinators'), ARGV[3], stamp(now) .. ' ' .. ARGV[4])
local found = {settle(now), run_id(), #coordinators(now) / 2, stamp(now)}
for _, id in ipairs(call('SMEMBERS', key('workers'))) do
  local one = call('HMGET', key('worker', id), 'report', 'epoch', 'until', 'draining')
  if one[1] then
    found[#found + 1] = {one[1], one[2], stamp(tonumber(one[3]) - now), one[4] or ''}
  else
    call('SREM', key('workers'), id)
  end
end
return found
""",
)

GO: Final = script(body="call('HDEL', key('coordinators'), ARGV[3])\nreturn 1")

# Arguments: ID, '1' or ''. Returns 1 if there is such a worker.
DRAIN: Final = script(
    body="""
if call('EXISTS', key('worker', ARGV[3])) == 0 then return 0 end
call('HSET', key('worker', ARGV[3]), 'draining', ARGV[4])
return 1
"""
)

# Arguments: ID, UNTIL_STARTED or FOR_GOOD. Returns {report, epoch, seconds left, draining}, or {} if there is no such
# worker. What an operator has ordered stays.
MARK_AS_LEAVING: Final = script(
    _ROSTER,
    body="""
local mine, now = key('worker', ARGV[3]), clock()
local one = call('HMGET', mine, 'report', 'epoch', 'until', 'draining')
if not one[1] then return {} end
if one[4] ~= '1' then
  call('HSET', mine, 'draining', ARGV[4])
  one[4] = ARGV[4]
end
return {one[1], one[2], stamp(tonumber(one[3]) - now), one[4]}
""",
)

# Returns 'gone', 'unknown', or 'alive' while the worker's lease lasts.
REMOVE: Final = script(
    _ROSTER,
    body="""
if call('EXISTS', key('did', token)) == 1 then return 'gone' end
local mine = key('worker', ARGV[3])
local until_ = call('HGET', mine, 'until')
if not until_ then return 'unknown' end
if tonumber(until_) > clock() then return 'alive' end
call('DEL', mine)
call('SREM', key('workers'), ARGV[3])
call('SET', key('did', token), '1', 'PX', DID_MS)
return 'gone'
""",
)

# Arguments: a session's row, its worker, and the coordinator that takes it. Nothing is taken while the worker's lease
# lasts, by the clock of this very step, nor by a coordinator that the worker does not ask before it goes on without
# Redis.
SWAP_OF_DEAD: Final = script(
    _ROSTER,
    SESSIONS,
    body=f"""
if call('EXISTS', KEYS[1]) == 0 then return 0 end
local worker = call('HMGET', key('worker', ARGV[3 + #FIELDS]), 'until', 'report')
if worker[1] and tonumber(worker[1]) > clock() then return 0 end
local asked = worker[2] and cjson.decode(worker[2]).coordinators or {{}}
local may_take = #asked == 0
for _, id in ipairs(asked) do may_take = may_take or id == ARGV[4 + #FIELDS] end
if not may_take then return 0 end
{SWAPPING}
""",
)
