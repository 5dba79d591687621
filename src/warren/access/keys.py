"""API keys: creates, lists, revokes, rotates and recognises them.

A key is `wk_ID_SECRET`; `e2b_` with id and secret after it is another spelling of the same key, for E2B's clients. The
id finds its record, which holds a salted SHA-256 of the secret. The secret is 256 random bits, so nobody can guess it
and a slow hash would add nothing. A recognised key is cached for CACHED_S, so it may still be accepted for that long
after another process has revoked it. While the store is away, keys are accepted that were verified in the last
TRUSTED_S, and no others.

A rotated key may keep its old secret for a while, at most MAX_OVERLAP_S. What was made with the old one, such as a
browser's sign-in, ends with it.
"""

import asyncio
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from warren.interfaces.records import Record, RecordStore
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock
from warren.model.access import (
    NO_QUOTA,
    USUAL_SCOPES,
    ApiKey,
    Caller,
    OldSecret,
    Quota,
    Scope,
    check_tenant,
    read_scopes,
)
from warren.model.errors import InvalidRequest, NotFound, Unauthorized, Unavailable, WarrenError
from warren.model.session import DEFAULT_TENANT

KIND: Final = "key"
PREFIX: Final = "wk_"
E2B_PREFIX: Final = "e2b_"
CACHED_S: Final = 2.0
TRUSTED_S: Final = 600.0
FIRST_ID: Final = "key_first"
MAX_KEYS: Final = 10_000
MAX_OVERLAP_S: Final = 7 * 86400.0
_USED_AT_S: Final = 60.0  # the precision of `used_at`
_MAX_CACHED: Final = 4096
_SECRET: Final = re.compile("[0-9a-f]{64}")
_OURS: Final = re.compile(r"wk_([^_]*)_([^_]*)|e2b_([0-9a-f]{16})([0-9a-f]{64})", re.ASCII)
_NO_SALT: Final = "00" * 16
_WRONG: Final = "this API key is not known here"
_REMEDY: Final = "send a valid one as `Authorization: Bearer KEY` or `X-API-Key: KEY`; `warren keys create` makes one"


class _CachedKey(NamedTuple):
    """A key that was verified at a time; it is looked up again after `until`. One that came with its old secret has
    that one's hash and end."""

    key: ApiKey
    caller: Caller
    until: float
    verified: float


_HashFor = Callable[[str], str]
"""Returns the hash of what was sent, given a salt."""


