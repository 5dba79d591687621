"""Counters in Redis, shared by several coordinators and workers.

While Redis is away each process counts in its own memory, from where it last saw the counters, so that requests go
on. A background task asks Redis now and then whether it is back: no request waits for that. Redis then learns what was
spent of quotas of a day; hits of a minute are soon forgotten anyway. If the connection is lost during a script, the
script is run again, so an amount may be counted twice, never not at all.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, Final

from warren.governance.counters import MINUTE_S, Hit, MemoryCounters, hit_of, hits_of
from warren.kernel.logs import get_log
from warren.model.errors import NoSpace, Unavailable
from warren.stores.redis_address import RedisAddress, read_address
from warren.stores.redis_link import RedisLink, Value
from warren.stores.redis_lua import LuaScript, script

TIMEOUT_S: Final = 1.0
RETRY_S: Final = 2.0
_MAX_OWED: Final = 10_000
_DAY_S: Final = 86400
_NAME: Final = "local name = KEYS[1] .. ':counts:' .. ARGV[3]\n"

# A hash: when a minute began by Redis' clock, the hits in it, and in the minute before.
_HIT: Final = script(
    body=f"""{_NAME}
local limit, time, minute = tonumber(ARGV[4]), call('TIME'), {MINUTE_S}
local now = time[1] + time[2] / 1000000
local kept = call('HMGET', name, 'began', 'previous', 'current')
local began, previous, current = tonumber(kept[1]) or 0, tonumber(kept[2]), tonumber(kept[3])
if now < began or now >= began + 2 * minute then
  began, previous, current = now, 0, 0
elseif now >= began + minute then
  began, previous, current = began + minute, current, 0
end
local left = began + minute - now
local allowed = math.floor(previous * left / minute) + current < limit
if allowed then
  current = current + 1
  call('HSET', name, 'began', string.format('%.6f', began), 'previous', previous, 'current', current)
  call('EXPIRE', name, 2 * minute)
end
return {{allowed and 1 or 0, previous, current, tostring(left)}}
"""
)
# Returns the hits of the minute before and of the current one, and how long that one lasts; nothing if there are none.
_HITS: Final = script(
    body=f"""{_NAME}
local kept = call('HMGET', name, 'began', 'previous', 'current')
if not kept[1] then return false end
local time, minute = call('TIME'), {MINUTE_S}
local now, began, previous, current = time[1] + time[2] / 1000000, tonumber(kept[1]), kept[2], kept[3]
if now < began or now >= began + 2 * minute then return false end
if now >= began + minute then began, previous, current = began + minute, current, 0 end
return {{previous, current, tostring(began + minute - now)}}
"""
)
_BEGIN: Final = script(body=f"{_NAME}call('SET', name, ARGV[5], 'NX', 'EX', ARGV[4])")
_SPEND: Final = script(
    body=f"""{_NAME}
