"""Sessions and records in memory, which are lost when the process ends. No operation awaits anything, so each is
atomic."""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from warren.interfaces.records import Record
from warren.interfaces.store import ANSWER_GONE, NO_CAPS, Added, Caps, Held, Key, KeyLimits, KeyRecord, Page
from warren.model.access import ANY_TENANT
from warren.model.errors import Conflict
from warren.model.session import Session, SessionState
from warren.stores.common import (
    EVICTED_AT_ONCE,
    KeySums,
    check_caps,
    check_fingerprint,
    counted_size,
    end_time,
    frees_key,
    list_position,
    matches_page,
    takes,
    takes_more,
)

_Name = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A key. It stands for a session, or was claimed at the time `made` of `epoch`."""

    fingerprint: str
    session_id: str = ""
    answer: str = ""
    epoch: str = ""
    made: float = 0.0


class MemoryRecords:
    def __init__(self) -> None:
        self._records: dict[tuple[str, str], Record] = {}

    def __repr__(self) -> str:
        return f"<MemoryRecords: {len(self._records)}>"

    async def get(self, kind: str, record_id: str) -> Record | None:
        return self._records.get((kind, record_id))

    async def put(self, record: Record) -> bool:
        known = self._records.get((record.kind, record.id))
        if (known.version if known else 0) != record.version - 1:
            return False
        self._records[record.kind, record.id] = record
        return True

    async def delete(self, kind: str, record_id: str) -> bool:
        return self._records.pop((kind, record_id), None) is not None

    async def list(self, kind: str, *, group: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        return heapq.nsmallest(limit, (one for one in self._of(kind, group) if one.id > after), key=lambda one: one.id)

    async def due(self, kind: str, now: float, limit: int) -> Sequence[Record]:
        late = [(one.due, one.id, one) for one in self._of(kind) if one.due is not None and one.due <= now]
        return [one for _, _, one in heapq.nsmallest(limit, late)]

    async def count(self, kind: str, *, group: str = "") -> int:
        return sum(1 for _ in self._of(kind, group))

    async def sync(self) -> None:
        return None

    def _of(self, kind: str, group: str = "") -> Iterator[Record]:
        return (one for one in self._records.values() if one.kind == kind and group in ("", one.group))


class MemoryStore:
    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._threads: dict[tuple[str, str], str] = {}  # (tenant, thread) -> its active session
        self._keys: dict[_Name, _Kept] = {}
        self._key_sums = KeySums()
        self.key_limits = KeyLimits()
        self.records = MemoryRecords()
        self.revision = 0

    def __repr__(self) -> str:
        return f"<MemoryStore: {len(self._sessions)} sessions, {len(self._keys)} keys>"

    async def add(self, session: Session, key: Key | None = None, caps: Caps = NO_CAPS) -> tuple[Session, Added]:
        if key is not None and (known := self._standing_for(key)) is not None:
            return known, Added.KEY
        held = self._active_of(session.tenant, session.thread_id)
        if held is None:
            if caps != NO_CAPS:
                self._check_caps(caps, session, None)
            self._insert(session)
        stored = held or session
        if key is not None and (held is None or held.state.is_usable):
            self._keys[_name(key)] = _Kept(key.fingerprint, session_id=stored.id)
        return stored, Added.NEW if held is None else Added.THREAD

    async def get(self, tenant: str, session_id: str) -> Session | None:
        session = self._sessions.get(session_id)
        return session if session is not None and session.tenant == tenant else None

    async def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    async def of_thread(self, tenant: str, thread_id: str) -> Session | None:
        if (active := self._active_of(tenant, thread_id)) is not None or not thread_id:
            return active
        return max((one for one in self._of(tenant) if one.thread_id == thread_id), key=list_position, default=None)

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        known = await self.get(session.tenant, session.id)
        if known is None or known.version != session.version - 1:
            return False
        if caps != NO_CAPS:
            self._check_caps(caps, session, known)
        self._sessions[session.id] = session
        self.revision += 1
        if known.active and not session.active:
            self._threads.pop((session.tenant, session.thread_id), None)
        return True

    async def list(self, tenant: str, page: Page) -> Sequence[Session]:
        whole = self._sessions.values() if tenant == ANY_TENANT else self._of(tenant)
        found = (one for one in whole if matches_page(page, one))
        if page.after:
            after = await (self.find(page.after) if tenant == ANY_TENANT else self.get(tenant, page.after))
            if after is None:
                return []
            found = (one for one in found if list_position(one) < list_position(after))
        return heapq.nlargest(page.limit, found, key=list_position)

    async def active(self) -> Sequence[Session]:
        return [one for one in self._sessions.values() if one.active]

    async def active_ids(self) -> Sequence[str]:
        return [one.id for one in self._sessions.values() if one.active]

    async def due(self, now: float, limit: int) -> Sequence[Session]:
        late = (one for one in self._sessions.values() if one.state.expires and one.deadline <= now)
        return heapq.nsmallest(limit, late, key=lambda one: (one.deadline, one.id))

    async def count(self) -> Mapping[SessionState, int]:
        counts = Counter(one.state for one in self._sessions.values())
        return {state: counts[state] for state in SessionState}

    async def held(self, tenant: str, key_id: str) -> tuple[Held, Held]:
        return self._held(tenant), self._held(tenant, key_id)

    async def purge(self, epoch: str, before: float) -> int:
        ends = ((one, end_time(one)) for one in self._sessions.values())
        old = {one.id for one, ended in ends if ended is not None and (one.epoch != epoch or ended < before)}
        for session_id in old:
            del self._sessions[session_id]
        self.revision += 1
        for name, kept in tuple(self._keys.items()):
            if kept.session_id in old or (not kept.session_id and (kept.epoch != epoch or kept.made < before)):
                self._drop(name)
        return len(old)

    async def claim_key(self, key: Key, epoch: str, now: float) -> KeyRecord | None:
        kept = self._keys.get(_name(key))
        if kept is None:
            self._key_sums.check_new(key.tenant, self.key_limits)
            self._key_sums.add(key.tenant, 1, 0)
            self._keys[_name(key)] = _Kept(key.fingerprint, epoch=epoch, made=now)
            return None
        check_fingerprint(kept.fingerprint == key.fingerprint, key)
        return KeyRecord(kept.fingerprint, kept.answer)

    async def answer_key(self, key: Key, answer: str) -> None:
        if self._knows(key):
            self._set_answer(_name(key), "")
            if excess := self._key_sums.excess(key.tenant, counted_size(answer), self.key_limits):
                self._evict(key.tenant, excess)
                if self._key_sums.excess(key.tenant, counted_size(answer), self.key_limits):
                    answer = ANSWER_GONE
            self._set_answer(_name(key), answer)

    async def release_key(self, key: Key) -> None:
        if self._knows(key):
            self._drop(_name(key))

    async def close(self) -> None:
        pass

    def _set_answer(self, name: _Name, answer: str) -> None:
        kept = self._keys[name]
        self._keys[name] = replace(kept, answer=answer)
        self._key_sums.add(name[0], 0, counted_size(answer) - counted_size(kept.answer))

    def _evict(self, tenant: str, excess: int) -> None:
        answered = [
            (kept.made, name) for name, kept in self._keys.items() if name[0] == tenant and counted_size(kept.answer)
        ]
        for _, name in heapq.nsmallest(EVICTED_AT_ONCE, answered):
            if excess <= 0:
                return
            excess -= counted_size(self._keys[name].answer)
            self._set_answer(name, ANSWER_GONE)

    def _drop(self, name: _Name) -> None:
        kept = self._keys.pop(name)
        if not kept.session_id:
            self._key_sums.add(name[0], -1, -counted_size(kept.answer))

    def _held(self, tenant: str, key_id: str | None = None) -> Held:
        mine = (takes(one) for one in self._of(tenant) if key_id is None or one.key_id == key_id)
        return Held(*map(sum, zip(takes(None), *mine, strict=True)))

    def _check_caps(self, caps: Caps, session: Session, before: Session | None) -> None:
        held, of_key = self._held(session.tenant), self._held(session.tenant, session.key_id)
        check_caps(caps, takes_more(session, before), held, of_key)

    def _insert(self, session: Session) -> None:
        if session.id in self._sessions:
            raise Conflict(f"there is a session {session.id} already")
        self._sessions[session.id] = session
        self.revision += 1
        if session.thread_id and session.active:
            self._threads[session.tenant, session.thread_id] = session.id

    def _standing_for(self, key: Key) -> Session | None:
        """Returns the session that a known key stands for. Raises KeyReused."""
        kept = self._keys.get(_name(key))
        if kept is None or frees_key(session := self._sessions.get(kept.session_id)):
            return None
        check_fingerprint(kept.fingerprint == key.fingerprint, key)
        return session

    def _active_of(self, tenant: str, thread_id: str) -> Session | None:
        session_id = self._threads.get((tenant, thread_id))
        return None if session_id is None else self._sessions[session_id]

    def _of(self, tenant: str) -> Iterator[Session]:
        return (one for one in self._sessions.values() if one.tenant == tenant)

    def _knows(self, key: Key) -> bool:
        kept = self._keys.get(_name(key))
        return kept is not None and kept.fingerprint == key.fingerprint


def _name(key: Key) -> _Name:
    return key.tenant, key.scope, key.key
