"""The store of sessions and idempotency keys."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from warren.interfaces.records import RecordStore
from warren.model.session import Session, SessionState


@dataclass(frozen=True, slots=True)
class Key:
    """An Idempotency-Key of a caller. `scope` is "create", or the id of the session of an exec.

    `fingerprint` tells apart different requests that came with the same key.
    """

    tenant: str
    scope: str
    key: str
    fingerprint: str


class Added(StrEnum):
    """Which session `add` returned: the new one, the one of its key, or the one of its thread."""

    NEW = "new"
    KEY = "key"
    THREAD = "thread"


ANSWER_GONE = "gone"
"""Instead of an answer: the work is done, and its answer was dropped because the tenant has too many of them."""
SHORT_ANSWER = 8
"""Answers that are no longer than this are marks, and do not count."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A known key. `answer` is empty until the first request is done, and may later become ANSWER_GONE."""

    fingerprint: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """How many keys, and how many bytes of their answers, a store keeps: for one tenant, and for all tenants
    together."""

    keys: int = 100_000
    answer_bytes: int = 16 * 1024 * 1024
    all_keys: int = 1_000_000
    all_answer_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Caps:
    """How much a tenant, and one key of the tenant, may hold at once; None means no bound."""

    sessions: int | None = None
    disk_mb: int | None = None
    key_sessions: int | None = None
    key_disk_mb: int | None = None
    gpus: int | None = None
    key_gpus: int | None = None
    paused_sessions: int | None = None
    key_paused_sessions: int | None = None


NO_CAPS = Caps()


class Held(NamedTuple):
    """What the sessions that hold a sandbox take up: their number without the paused ones, the disk and the graphics
    processors of all, and the number of those that are paused."""

    sessions: int
    disk_mb: int
    gpus: int = 0
    paused_sessions: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Selects sessions, newest first, after the session id `after`. `search` finds a text, in upper or lower case, in
    the id, the thread id, and the names and values of the metadata."""

    states: frozenset[SessionState] = frozenset(state for state in SessionState if state.is_active)
    thread_id: str = ""
    environment: str = ""
    provider: str = ""
    worker: str = ""
    search: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    limit: int = 100


class SessionStore(Protocol):
    """The sessions and keys of all tenants. Every operation is atomic, also between processes that share the store.

    Acknowledged changes survive kill -9 of the process (except in the store in memory). A tenant never sees sessions or
    keys of another. Every call raises NoSpace when there is no space to write, and Unavailable when the store cannot
    work for another reason. Then nothing was changed, with one exception: a store over the network may raise
    Unavailable for a change that it made but whose reply was lost (see stores/redis_link.py). A shared store that has
    lost its data refuses `add` with Unavailable until workers have had the time to restore their sessions; otherwise a
    thread could get a second sandbox. Meanwhile `get` and `of_thread` raise Unavailable for a session that they do not
    find.

    `add` stores a new session, unless there is one already. For a known key it returns the key's session, even an ended
    one. Else it returns the active session of the same thread, which gets the key if its state `is_usable`. A key with
    another fingerprint raises KeyReused; a key is unknown if its session came to nothing or was purged. A new session
    that would take its tenant, or its key (`key_id`), over `caps` raises QuotaExceeded: however many are added at once,
    the number of sessions in a state that `is_counted`, and the sums of their `disk_mb` and `gpus`, never exceed the
    caps. Sessions in a state that `is_paused` count for `disk_mb` and `gpus`, and instead of `sessions` for
    `paused_sessions`.
    `get` returns a session of the tenant, even an ended one; `of_thread` the thread's active session, else its newest
    ended one. `find` returns a session of any tenant, for the server itself: no caller sees it.
    `swap` stores a change, whose `session.version` is one more than that of the session it was made from. It returns
    False if another change came first or the session is unknown. With `caps` it raises QuotaExceeded for a change that
    takes more of something than before and would thereby exceed its cap, however many change at once; nothing is
    changed then.
    `list` returns a page, newest first (by creation, then by id); a page after an unknown id is empty. ANY_TENANT
    stands for all tenants, for operators; then all states of the page must be active.
    `active` returns all active sessions of all tenants, `active_ids` their ids. `due` returns the sessions in a state
    that `expires` whose deadline has passed, the longest overdue first. `count` returns the number of sessions in each
    state. `held` returns what a tenant, and one key of the tenant, hold of their caps.
    `purge` deletes sessions that ended, and keys that were made, before `before` or in another epoch. A key stays as
    long as its session.
    `claim_key` stores a new key and returns None, or returns what is known of the key. A known key with another
    fingerprint raises KeyReused. `answer_key` adds the answer, `release_key` deletes the key; both do nothing for an
    unknown key. A new key beyond `key_limits` raises QuotaExceeded. An answer beyond them displaces the oldest answers
    of its own tenant, which become ANSWER_GONE; if that is not enough, the answer itself becomes ANSWER_GONE. The keys
    stay known, so no work is done twice.
    `records` keeps everything else, in the same place.
    `revision` changes with every change, whoever made it, and perhaps without one. It is None if it cannot be read at
    once.
    """

    @property
    def records(self) -> RecordStore: ...
    @property
    def revision(self) -> Hashable | None: ...
    @property
    def key_limits(self) -> KeyLimits: ...
    @key_limits.setter
    def key_limits(self, limits: KeyLimits) -> None: ...

    async def add(self, session: Session, key: Key | None = None, caps: Caps = NO_CAPS) -> tuple[Session, Added]: ...
    async def get(self, tenant: str, session_id: str) -> Session | None: ...
    async def find(self, session_id: str) -> Session | None: ...
    async def of_thread(self, tenant: str, thread_id: str) -> Session | None: ...
    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool: ...
    async def list(self, tenant: str, page: Page) -> Sequence[Session]: ...
    async def active(self) -> Sequence[Session]: ...
    async def active_ids(self) -> Sequence[str]: ...
    async def due(self, now: float, limit: int) -> Sequence[Session]: ...
    async def count(self) -> Mapping[SessionState, int]: ...
    async def held(self, tenant: str, key_id: str) -> tuple[Held, Held]: ...
    async def purge(self, epoch: str, before: float) -> int: ...
    async def claim_key(self, key: Key, epoch: str, now: float) -> KeyRecord | None: ...
    async def answer_key(self, key: Key, answer: str) -> None: ...
    async def release_key(self, key: Key) -> None: ...
    async def close(self) -> None: ...
