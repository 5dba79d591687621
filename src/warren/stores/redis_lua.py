"""The parts that all Lua scripts share. A script is one atomic operation of a store.

Every key begins with the name in braces in KEYS[1], so in a Redis Cluster all keys are on the same node and a script
may use any of them. The rest of a key contains lengths, so that no two texts can be mixed up. The keys are:

    session:ID      hash: the session as text, and what the scripts must know of it
    listed:TENANT, live:TENANT, thread:TENANT:THREAD, active
                    sorted sets of ids by creation: a tenant's, its active ones, a thread's, all active ones
    holder:TENANT:THREAD        the id of the thread's active session
    due             sorted set: ids by deadline
    counts, held:TENANT, held:TENANT:KEY    hashes of sums: sessions by state; what counts for quotas, by `Held`
    key:TENANT:SCOPE:KEY        hash: an Idempotency-Key; keys:ID are those that stand for a session
    answers, answers:TENANT     hashes of sums: claimed keys and the bytes of their answers
    answered:TENANT             sorted set: claimed keys that have an answer, by time
    ended:EPOCH, claimed:EPOCH, epochs      what `purge` looks through: ids by end, keys by age
    record:KIND:ID, ids:KIND, grouped:KIND:GROUP, later:KIND      records, by id, by group, by time
    did:TOKEN       that something was deleted; forgotten after a minute
    audit           stream: the audit entries; audited:WRITER is the number of the last batch of a process
    events, feed    hash and list: the last events of all processes (governance/shared_events.py)
    counts:NAME     the counters of quotas, by scripts of their own (governance/redis_counters.py)

The first argument is a time by Redis' clock: after it the caller no longer waits, and the script does nothing. The
second is a token, the same when a script is run again: a script that changes something then answers as it did before.

Scripts never compare the order of strings in Lua, where it depends on the server's locale; sorted sets order by bytes,
which for UTF-8 is the order of code points. Without memory Redis refuses a script at its first command that takes
memory: scripts that create something begin with such a command, those that end or delete something do not.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

TOKEN_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A script. Redis knows one that it has seen by its `sha`."""

    text: str
    sha: str


def lua_list(names: Iterable[str]) -> str:
    return "{" + ", ".join(f"'{name}'" for name in names) + "}"


def lua_set(names: Iterable[str]) -> str:
    return "{" + ", ".join(f"{name} = true" for name in sorted(names)) + "}"


_START: Final = f"""
local call = redis.call
local TOKEN_BYTES, TOKENS_KEPT, DID_MS = {TOKEN_BYTES}, 8, 60000
local token = ARGV[2]

local function key(kind, ...)
  local name = KEYS[1] .. ':' .. kind
  for _, part in ipairs({{...}}) do name = name .. ':' .. #part .. ':' .. part end
  return name
end

-- The tokens of the last changes, newest first: whether the one that made this version is ours.
local function is_ours(by, stored, wanted)
  local behind = tonumber(stored) - tonumber(wanted)
  return behind >= 0 and by:sub(behind * TOKEN_BYTES + 1, (behind + 1) * TOKEN_BYTES) == token
end

local function with_ours(by)
  return (token .. by):sub(1, TOKENS_KEPT * TOKEN_BYTES)
end

local function flat(values)
  local all = {{}}
  for name, value in pairs(values) do all[#all + 1] = name; all[#all + 1] = value end
  return all
end

local function from(first, names)
  local one = {{}}
  for at, name in ipairs(names) do one[name] = ARGV[first + at - 1] end
  return one
end
"""

_END: Final = """
local time = call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
if ARGV[1] ~= '' and tonumber(now) > tonumber(ARGV[1]) then return {now} end
return {now, work() or false}
"""


def script(*parts: str, body: str) -> LuaScript:
    text = "".join((_START, *parts, "\nlocal function work()\n", body, "\nend\n", _END))
    return LuaScript(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
