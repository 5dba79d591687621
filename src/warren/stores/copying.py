"""Copies all that a store has to an empty one of another kind: sessions, also ended ones, Idempotency-Keys and records.

No other process uses either store meanwhile. What both keep in their own ways is not here: audit, counters of quotas.
"""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from warren.interfaces.records import Record, RecordStore
from warren.interfaces.store import Key, SessionStore
from warren.model.session import Session
from warren.stores.encryption import Encryption
from warren.stores.redis_link import RedisLink
from warren.stores.redis_lua import script
from warren.stores.redis_records import RedisRecords
from warren.stores.session_json import decode_session, to_text
from warren.stores.sqlite import SqliteRecords
from warren.stores.sqlite_file import SqliteFile

_PAGE: Final = 500
_PLACED: Final = frozenset({"volume", "snapshot", "session_log"})
"""The kinds of records that say which worker has what they are about. Artifacts are in one store."""

_SCAN: Final = script(
    body="""
local cursor, names = unpack(call('SCAN', ARGV[3], 'MATCH', KEYS[1] .. ':' .. ARGV[4] .. ':*', 'COUNT', 500))
local found = {}
for _, name in ipairs(names) do
  local values = ARGV[5] and call('HMGET', name, unpack(ARGV, 5)) or {}
  table.insert(values, 1, name:sub(#KEYS[1] + #ARGV[4] + 3))
  found[#found + 1] = values
end
return {cursor, found}
"""
)


@dataclass(frozen=True, slots=True)
class KeptKey:
    """A key stands for a session, or for work with an `answer`; that is empty until the work is done."""

    key: Key
    session_id: str
    answer: str


class Source(Protocol):
    """What a store has. `kinds` are the kinds of its records."""

    @property
    def records(self) -> RecordStore: ...
    async def kinds(self) -> Iterable[str]: ...
    def sessions(self) -> AsyncIterator[Session]: ...
    def keys(self) -> AsyncIterator[KeptKey]: ...


class Target(SessionStore, Protocol):
    async def remember_key(self, key: Key, session: Session) -> None: ...


class SqliteSource:
    def __init__(self, path: Path, encryption: Encryption | None) -> None:
        self._file, self._encryption = SqliteFile(path), encryption
        self.records = SqliteRecords(self._file, _at_once, _at_once)

    async def kinds(self) -> Iterable[str]:
        return [kind for (kind,) in self._file.run("SELECT DISTINCT kind FROM records").fetchall()]

    async def sessions(self) -> AsyncIterator[Session]:
        for (session_id,) in self._file.run("SELECT id FROM sessions ORDER BY created_at, id").fetchall():
            (data,) = self._file.run("SELECT data FROM sessions WHERE id = ?", session_id).fetchone()
            yield decode_session(data, self._encryption)

    async def keys(self) -> AsyncIterator[KeptKey]:
        for row in self._file.run("SELECT tenant, scope, key, fingerprint, session_id, answer FROM keys").fetchall():
            yield KeptKey(Key(*map(to_text, row[:4])), row[4] or "", row[5])

    def close(self) -> None:
        self._file.refuse()
        self._file.close()


async def _at_once() -> None:
    """Nobody else writes the file."""


class RedisSource:
    def __init__(self, link: RedisLink, encryption: Encryption | None) -> None:
        self.records = RedisRecords(link)
        self._link, self._encryption = link, encryption

    async def kinds(self) -> Iterable[str]:
        return {_parts(name)[0] async for name, *_ in self._scan("ids")}

    async def sessions(self) -> AsyncIterator[Session]:
        async for _, data in self._scan("session", "data"):
            if data is not None:
                yield decode_session(data, self._encryption)

    async def keys(self) -> AsyncIterator[KeptKey]:
        async for name, fingerprint, session_id, answer in self._scan("key", "print", "session", "answer"):
            if fingerprint is not None:
                tenant, scope, key = _parts(name)
                yield KeptKey(Key(tenant, scope, key, _text(fingerprint)), _text(session_id), _text(answer))

    async def _scan(self, kind: str, *fields: str) -> AsyncIterator[Sequence[Any]]:
        """The names of a kind without their beginning, each once, with these fields."""
        cursor, seen = "0", set[bytes]()
        while True:
            after, found = await self._link.run(_SCAN, cursor, kind, *fields)
            for name, *values in found:
                if name not in seen:
                    seen.add(name)
                    yield [name, *values]
            cursor = after.decode()
            if cursor == "0":
                return


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="surrogatepass")


def _parts(name: bytes) -> list[str]:
    """Reads what `key` in redis_lua.py has written: each part behind its length."""

    def read(rest: bytes) -> Iterator[str]:
        while rest:
            length, _, rest = rest.partition(b":")
            yield _text(rest[: int(length)])
            rest = rest[int(length) + 1 :]

    return list(read(name))


@dataclass(frozen=True, slots=True)
class Move:
    """`change` gives a session the clock and the worker of the target; `place` is for records of what a worker has.
    `epoch` and `now` are those of the target's clock. `shares_snapshots`: packed ones are in a store that all have."""

    change: Callable[[Session], Session]
    place: str
    epoch: str
    now: float
    shares_snapshots: bool = False


async def copy_all(source: Source, target: Target, move: Move) -> int:
    """Returns how many sessions were copied that have not ended."""
    for kind in await source.kinds():
        async for record in _records(source, kind):
            await target.records.put(_placed(record, move))
    by_session = defaultdict[str, list[Key]](list)
    async for kept in source.keys():
        if kept.session_id:
            by_session[kept.session_id].append(kept.key)
            continue
        await target.claim_key(kept.key, move.epoch, move.now)
        if kept.answer:
            await target.answer_key(kept.key, kept.answer)
    copied = 0
    for active in (False, True):  # else an ended session would be taken for another one of an active one's thread
        async for session in source.sessions():
            if session.active is active:
                changed = move.change(session)
                await target.add(changed)
                for key in by_session[session.id]:
                    await target.remember_key(key, changed)
                copied += active
    return copied


async def places(source: Source) -> set[str]:
    """The workers that have something: a session, or what a record is about."""
    found = {session.worker async for session in source.sessions() if session.active}
    for kind in _PLACED & set(await source.kinds()):
        async for record in _records(source, kind):
            found.add(_values(record).get("place", ""))
    return found - {""}


async def _records(source: Source, kind: str) -> AsyncIterator[Record]:
    after = ""
    while page := await source.records.list(kind, after=after, limit=_PAGE):
        for record in page:
            yield record
        after = page[-1].id


def _placed(record: Record, move: Move) -> Record:
    """The record as a new one. What it is about is at the place of the move, unless a store that all have has it."""
    values = _values(record) if record.kind in _PLACED else {}
    if "place" not in values or (values.get("packed") and move.shares_snapshots):
        return replace(record, version=1)
    return replace(record, version=1, value=json.dumps({**values, "place": move.place}))


def _values(record: Record) -> Mapping[str, Any]:
    values = json.loads(record.value)
    return values if isinstance(values, dict) else {}
