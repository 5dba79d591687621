"""The store of a worker: the one that the cluster shares, and copies of the rows of its own sessions.

While a worker has its lease nobody else ends what is its own, so it reads its own rows from the copies, and serves the
sessions it has when Redis is away. Every change is made in the shared store first; a change that was not
possible there has not happened. Copies are kept in a file too: a Redis that has lost its data gets them back.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from warren.coordinator.stores.rows import decoded, encoded
from warren.coordinator.stores.rules import EXPIRING
from warren.coordinator.stores.sealing import Sealer
from warren.interfaces.records import Record, RecordStore
from warren.interfaces.store import NO_CAPS, Added, Caps, Key, KeyRecord, Page, SessionStore
from warren.model.errors import Unavailable
from warren.model.session import Session, SessionState

_KIND: Final = "copy"
_PAGE: Final = 1000
_log = logging.getLogger(__name__)


class SharedStore(SessionStore, Protocol):
    """`restore` stores a session as its worker has it, if the store has none or an older one, and its thread has no
    other; it says whether the store has it now."""

    async def restore(self, session: Session) -> bool: ...


class MirroredStore:
    """`copies` are this worker's alone. Call `load` before anything else."""

    def __init__(self, shared: SharedStore, copies: RecordStore, worker: str, sealer: Sealer | None = None) -> None:
        self._shared = shared
        self._copies = copies
        self._worker = worker
        self._sealer = sealer
        self._rows: dict[str, Session] = {}
        self._records: dict[str, Record] = {}

    def __repr__(self) -> str:
        return f"<MirroredStore of {self._worker}: {len(self._rows)} sessions, {self._shared!r}>"

    @property
    def records(self) -> RecordStore:
        return self._shared.records

    async def load(self) -> None:
        after = ""
        while page := await self._copies.list(_KIND, after=after, limit=_PAGE):
            for record in page:
                self._records[record.id] = record
                self._rows[record.id] = decoded(record.value, self._sealer)
            after = page[-1].id

    # -- what is the worker's own

    def own(self) -> Collection[Session]:
        return self._rows.values()

    async def reconcile(self) -> Collection[Session]:
        """Compares with the shared store, which may have been without us or we without it: what it has decided holds,
        what it has lost it gets again. Gives the sessions that were ours and are not any more."""
        theirs = {session.id: session for session in await self._shared.active() if session.worker == self._worker}
        dropped = [mine for mine in list(self._rows.values()) if not await self._is_kept(mine, theirs.get(mine.id))]
        for session in theirs.values():
            kept = self._rows.get(session.id)
            if kept is None or kept.version < session.version:
                await self._remember(session)
        return dropped

    async def _is_kept(self, mine: Session, theirs: Session | None) -> bool:
        if theirs is None or (theirs.version < mine.version and mine.state is SessionState.RUNNING):
            theirs = await self._published(mine)
        if theirs is None or not theirs.active:
            await self._forget(mine.id)
            return False
        if theirs.version >= mine.version:
            await self._remember(theirs)
        return theirs.state is SessionState.RUNNING or mine.state is not SessionState.RUNNING

    async def _published(self, mine: Session) -> Session | None:
        """What the shared store has of a session that is not among our active ones there; only what runs is put back."""
        if mine.state is not SessionState.RUNNING:
            return None
        return mine if await self._shared.restore(mine) else await self._shared.get(mine.tenant, mine.id)

    async def _remember(self, session: Session) -> None:
        if session.worker != self._worker or not session.active:
            await self._forget(session.id)
            return
        self._rows[session.id] = session
        text, known = encoded(session, self._sealer), self._records.get(session.id)
        record = Record(_KIND, session.id, text) if known is None else known.changed(text)
        try:
            if await self._copies.put(record):
                self._records[session.id] = record
        except Exception as exc:
            _log.warning("the copy of session %s could not be written: %s", session.id, exc)

    async def _forget(self, session_id: str) -> None:
        self._rows.pop(session_id, None)
        if self._records.pop(session_id, None) is not None:
            try:
                await self._copies.delete(_KIND, session_id)
            except Exception as exc:
                _log.warning("the copy of session %s could not be deleted: %s", session_id, exc)

    # -- as every store

    async def add(self, session: Session, key: Key | None = None, caps: Caps = NO_CAPS) -> tuple[Session, Added]:
        found, added = await self._shared.add(session, key, caps)
        if added is Added.NEW:
            await self._remember(found)
        return found, added

    async def get(self, tenant: str, session_id: str) -> Session | None:
        """What is lost anybody may end: then the shared store is asked."""
        mine = self._rows.get(session_id)
        if mine is None or mine.tenant != tenant:
            return await self._shared.get(tenant, session_id)
        if mine.state is SessionState.LOST:
            return await self._refreshed(mine)
        return mine

    async def _refreshed(self, mine: Session) -> Session | None:
        current = await self._shared.get(mine.tenant, mine.id)
        if current is not None:
            await self._remember(current)
        return current

    async def of_thread(self, tenant: str, thread_id: str) -> Session | None:
        try:
            return await self._shared.of_thread(tenant, thread_id)
        except Unavailable:
            for session in self._rows.values():
                if (session.tenant, session.thread_id) == (tenant, thread_id):
                    return session
            raise

    async def swap(self, session: Session) -> bool:
        if await self._shared.swap(session):
            await self._remember(session)
            return True
        if await self._refreshed(session) is None and session.id in self._rows:
            raise Unavailable("Redis has lost its data, this session is being published again", retry_after_s=2)
        return False

    async def list(self, tenant: str, page: Page) -> Sequence[Session]:
        return await self._shared.list(tenant, page)

    async def active(self) -> Sequence[Session]:
        return list(self._rows.values())

    async def due(self, now: float, limit: int) -> Sequence[Session]:
        over = [one for one in self._rows.values() if one.state in EXPIRING and one.deadline <= now]
        return sorted(over, key=lambda session: session.deadline)[:limit]

    async def count(self) -> Mapping[SessionState, int]:
        try:
            return await self._shared.count()
        except Unavailable:
            states = [session.state for session in self._rows.values()]
            return {state: states.count(state) for state in SessionState}

    async def purge(self, epoch: str, before: float) -> int:
        """What has ended is not ours: coordinators see to it."""
        return 0

    async def claim_key(self, key: Key, epoch: str, now: float) -> KeyRecord | None:
        return await self._shared.claim_key(key, epoch, now)

    async def answer_key(self, key: Key, answer: str) -> None:
        await self._shared.answer_key(key, answer)

    async def release_key(self, key: Key) -> None:
        await self._shared.release_key(key)

    async def close(self) -> None:
        await self._shared.close()
