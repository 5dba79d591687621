"""Sessions in Redis: the store that several processes share.

Every operation is one Lua script (redis_lua.py lists the keys), so it is atomic whoever else uses the same Redis. Only
`list`, `active` and `purge` take several scripts when there is much to do, so as not to keep others waiting. All keys
begin with the same name in braces: a Redis Cluster keeps them on one node, so it adds replicas but no room.
Acknowledged changes are as durable as Redis makes them: `appendfsync always` loses nothing, `everysec` a second when
the machine dies (nothing when only Redis does). When a replica takes over, changes that had not reached it are lost.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from warren.interfaces.store import NO_CAPS, Added, Caps, Held, Key, KeyLimits, KeyRecord, Page
from warren.kernel.logs import get_log
from warren.model.access import ANY_TENANT
from warren.model.errors import Conflict, Unavailable
from warren.model.session import Session, SessionState
from warren.stores import redis_scripts as scripts
from warren.stores.common import (
    check_caps,
    check_fingerprint,
    check_keys,
    columns_of,
    frees_key,
    matches_page,
)
from warren.stores.encryption import Encryption
from warren.stores.redis_link import TIMEOUT_S, RedisLink, Value, connect
from warren.stores.redis_records import RedisRecords
from warren.stores.redis_roster_scripts import SWAP_OF_DEAD
from warren.stores.session_json import decode_session, encode_session, metadata_text

STEP: Final = 1000  # sessions that one script examines or purges

_log = get_log(__name__)


class RedisStore:
    """The store. Use `open`. With `encryption` the values of sessions' variables are encrypted."""

    @classmethod
    async def open(
        cls,
        url: str,
        encryption: Encryption | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        namespace: str = "warren",
        step: int = STEP,
    ) -> "RedisStore":
        link = connect(url, timeout_s=timeout_s, namespace=namespace)
        try:
            await check_it_is_ours(link, take=True)
        except BaseException:
            await link.close()
            raise
        return cls(link, encryption, step)

    def __init__(self, link: RedisLink, encryption: Encryption | None = None, step: int = STEP) -> None:
        self._link = link
        self._run = link.run
        self._encryption = encryption
        self._step = step
        self.key_limits = KeyLimits()
        self.records = RedisRecords(link)
        self.revision = None

    def __repr__(self) -> str:
        return f"<RedisStore over {self._link!r}>"

    async def add(self, session: Session, key: Key | None = None, caps: Caps = NO_CAPS) -> tuple[Session, Added]:
        name = ("", "", "", "") if key is None else ("1", key.scope, key.key, key.fingerprint)
        which, *rest = await self._run(scripts.ADD, *self._row(session), *_bounds(caps), *name)
        if key is not None:
            check_fingerprint(which != b"reused", key)
        if which == b"quota":
            _refuse(caps, rest)
        if which == b"conflict":
            raise Conflict(f"there is a session {session.id} already")
        if which == b"blank":
            raise _data_lost()
        return self._decoded(rest[0]) if rest else session, Added(which.decode())

    async def remember_key(self, key: Key, session: Session) -> None:
        """Lets a key stand for a session that is there. For copies: `add` does it for all others."""
        await self._run(scripts.REMEMBER, key.tenant, key.scope, key.key, key.fingerprint, session.id)

    async def get(self, tenant: str, session_id: str) -> Session | None:
        return self._decode_found(await self._run(scripts.GET, tenant, session_id))

    async def find(self, session_id: str) -> Session | None:
        return self._decode_found(await self._run(scripts.FIND, session_id))

    async def of_thread(self, tenant: str, thread_id: str) -> Session | None:
        return self._decode_found(await self._run(scripts.OF_THREAD, tenant, thread_id))

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        found = await self._run(scripts.SWAP, *self._row(session), *_bounds(caps))
        if isinstance(found, list):
            _refuse(caps, found[1:])
        return bool(found)

    async def restore(self, session: Session) -> bool:
        """Stores a session as its worker has it, if there is none or an older one and its thread has no other. Returns
        whether it was stored."""
        return bool(await self._run(scripts.RESTORE, *self._row(session)))

    async def swap_of_dead(self, session: Session, coordinator_id: str) -> bool:
        """Does `swap` only if the lease of the session's worker has expired and this coordinator may take the
        session."""
        return bool(await self._run(SWAP_OF_DEAD, *self._row(session), session.worker, coordinator_id))

    async def list(self, tenant: str, page: Page) -> Sequence[Session]:
        if page.limit <= 0 or not page.states:
            return []
        return await self._walk("active" if tenant == ANY_TENANT else _index(page), tenant, page)

    async def active(self) -> Sequence[Session]:
        return await self._walk("active", "", Page(limit=sys.maxsize))

    async def active_ids(self) -> Sequence[str]:
        return [one.decode() for one in await self._run(scripts.ACTIVE_IDS)]

    async def due(self, now: float, limit: int) -> Sequence[Session]:
        return [self._decoded(data) for data in await self._run(scripts.DUE, float(now), max(0, limit))]

    async def count(self) -> Mapping[SessionState, int]:
        flat = await self._run(scripts.COUNT)
        counts = dict(zip(flat[::2], map(int, flat[1::2]), strict=True))
        return {state: counts.get(state.encode(), 0) for state in SessionState}

    async def held(self, tenant: str, key_id: str) -> tuple[Held, Held]:
        sums = [int(one or 0) for one in await self._run(scripts.HELD, tenant, key_id)]
        return Held(*sums[:4]), Held(*sums[4:])

    async def purge(self, epoch: str, before: float) -> int:
        """Removes old sessions and keys. The returned number may be too low if a script had to be run twice."""
        total, more = 0, 1
        while more:
            gone, more = await self._run(scripts.PURGE, epoch, float(before), self._step)
            total += gone
        return total

    async def claim_key(self, key: Key, epoch: str, now: float) -> KeyRecord | None:
        most = self.key_limits.keys, self.key_limits.all_keys
        which, *rest = await self._run(scripts.CLAIM_KEY, *_name(key), epoch, float(now), *most)
        check_fingerprint(which != b"reused", key)
        if which == b"quota":
            check_keys(int(rest[0]), int(rest[1]), self.key_limits)
        return KeyRecord(key.fingerprint, rest[0].decode(errors="surrogatepass")) if rest else None

    async def answer_key(self, key: Key, answer: str) -> None:
        most = self.key_limits.answer_bytes, self.key_limits.all_answer_bytes
        await self._run(scripts.ANSWER_KEY, *_name(key), answer, *most)

    async def release_key(self, key: Key) -> None:
        await self._run(scripts.RELEASE_KEY, *_name(key))

    async def close(self) -> None:
        await self._link.close()

    async def _walk(self, index: str, tenant: str, page: Page) -> Sequence[Session]:
        """Reads an index, newest first, one step at a time."""
        texts = [metadata_text(name, value) for name, value in page.metadata.items()]
        found: list[Session] = []
        after: Value = page.after
        score: Value = ""
        more = True
        while more and len(found) < page.limit:
            place = index, tenant, page.thread_id, after, score, page.environment
            limits = min(page.limit - len(found), self._step), self._step, len(page.states)
            after, score, rows = await self._run(scripts.WALK, *place, *limits, *page.states, *texts)
            found += (one for one in map(self._decoded, rows) if matches_page(page, one))
            more = bool(after)
        return found

    def _row(self, session: Session) -> tuple[Value, ...]:
        """Returns the session's values in the order of `scripts.FIELDS`."""
        frees = "1" if frees_key(session) else ""
        return *columns_of(session), frees, len(session.gpus), encode_session(session, self._encryption)

    def _decoded(self, data: bytes) -> Session:
        return decode_session(data, self._encryption)

    def _decode_found(self, data: Any) -> Session | None:
        if isinstance(data, list):
            raise _data_lost()
        return None if data is None else self._decoded(data)