class Keys:
    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._cache = BoundedDict[bytes, _CachedKey](_MAX_CACHED)
        self._forgotten = 0
        self._saving: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Keys: {len(self._cache)} cached>"

    async def create(
        self,
        name: str,
        tenant: str,
        scopes: frozenset[Scope] = USUAL_SCOPES,
        expires_at: float | None = None,
        quota: Quota = NO_QUOTA,
    ) -> tuple[ApiKey, str]:
        """Returns the key's record, and the key itself, which is not stored and cannot be shown again."""
        _check_name(name)
        check_tenant(tenant)
        if not scopes:
            raise InvalidRequest("a key without scopes can do nothing", remedy=f"give some of: {', '.join(Scope)}")
        if expires_at is not None and expires_at <= self._clock.wall():
            raise InvalidRequest("the key would have expired before it is made")
        if await self._records.count(KIND) >= MAX_KEYS:
            raise InvalidRequest(f"there are {MAX_KEYS} keys already", remedy="revoke those that are not used")
        key, text = _new(name, tenant, scopes, self._clock.wall(), expires_at, quota)
        await self._records.put(_record(key, 1))
        return key, text

    async def create_first(
        self, name: str, tenant: str, scopes: frozenset[Scope], known: str = ""
    ) -> tuple[ApiKey, str] | None:
        """Creates the key of an installation that has none. Returns None if there is a key; of several processes that
        ask at once, one gets it.

        `known` is the first key of another installation that the same clients use: if it is one, it becomes the first
        key of this installation too. The id is fixed, so the record is its own lock, and a process that dies leaves
        nothing behind.
        """
        if await self.any():
            return None
        key_id, secret = _split(known)
        secret = secret if key_id == FIRST_ID and _SECRET.fullmatch(secret) else ""
        key, text = _new(name, tenant, scopes, self._clock.wall(), None, NO_QUOTA, FIRST_ID, secret)
        return (key, text) if await self._records.put(_record(key, 1)) else None

    async def check_admin_key(self, text: str) -> None:
        """Raises InvalidRequest if the key of the configuration, which may do everything, belongs or has belonged to a
        stored key that may not, also if that one has expired: clients and servers read the same variable."""
        key_id, secret = _split(text)
        record = await self._records.get(KIND, key_id) if key_id else None
        if record is None:
            return
        key = _read(record)
        is_admin = key.tenant == DEFAULT_TENANT and Scope.ADMIN in key.scopes
        is_bounded = key.expires_at is not None or key.quota != NO_QUOTA
        is_opened = _opened(key, lambda salt: _hash(salt, secret), self._clock.wall()) is not None
        if key_id == FIRST_ID and not is_opened:  # the id is that of the first key of every installation
            return
        if not is_opened or not is_admin or is_bounded:
            stored = f"the key {key_id} of the tenant {key.tenant!r}" if is_opened else f"an old secret of {key_id}"
            raise InvalidRequest(
                f"api_key (WARREN_API_KEY) is {stored}: whoever has that would become an administrator",
                remedy="unset it, or give the server a key of its own; clients read WARREN_API_KEY as well",
            )

    async def list(self, tenant: str = "") -> Sequence[ApiKey]:
        found, now = await self._records.list(KIND, group=tenant, limit=MAX_KEYS), self._clock.wall()
        keys = [_without_ended(_read(record), now) for record in found]
        return sorted(keys, key=lambda key: (key.created_at, key.id))

    async def any(self) -> bool:
        return bool(await self._records.count(KIND))

    async def get(self, key_id: str) -> ApiKey:
        record = await self._records.get(KIND, key_id)
        if record is None:
            raise NotFound(f"there is no key {key_id[:80]!r}", remedy="`warren keys list` shows those there are")
        return _read(record)

    async def quota_of(self, key_id: str) -> Quota:
        """Returns the quota of a key. A key that was revoked, and the one of the configuration, have no bounds."""
        record = await self._records.get(KIND, key_id) if key_id else None
        return NO_QUOTA if record is None else _read(record).quota

    async def revoke(self, key_id: str) -> None:
        """Deletes the key: nobody gets in with it from now on."""
        await self.get(key_id)
        await self._records.delete(KIND, key_id)
        self._forget(key_id)

    async def rotate(self, key_id: str, overlap_s: float = 0.0) -> tuple[ApiKey, str]:
        """Gives the key a new secret. The old one stays valid for `overlap_s`; one that is older still does not."""
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise InvalidRequest(
                f"an old secret cannot stay valid for {overlap_s:.15g} s", remedy="give 0 seconds to 7 days"
            )
        while True:
            record = await self._records.get(KIND, key_id)
            if record is None:
                await self.get(key_id)
                continue
            old, now = _read(record), self._clock.wall()
            fresh, text = _new(old.name, old.tenant, old.scopes, now, old.expires_at, old.quota, key_id)
            if overlap_s:
                fresh = replace(fresh, old=OldSecret(old.salt, old.hashed, now + overlap_s))
            if await self._records.put(_record(fresh, record.version + 1)):
                self._forget(key_id)
                return fresh, text

    async def recognise(self, text: str) -> Caller:
        """Returns the caller of a key. Raises Unauthorized, with the same message and in the same time for every wrong
        key."""
        return (await self._recognise(text)).caller

    async def identify(self, text: str) -> ApiKey:
        """Returns the stored key that this text is the secret of. Raises Unauthorized as `recognise` does."""
        return (await self._recognise(text)).key

    async def recognise_stored(self, key_id: str, hashed: str) -> Caller:
        """Returns the caller of a stored key as long as its secret has this hash. Raises Unauthorized once the key was
        revoked or rotated."""
        digest = hashlib.sha256(f"stored {key_id} {hashed}".encode()).digest()
        return (await self._look_up(digest, key_id, lambda salt: hashed)).caller

    async def _recognise(self, text: str) -> _CachedKey:
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
        key_id, secret = _split(text)
        return await self._look_up(digest, key_id, lambda salt: _hash(salt, secret))

    async def _look_up(self, digest: bytes, key_id: str, hash_for: _HashFor) -> _CachedKey:
        known = self._cache.get(digest)
        if known is None or known.until <= self._clock.now():
            known = await self._find(digest, key_id, hash_for)
        key, now = known.key, self._clock.wall()
        if key.expires_at is not None and key.expires_at <= now:
            raise Unauthorized("this API key has expired", remedy="`warren keys create` makes a new one")
        if key.used_at is None or now - key.used_at >= _USED_AT_S:
            self._note_use(key, digest, now)
        return known

    async def _find(self, digest: bytes, key_id: str, hash_for: _HashFor) -> _CachedKey:
        forgotten = self._forgotten
        try:
            record = await self._records.get(KIND, key_id) if key_id else None
        except Unavailable:
            if (trusted := self._trusted(digest)) is None:
                raise
            return trusted
        if forgotten != self._forgotten:  # a key was revoked since, perhaps this one: its record may be an old one
            return await self._find(digest, key_id, hash_for)
        key = _opened(None if record is None else _read(record), hash_for, self._clock.wall())
        if key is None:
            self._cache.pop(digest, None)
            raise Unauthorized(_WRONG, remedy=_REMEDY)
        return self._put_in_cache(digest, key)

    def _trusted(self, digest: bytes) -> _CachedKey | None:
        """Returns a key that was verified in the last TRUSTED_S; the store is asked again after CACHED_S."""
        known, now = self._cache.get(digest), self._clock.now()
        if known is None or now >= known.verified + TRUSTED_S:
            return None
        until = min(now + CACHED_S, known.verified + TRUSTED_S)
        self._cache[digest] = known._replace(until=until)
        return known

    def _put_in_cache(self, digest: bytes, key: ApiKey) -> _CachedKey:
        now = self._clock.now()
        caller = Caller(key.tenant, key.id, key.scopes, key_quota=key.quota)
        known = self._cache[digest] = _CachedKey(key, caller, now + CACHED_S, now)
        return known

    def _forget(self, key_id: str) -> None:
        self._forgotten += 1
        for digest in [digest for digest, known in self._cache.items() if known.key.id == key_id]:
            del self._cache[digest]

    def _note_use(self, key: ApiKey, digest: bytes, now: float) -> None:
        known = self._cache[digest]  # the key was not looked up again, so it is not cached for longer
        self._cache[digest] = known._replace(key=replace(key, used_at=now))
        task = asyncio.create_task(self._save_use(key.id, now), name=f"saving the use of {key.id}")
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)

    async def _save_use(self, key_id: str, now: float) -> None:
        """Saves when the key was used, unless its record was changed meanwhile."""
        try:
            record = await self._records.get(KIND, key_id)
            if record is not None:
                await self._records.put(_record(replace(_read(record), used_at=now), record.version + 1))
        except WarrenError:
            return


