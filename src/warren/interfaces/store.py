"""Where sessions and idempotency keys are kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from warren.interfaces.records import RecordStore
from warren.model.session import Session, SessionState


@dataclass(frozen=True, slots=True)
class Key:
    """An Idempotency-Key of a caller. `scope` is "create", or the session of an exec.

    `fingerprint` tells one request from another that came with the same key.
    """

    tenant: str
    scope: str
    key: str
    fingerprint: str


class Added(StrEnum):
    """Which session `add` gives: the new one, the one of its key, or the one of its thread."""

    NEW = "new"
    KEY = "key"
    THREAD = "thread"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A known key. `answer` is empty until the work of the first request is done."""

    fingerprint: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Caps:
    """How much a tenant, and one key of it, may hold at once; None is no bound."""

    sessions: int | None = None
    disk_mb: int | None = None
    key_sessions: int | None = None
    key_disk_mb: int | None = None


NO_CAPS = Caps()


@dataclass(frozen=True, slots=True)
class Page:
    """Selects sessions of a tenant, newest first, after the session id `after`."""

    states: frozenset[SessionState] = frozenset(state for state in SessionState if state.is_active)
    thread_id: str = ""
    environment: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    limit: int = 100


class SessionStore(Protocol):
    """The sessions and keys of all tenants. Every operation is atomic, also between processes that share it.

    What a call has acknowledged is there after kill -9 of the process and a new start (not for the
    store in memory). A tenant never sees what belongs to another. Raises NoSpace when it cannot
    write for want of space, and Unavailable when it cannot work for another reason; then nothing
    was changed, except that a store over the network may raise Unavailable for a change that it made and whose
    answer got lost (see stores/redis_link.py). A shared store that has lost its data refuses `add` with Unavailable
    until those who have sessions have had the time to restore them: otherwise a thread could get a second sandbox. So
    do `get` and `of_thread` for what they do not find meanwhile: it may be there in a moment.

    `add` stores a new session, if there is nothing in its way: a key that is known gives the session it
    stands for (also an ended one), then an active session of the same thread gives that one and, if its state
    `is_usable`, remembers the key for it. A key that came with another fingerprint raises KeyReused;
    a key whose session came to nothing counts as unknown; so does one whose session was purged. A new session that
    would take its tenant, or its key (`key_id`), over `caps` raises QuotaExceeded: however many come at once, what is
    held (states with `holds_sandbox`; disk as the sum of `disk_mb`) never exceeds them.
    `get` finds a session of the tenant, also an ended one; `of_thread` the thread's active one, else the
    newest ended one.
    `swap` stores a change (`session.version` is one more than what it was made from) if nobody else was
    faster; it says whether it did. A session that is unknown is not stored.
    `list` gives a page, newest first (by creation, then by id); a page after an id that is unknown is empty.
    `active` gives all active sessions, of every tenant; `due` those in a state that `expires` whose deadline has
    passed, the longest overdue first; `count` how many there are in each state.
    `purge` forgets ended sessions, and keys, that ended or were made before `before`, or in another epoch. A key
    of a session that is still there stays.
    `claim_key` remembers a key, unless it is known: then it gives what is known of it (None: it is new).
    A known key with another fingerprint raises KeyReused. `answer_key` adds the answer, `release_key`
    forgets it; both do nothing for a key that is unknown.
    `records` keeps everything else, in the same place.
    """

    @property
    def records(self) -> RecordStore: ...

    async def add(self, session: Session, key: Key | None = None, caps: Caps = NO_CAPS) -> tuple[Session, Added]: ...
    async def get(self, tenant: str, session_id: str) -> Session | None: ...
    async def of_thread(self, tenant: str, thread_id: str) -> Session | None: ...
    async def swap(self, session: Session) -> bool: ...
    async def list(self, tenant: str, page: Page) -> Sequence[Session]: ...
    async def active(self) -> Sequence[Session]: ...
    async def due(self, now: float, limit: int) -> Sequence[Session]: ...
    async def count(self) -> Mapping[SessionState, int]: ...
    async def purge(self, epoch: str, before: float) -> int: ...
    async def claim_key(self, key: Key, epoch: str, now: float) -> KeyRecord | None: ...
    async def answer_key(self, key: Key, answer: str) -> None: ...
    async def release_key(self, key: Key) -> None: ...
    async def close(self) -> None: ...
