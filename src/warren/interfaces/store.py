"""Where sessions and idempotency keys are kept."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

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


ANSWER_GONE = "gone"
"""Instead of an answer: the work is done, and its answer was dropped because the tenant has too many of them."""
SHORT_ANSWER = 8
"""Answers that are no longer than this are marks, and do not count."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A known key. `answer` is empty until the work of the first request is done, and may be ANSWER_GONE later."""

    fingerprint: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """How many claimed keys, and how many bytes of their answers, a store keeps for a tenant and in all."""

    keys: int = 100_000
    answer_bytes: int = 16 * 1024 * 1024
    all_keys: int = 1_000_000
    all_answer_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Caps:
    """How much a tenant, and one key of it, may hold at once; None is no bound."""

    sessions: int | None = None
    disk_mb: int | None = None
    key_sessions: int | None = None
    key_disk_mb: int | None = None
    gpus: int | None = None
    key_gpus: int | None = None


NO_CAPS = Caps()


class Held(NamedTuple):
    """What sessions take up that hold a sandbox: how many there are, their disk, their graphics processors."""

    sessions: int
    disk_mb: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Selects sessions, newest first, after the session id `after`. `search` is a text in the id, the thread id, or the
    names and values of the metadata, in upper or lower case."""

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
    """The sessions and keys of all tenants. Every operation is atomic, also between processes that share it.

    Acknowledged changes survive kill -9 of the process (not in the store in memory). A tenant never sees sessions or
    keys of another. Every call raises NoSpace when it cannot write for want of space, and Unavailable when it cannot
    work for another reason; then nothing was changed, except that a store over the network may raise Unavailable for a
    change that it made and whose answer got lost (see stores/redis_link.py). A shared store that has lost its data
    refuses `add` with Unavailable until workers have had the time to restore their sessions: otherwise a thread could
    get a second sandbox. Meanwhile `get` and `of_thread` raise Unavailable for a session that they do not find.

    `add` stores a new session, unless there is one already. A known key gives its session (also an ended one). Else an
    active session of the same thread is given, and gets the key if its state `is_usable`. A key with another
    fingerprint raises KeyReused; a key is unknown if its session came to nothing or was purged. A new session that
    would take its tenant, or its key (`key_id`), over `caps` raises QuotaExceeded: however many are added at once, the
    sessions in a state that `holds_sandbox`, the sum of their `disk_mb` and their `gpus` never exceed the caps.
    `get` gives a session of the tenant, also an ended one; `of_thread` the thread's active one, else the newest ended.
    `find` gives a session of any tenant, for the server itself: no caller sees it.
    `swap` stores a change (`session.version` is one more than that of the session it was made from) and gives True,
    unless another change was faster or the session is unknown.
    `list` gives a page, newest first (by creation, then by id); a page after an unknown id is empty. ANY_TENANT stands
    for all tenants, for operators: then all states of the page must be active.
    `active` gives all active sessions of all tenants, `active_ids` their ids; `due` those in a state that `expires`
    whose deadline has passed, the longest overdue first; `count` the number of sessions in each state. `held` gives
    what a tenant, and one key of it, hold of their caps.
    `purge` deletes sessions that ended, and keys that were made, before `before` or in another epoch. A key stays as
    long as its session.
    `claim_key` stores a new key and gives None, or gives what is known of the key. A known key with another fingerprint
    raises KeyReused. `answer_key` adds the answer, `release_key` deletes the key; both do nothing for an unknown key.
    A new key beyond `key_limits` raises QuotaExceeded. An answer beyond them takes the place of the oldest answers of
    its own tenant, which become ANSWER_GONE; if that is not enough it becomes ANSWER_GONE itself. The keys stay known:
    no work is done twice.
    `records` keeps everything else, in the same place.
    `revision` is another value after every change, whoever made it, and may be without one; None where that cannot be
    told at once.
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
    async def swap(self, session: Session) -> bool: ...
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