def _data_lost() -> Unavailable:
    return Unavailable(
        "Redis is empty, or has lost its data: workers have some seconds to publish the sessions they have",
        retry_after_s=5,
    )


def _bounds(caps: Caps) -> tuple[Value, ...]:
    """Returns the caps in the order in which scripts take them."""
    names = "sessions", "disk_mb", "gpus", "paused_sessions"
    return tuple(getattr(caps, prefix + name) for prefix in ("", "key_") for name in names)


def _refuse(caps: Caps, found: Sequence[Any]) -> None:
    """Raises QuotaExceeded with what a script has found."""
    sums = [int(one) for one in found]
    check_caps(caps, Held(*sums[:4]), Held(*sums[4:8]), Held(*sums[8:]))


def _name(key: Key) -> tuple[str, str, str, str]:
    return key.tenant, key.scope, key.key, key.fingerprint


def _index(page: Page) -> str:
    """Returns the shortest index that contains the whole page."""
    if page.thread_id:
        return "thread"
    return "live" if all(state.is_active for state in page.states) else "listed"


async def check_it_is_ours(link: RedisLink, *, take: bool) -> None:
    """Raises Unavailable if another version wrote the store. With `take` an empty Redis is initialized at once; in a
    cluster, workers first get time to publish their sessions."""
    version, policy = await link.run(scripts.OPEN, "1" if take else "")
    if version != str(scripts.VERSION).encode() and (take or version):
        raise Unavailable(
            f"the session store in Redis at {link.address} has version {_printable(version)}; "
            f"this Warren knows version {scripts.VERSION}",
            remedy="use the Warren that wrote it, or another namespace or database",
        )
    if policy.startswith(b"allkeys"):
        _log.warning(
            "redis_evicts_sessions",
            redis=link.address,
            policy=_printable(policy),
            remedy="set maxmemory-policy noeviction",
        )


def _printable(value: Any) -> str:
    return str(value[:40].decode(errors="replace"))
