"""Counters in Redis, that several coordinators and workers share; and what is counted while Redis is away.

Then each process counts in its own memory, from where it last saw the counters, so that whoever runs goes on. Redis
is asked again now and then, in the background: no request waits for it. When it is back it is told what was spent
meanwhile of quotas of the day; what passed of quotas of the minute is soon forgotten anyway. Keys expire by themselves.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from limits.aio.storage import RedisStorage
from redis import exceptions as theirs

from warren.stores.redis_address import RedisAddress, read_address
from warren.stores.redis_link import new_client
from warren.tenancy.counters import Counters, Counts

TIMEOUT_S: Final = 1.0
RETRY_S: Final = 2.0
_AT_ONCE: Final = 64  # connections, and so calls on their way
_MOST_OWED: Final = 10_000
_DAY_S: Final = 86400
_TROUBLE: Final = (theirs.RedisError, theirs.RedisClusterException, OSError, TimeoutError)

_SPEND: Final = """
local count, amount, most = redis.call('GET', KEYS[1]), tonumber(ARGV[1]), tonumber(ARGV[2])
if not count then return false end
count = tonumber(count)
if count + amount <= most then return {1, redis.call('INCRBY', KEYS[1], ARGV[1])} end
if count < most then redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL') end
return {0, math.max(count, most)}
"""
_ADD: Final = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('INCRBY', KEYS[1], ARGV[1]) end"

_log = logging.getLogger("warren.quotas")

T = TypeVar("T")


def shared_storage(
    address: RedisAddress | str,
    namespace: str = "warren",
    *,
    timeout_s: float = TIMEOUT_S,
    retry_s: float = RETRY_S,
    now: Callable[[], float] = time.monotonic,
) -> "Callable[[], SharedCounts]":
    """What makes the counters, for Quotas. Raises InvalidRequest for a URL that is none.

    A call waits for Redis so long at most; once that was in vain, Redis is asked again every `retry_s` at most.
    """
    where = read_address(address) if isinstance(address, str) else address
    return lambda: SharedCounts(where, namespace, timeout_s, retry_s, now)


class SharedCounts(Counts):
    def __init__(
        self, address: RedisAddress, namespace: str, timeout_s: float, retry_s: float, now: Callable[[], float]
    ) -> None:
        super().__init__()
        self._address = address
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._now = now
        self._redis = _InRedis(address, namespace, timeout_s)
        self._memory = _Mirror()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._away = False
        self._asked = 0.0
        self._request_context: asyncio.Task[None] | None = None
        self._owed: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<SharedCounts in {f'memory, {self._address} is away' if self._away else self._address}>"

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError

    @property
    def lasting(self) -> bool:
        return True

    @property
    def alone(self) -> bool:
        return self._away

    async def close(self) -> None:
        if self._request_context is not None:
            self._request_context.cancel()
            await asyncio.wait([self._request_context])
        self._away, self._asked = True, math.inf  # it is not asked again
        await self._redis.close()

    # -- counting

    async def spend(self, key: str, amount: int, most: int) -> bool | None:
        spent = await self._shared(lambda: self._redis.spend(key, amount, most))
        if isinstance(spent, _Spent):
            self._memory.seen(key, spent.total)
            return spent.fits
        if spent is None:
            return None
        fits = await self._memory.spend(key, amount, most)
        if fits and (key in self._owed or len(self._owed) < _MOST_OWED):
            self._owed[key] = self._owed.get(key, 0) + amount
        return fits

    async def begin(self, key: str, expiry: int, spent: int) -> None:
        if await self._shared(lambda: self._redis.begin(key, expiry, spent)) is _AWAY:
            await self._memory.begin(key, expiry, spent)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """What passes is counted in memory too: from there it goes on if Redis is away."""
        passes = await self._shared(lambda: self._redis.acquire_sliding_window_entry(key, limit, expiry, amount))
        if passes is False:
            return False
        passes_here = await self._memory.acquire_sliding_window_entry(key, limit, expiry, amount)
        return passes_here if passes is _AWAY else True

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return await self._either(lambda storage: storage.get_sliding_window(key, expiry))

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await self._memory.clear_sliding_window(key, expiry)
        await self._either(lambda storage: storage.clear_sliding_window(key, expiry))

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return await self._either(lambda storage: storage.incr(key, expiry, amount))

    async def get(self, key: str) -> int:
        return await self._either(lambda storage: storage.get(key))

    async def get_expiry(self, key: str) -> float:
        return await self._either(lambda storage: storage.get_expiry(key))

    async def clear(self, key: str) -> None:
        await self._memory.clear(key)
        await self._either(lambda storage: storage.clear(key))

    async def check(self) -> bool:
        return not self._away

    async def reset(self) -> int | None:
        await self._memory.reset()
        return await self._either(lambda storage: storage.reset())

    # -- whether Redis is there

    async def _either(self, work: "Callable[[_InRedis | _Mirror], Awaitable[T]]") -> T:
        result = await self._shared(lambda: work(self._redis))
        return await work(self._memory) if isinstance(result, _Away) else result

    async def _shared(self, work: Callable[[], Awaitable[T]]) -> "T | _Away":
        """What Redis says, or that it is away."""
        if self._away:
            self._ask_again()
            return _AWAY
        async with self._room:
            if self._away:  # it was told while we waited for a place
                return _AWAY
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await work()
            except _TROUBLE as exc:
                self._lost(exc)
                return _AWAY

    def _lost(self, exc: Exception) -> None:
        if not self._away:
            self._away, self._asked = True, self._now()
            _log.warning("Redis at %s is away, quotas are counted here alone: %s", self._address, _words(exc))

    def _ask_again(self) -> None:
        if self._request_context is None and self._now() - self._asked >= self._retry_s:
            self._request_context = asyncio.create_task(self._return(), name="asking whether Redis is back")
            self._request_context.add_done_callback(self._asked_again)

    def _asked_again(self, _: asyncio.Task[None]) -> None:
        self._request_context, self._asked = None, self._now()

    async def _return(self) -> None:
        """Pays what is owed, then counts there again: nothing can come in between."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._redis.ping()
            while self._owed:
                await self._pay(*self._owed.popitem())
        except _TROUBLE:
            return
        self._away = False
        _log.warning("Redis at %s is back, quotas are counted there again", self._address)

    async def _pay(self, key: str, amount: int) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._redis.add(key, amount)
        except BaseException:
            self._owed[key] = self._owed.get(key, 0) + amount
            raise


