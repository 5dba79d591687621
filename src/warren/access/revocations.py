"""Tokens that are refused before they expire: one token by its id (`jti`), or all that a subject has got until now.

The revocations are records. Each process reads them again every CACHED_S, so a token may still be accepted for that
long after another process has revoked it. If they cannot be read, those read last count for TRUSTED_S; after that, and
if none were read yet, no token is accepted. A revocation is removed when the tokens that it is about have surely
expired.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from warren.interfaces.records import Record, RecordStore
from warren.kernel.clock import Clock
from warren.model.errors import InvalidRequest, NotFound, Unauthorized, Unavailable

CACHED_S: Final = 2.0
TRUSTED_S: Final = 600.0
KEPT_S: Final = 30 * 86400.0
MAX_REVOCATIONS: Final = 10_000
_KIND: Final = "revocation"
_MAX_NAME: Final = 256


@dataclass(frozen=True, slots=True)
class Revocation:
    """Revokes the token `token_id`, or the tokens of `subject` that were issued before `made_at`."""

    id: str
    token_id: str
    subject: str
    made_at: float
    kept_until: float


class Revocations:
    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._token_ids: frozenset[str] = frozenset()
        self._subjects: Mapping[str, float] = {}
        self._read_at: float | None = None
        self._tried_at = -CACHED_S
        self._reading = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Revocations: {len(self._token_ids)} tokens, {len(self._subjects)} subjects>"

    async def revoke(self, token_id: str = "", subject: str = "", kept_s: float = KEPT_S) -> Revocation:
        """Revokes for `kept_s`, which is longer than any of these tokens is valid."""
        if bool(token_id) == bool(subject):
            raise InvalidRequest("a revocation is of one token or of one subject", remedy="give one of them")
        if len(token_id + subject) > _MAX_NAME or not (token_id + subject).isprintable():
            raise InvalidRequest(f"the id of a token, or its subject, has at most {_MAX_NAME} printable characters")
        await self._remove_expired()
        if await self._records.count(_KIND) >= MAX_REVOCATIONS:
            raise InvalidRequest(
                f"there are {MAX_REVOCATIONS} revocations already", remedy="revoke a subject instead of its tokens"
            )
        now = self._clock.wall()
        made = Revocation(_id_of(token_id, subject), token_id, subject, now, now + kept_s)
        while True:
            old = await self._records.get(_KIND, made.id)
            version = 1 if old is None else old.version + 1
            if await self._records.put(Record(_KIND, made.id, json.dumps(asdict(made)), version, due=made.kept_until)):
                break
        await self._read()
        return made

    async def list(self) -> Sequence[Revocation]:
        found = [_read_record(record) for record in await self._records.list(_KIND, limit=MAX_REVOCATIONS)]
        return sorted(found, key=lambda one: (one.made_at, one.id))

    async def withdraw(self, revocation_id: str) -> None:
        """Accepts the tokens again, unless they have expired."""
        if not await self._records.delete(_KIND, revocation_id):
            raise NotFound(
                f"there is no revocation {revocation_id[:80]!r}", remedy="listing them shows those there are"
            )
        await self._read()

    async def check(self, claims: Mapping[str, Any]) -> None:
        """Raises Unauthorized if the token with these claims was revoked."""
        now = self._clock.now()
        if now - self._tried_at >= CACHED_S:
            await self._refresh()
        elif self._read_at is None or now - self._read_at >= TRUSTED_S:
            # The last attempt failed a moment ago: who was revoked since is not known.
            raise Unavailable("whether the token was revoked cannot be told now", retry_after_s=CACHED_S)
        issued_at, subject = claims.get("iat"), claims.get("sub")
        before = self._subjects.get(subject) if isinstance(subject, str) else None
        # A token that does not say when it was issued counts as one from before the revocation.
        old = before is not None and not (isinstance(issued_at, int | float) and issued_at > before)
        if old or claims.get("jti") in self._token_ids:
            raise Unauthorized("the token was revoked", remedy="get a new token from your issuer")

    async def _refresh(self) -> None:
        async with self._reading:
            if self._clock.now() - self._tried_at < CACHED_S:
                return
            try:
                await self._read()
            except Unavailable:
                self._tried_at = self._clock.now()
                if self._read_at is None or self._clock.now() - self._read_at >= TRUSTED_S:
                    raise

    async def _read(self) -> None:
        found = await self.list()
        self._token_ids = frozenset(one.token_id for one in found if one.token_id)
        self._subjects = {one.subject: one.made_at for one in found if one.subject}
        self._read_at = self._tried_at = self._clock.now()

    async def _remove_expired(self) -> None:
        for record in await self._records.due(_KIND, self._clock.wall(), 1000):
            await self._records.delete(_KIND, record.id)


def _id_of(token_id: str, subject: str) -> str:
    """Returns the record's id, which is the same for every revocation of one token or subject."""
    return f"rev_{hashlib.sha256(json.dumps([token_id, subject]).encode()).hexdigest()[:24]}"


def _read_record(record: Record) -> Revocation:
    return Revocation(**json.loads(record.value))
