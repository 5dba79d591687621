"""Random tokens that stand for a value: page sessions, sign-in codes, tickets.

A token is 256 random bits. Its value is a record under the SHA-256 of the token, so whoever reads the store learns no
token, and all processes that share the store know it. A value that was looked up is cached for CACHED_S, so a token may
still be accepted for that long after another process has withdrawn it. While the store is away, tokens are accepted
that were looked up in the last TRUSTED_S. A token is taken by deleting its record, which succeeds once.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from warren.interfaces.records import Record, RecordStore
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock
from warren.model.errors import Unavailable

CACHED_S: Final = 2.0
TRUSTED_S: Final = 600.0
_MAX_CACHED: Final = 4096
_REMOVED_AT_ONCE: Final = 100
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


class _CachedToken(NamedTuple):
    record: Record
    until: float
    read: float


class OpaqueTokens:
    """Tokens of one `kind`, which begin with `prefix`. An owner has at most `most` of them: another one replaces the
    one that would expire first."""

    def __init__(self, records: RecordStore, clock: Clock, kind: str, prefix: str, most: int) -> None:
        self._records = records
        self._clock = clock
        self._kind = kind
        self._prefix = prefix
        self._most = most
        self._cache = BoundedDict[str, _CachedToken](_MAX_CACHED)
        self._forgotten = 0

    def __repr__(self) -> str:
        return f"<OpaqueTokens {self._kind}: {len(self._cache)} cached>"

    async def issue(self, value: Mapping[str, Any], expires_at: float, owner: str) -> str:
        await self._remove_expired()
        group = _hash(owner)
        if await self._records.count(self._kind, group=group) >= self._most:
            held = sorted(await self._records.list(self._kind, group=group), key=lambda one: one.due or 0.0)
            for record in held[: len(held) - self._most + 1]:
                await self._remove(record.id)
        token = self._prefix + secrets.token_urlsafe(32)
        await self._records.put(Record(self._kind, _hash(token), json.dumps(value), group=group, due=expires_at))
        return token

    async def look_up(self, token: str) -> Mapping[str, Any] | None:
        """Returns the value of a token that was issued and has not expired; None for every other text."""
        record = await self._find(token)
        return None if record is None else json.loads(record.value)

    async def take(self, token: str) -> Mapping[str, Any] | None:
        """Returns the value as `look_up` does, and ends the token: of several callers that ask at once, one gets the
        value."""
        record = await self._records.get(self._kind, _hash(token)) if self._looks_right(token) else None
        if record is None or self._has_expired(record) or not await self._remove(record.id):
            return None
        value: Mapping[str, Any] = json.loads(record.value)
        return value

    async def change(self, token: str, value: Mapping[str, Any]) -> None:
        """Changes the token's value, unless another process has changed it meanwhile."""
        record = await self._find(token)
        if record is None:
            return
        changed, forgotten = record.changed(json.dumps(value), record.due), self._forgotten
        # A token that was withdrawn meanwhile, perhaps this one, must not come back into the cache.
        if await self._records.put(changed) and forgotten == self._forgotten:
            self._put_in_cache(changed)
        else:
            self._forget(record.id)

    async def withdraw(self, token: str) -> None:
        if self._looks_right(token):
            await self._remove(_hash(token))

    async def withdraw_all(self, owner: str) -> None:
        while found := await self._records.list(self._kind, group=_hash(owner)):
            for record in found:
                await self._remove(record.id)

    async def _find(self, token: str) -> Record | None:
        if not self._looks_right(token):
            return None
        token_id, now = _hash(token), self._clock.now()
        known = self._cache.get(token_id)
        if known is None or known.until <= now:
            forgotten = self._forgotten
            try:
                record = await self._records.get(self._kind, token_id)
            except Unavailable:
                if known is None or now >= known.read + TRUSTED_S:
                    raise
                record = known.record
            else:
                if forgotten != self._forgotten:  # a token was withdrawn meanwhile, perhaps this one
                    return await self._find(token)
                if record is None:
                    self._cache.pop(token_id, None)
                    return None
                self._put_in_cache(record)
        else:
            record = known.record
        return None if self._has_expired(record) else record

    def _has_expired(self, record: Record) -> bool:
        return record.due is not None and record.due <= self._clock.wall()

    def _put_in_cache(self, record: Record) -> None:
        now = self._clock.now()
        self._cache[record.id] = _CachedToken(record, now + CACHED_S, now)

    def _looks_right(self, token: str) -> bool:
        return token.startswith(self._prefix) and _SECRET.fullmatch(token, len(self._prefix)) is not None

    async def _remove(self, token_id: str) -> bool:
        removed = await self._records.delete(self._kind, token_id)
        self._forget(token_id)
        return removed

    def _forget(self, token_id: str) -> None:
        self._forgotten += 1
        self._cache.pop(token_id, None)

    async def _remove_expired(self) -> None:
        for record in await self._records.due(self._kind, self._clock.wall(), _REMOVED_AT_ONCE):
            await self._remove(record.id)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