class _Spent(NamedTuple):
    fits: bool
    total: int


class _Away:
    """Said instead of an answer."""


_AWAY: Final = _Away()


class _Mirror(Counters):
    """What this process counts itself, and what it has seen of the counters that are shared."""

    def seen(self, key: str, count: int) -> None:
        self._counts.pop(key, None)
        self._add(key, _DAY_S, count, self._now())


class _InRedis(RedisStorage):
    """The storage of `limits`, over the same client as everything else of ours in Redis."""

    def __init__(self, address: RedisAddress, namespace: str, timeout_s: float) -> None:
        self._client, self._close = new_client(address, timeout_s)
        super().__init__("async+redis://", implementation="redispy", key_prefix=f"{{{namespace}}}:counts")
        self._spend = self._client.register_script(_SPEND)
        self._add = self._client.register_script(_ADD)

    def configure_bridge(self) -> None:
        bridge: Any = self.bridge
        bridge.storage = self._client
        bridge.connection_getter = lambda readonly: self._client

    async def spend(self, key: str, amount: int, most: int) -> _Spent | None:
        answer = await self._spend([self._name(key)], [amount, most])
        return None if answer is None else _Spent(bool(answer[0]), int(answer[1]))

    async def begin(self, key: str, expiry: int, spent: int) -> None:
        await self._client.set(self._name(key), spent, nx=True, ex=expiry)

    async def add(self, key: str, amount: int) -> None:
        """Unless there is no such counter."""
        await self._add([self._name(key)], [amount])

    async def ping(self) -> None:
        await self._client.ping()

    async def close(self) -> None:
        await self._close()

    def _name(self, key: str) -> str:
        return self.bridge.prefixed_key(key)


def _words(exc: Exception) -> str:
    """A cluster's errors may hold what was sent."""
    if isinstance(exc, theirs.RedisClusterException) or not str(exc):
        return "it does not answer in time" if isinstance(exc, TimeoutError) else type(exc).__name__
    return str(exc)