local count, amount, most = call('GET', name), tonumber(ARGV[4]), tonumber(ARGV[5])
if not count then return false end
count = tonumber(count)
if count + amount <= most then return {{1, call('INCRBY', name, ARGV[4])}} end
if count < most then call('SET', name, ARGV[5], 'KEEPTTL') end
return {{0, math.max(count, most)}}
"""
)
_GET: Final = script(body=f"{_NAME}return call('GET', name)")
_ADD_IF_BEGUN: Final = script(body=f"{_NAME}if call('EXISTS', name) == 1 then call('INCRBY', name, ARGV[4]) end")
_PING: Final = script(body="return 1")

_log = get_log("warren.quotas")


class _Away(Exception):
    """Raised while Redis cannot be asked."""


class RedisCounters:
    """A call waits for Redis for `timeout_s` at most. Once one has waited in vain, all calls count in memory, and Redis
    is asked again every `retry_s`. Raises InvalidRequest for an address that cannot be read."""

    survives_restart = True

    def __init__(
        self,
        address: RedisAddress | str,
        namespace: str = "warren",
        *,
        timeout_s: float = TIMEOUT_S,
        retry_s: float = RETRY_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = read_address(address) if isinstance(address, str) else address
        self._link = RedisLink(self._address, timeout_s, f"{{{namespace}}}")
        self._memory = MemoryCounters()
        self._retry_s = retry_s
        self._now = now
        self._away = False
        self._tried_at = 0.0
        self._reconnecting: asyncio.Task[None] | None = None
        self._owed: dict[str, int] = {}  # spent while Redis was away

    def __repr__(self) -> str:
        return f"<RedisCounters in {f'memory, {self._address} is away' if self._away else self._address}>"

    @property
    def is_cut_off(self) -> bool:
        return self._away

    async def close(self) -> None:
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        self._away, self._tried_at = True, math.inf  # Redis is not asked again
        await self._link.close()

    async def hit(self, name: str, limit: int) -> Hit:
        try:
            allowed, previous, current, left_s = await self._run(_HIT, name, limit)
        except _Away:
            return await self._memory.hit(name, limit)
        if allowed:
            await self._memory.hit(name, limit)  # so that memory knows where to go on
        return hit_of(bool(allowed), limit, previous, current, float(left_s))

    async def hits(self, name: str) -> int:
        try:
            found = await self._run(_HITS, name)
        except _Away:
            return await self._memory.hits(name)
        return 0 if found is None else hits_of(int(found[0]), int(found[1]), float(found[2]))

    async def begin(self, name: str, expiry_s: int, spent: int) -> None:
        try:
            await self._run(_BEGIN, name, expiry_s, spent)
        except _Away:
            await self._memory.begin(name, expiry_s, spent)

    async def spend(self, name: str, amount: int, most: int) -> bool | None:
        try:
            answer = await self._run(_SPEND, name, amount, most)
        except _Away:
            return await self._spend_in_memory(name, amount, most)
        if answer is None:
            return None
        fits, total = answer
        self._memory.put(name, _DAY_S, total)
        return bool(fits)

    async def _spend_in_memory(self, name: str, amount: int, most: int) -> bool | None:
        fits = await self._memory.spend(name, amount, most)
        if fits and (name in self._owed or len(self._owed) < _MAX_OWED):
            self._owed[name] = self._owed.get(name, 0) + amount
        return fits

    async def get(self, name: str) -> int:
        try:
            return int(await self._run(_GET, name) or 0)
        except _Away:
            return await self._memory.get(name)

    async def _run(self, work: LuaScript, *values: Value) -> Any:
        if self._away:
            if self._reconnecting is None and self._now() - self._tried_at >= self._retry_s:
                self._reconnecting = asyncio.create_task(self._reconnect(), name="reconnecting quotas to Redis")
                self._reconnecting.add_done_callback(self._reconnected)
            raise _Away
        try:
            return await self._link.run(work, *values)
        except (Unavailable, NoSpace) as exc:
            if not self._away:
                self._away, self._tried_at = True, self._now()
                _log.warning("quotas_redis_lost", redis=self._address, action="count_in_memory", error=exc)
            raise _Away from exc

    def _reconnected(self, _: asyncio.Task[None]) -> None:
        self._reconnecting, self._tried_at = None, self._now()

    async def _reconnect(self) -> None:
        """Tells Redis what was spent in memory, then counts in Redis again. Nothing is spent in between, because no
        await comes after the last payment."""
        try:
            await self._link.run(_PING)
            while self._owed:
                await self._pay(*self._owed.popitem())
        except (Unavailable, NoSpace):
            return
        self._away = False
        _log.warning("quotas_redis_back", redis=self._address)

    async def _pay(self, name: str, amount: int) -> None:
        try:
            await self._link.run(_ADD_IF_BEGUN, name, amount)
        except BaseException:
            self._owed[name] = self._owed.get(name, 0) + amount
            raise