def looks_like_key(text: str) -> bool:
    return text.startswith((PREFIX, E2B_PREFIX))


def e2b_spelling(text: str) -> str:
    """Returns the key as E2B's clients take it. Raises InvalidRequest for one that has no such spelling."""
    key_id, secret = _split(text)
    spelled = E2B_PREFIX + key_id.removeprefix("key_") + secret
    if _split(spelled) != (key_id, secret):
        raise InvalidRequest("this key has no form for E2B's clients", remedy="create another one with --e2b")
    return spelled


def key_view(key: ApiKey) -> dict[str, Any]:
    """Returns everything about a key but its salts and its hashes."""
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "used_at": key.used_at,
        "old_until": None if key.old is None else key.old.until,
        "quota": key.quota.as_mapping(),
    }


def _new(
    name: str,
    tenant: str,
    scopes: frozenset[Scope],
    now: float,
    expires_at: float | None,
    quota: Quota,
    key_id: str = "",
    secret: str = "",
) -> tuple[ApiKey, str]:
    key_id = key_id or f"key_{secrets.token_hex(8)}"
    secret, salt = secret or secrets.token_hex(32), secrets.token_hex(16)
    key = ApiKey(key_id, name, tenant, scopes, salt, _hash(salt, secret), now, expires_at, quota=quota)
    return key, f"{PREFIX}{key_id.removeprefix('key_')}_{secret}"


def _split(text: str) -> tuple[str, str]:
    """Returns the id and the secret of a key's text; both are empty for a text that is no key of ours."""
    match = _OURS.fullmatch(text) if text.isascii() and len(text) < 256 else None
    if match is None:
        return "", ""
    key_id, secret = (match[1], match[2]) if text.startswith(PREFIX) else (match[3], match[4])
    return f"key_{key_id}", secret


def _opened(key: ApiKey | None, hash_for: _HashFor, now: float) -> ApiKey | None:
    """Returns the key if what was sent opens it, by its secret or by the old one; with the old one, the key has that
    one's hash and end. Returns None otherwise."""
    old = None if key is None else _without_ended(key, now).old
    # Compares twice, also for an unknown id, so that the time of the answer does not tell which ids exist.
    by_new = hmac.compare_digest(hash_for(key.salt if key else _NO_SALT), key.hashed if key else _NO_SALT)
    by_old = hmac.compare_digest(hash_for(old.salt if old else _NO_SALT), old.hashed if old else _NO_SALT)
    if key is None or by_new:
        return key  # `by_new` says nothing without a key
    if old is None or not by_old:
        return None
    expires_at = old.until if key.expires_at is None else min(old.until, key.expires_at)
    return replace(key, hashed=old.hashed, expires_at=expires_at)


def _without_ended(key: ApiKey, now: float) -> ApiKey:
    """Returns the key without an old secret that has ended."""
    return replace(key, old=None) if key.old is not None and key.old.until <= now else key


def _hash(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode()).hexdigest()


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= 128 or not name.isprintable():
        raise InvalidRequest("a key's name has 1 to 128 printable characters")


def _record(key: ApiKey, version: int) -> Record:
    values = {**asdict(key), "scopes": sorted(key.scopes), "quota": key.quota.as_mapping()}
    if key.old is None:
        del values["old"]
    return Record(KIND, key.id, json.dumps(values), version, group=key.tenant)


def _read(record: Record) -> ApiKey:
    values = json.loads(record.value)
    quota = Quota.from_mapping(values.pop("quota"))
    old = OldSecret(**values.pop("old")) if "old" in values else None
    return ApiKey(**{**values, "scopes": read_scopes(values["scopes"]), "quota": quota, "old": old})
