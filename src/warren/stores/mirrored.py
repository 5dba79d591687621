"""The store of a worker: the one that the cluster shares, and copies of the rows of its own sessions.

While a worker has its lease nobody else ends what is its own, so it reads its own rows from the copies, and serves the
sessions it has when Redis is away. Every change is made in the shared store first; a change that was not
possible there has not happened. Copies are kept in a file too: a Redis that has lost its data gets them back.

When the shared store goes away over a change, it may have been made or not. That is found out when the store is back:
a change that was made is `due`, so that whoever looks after sessions does what it asks for, as after a restart.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Protocol

from warren.interfaces.records import Record, RecordStore
from warren.interfaces.store import NO_CAPS, Added, Caps, Key, KeyRecord, Page, SessionStore
from warren.model.errors import Unavailable
from warren.model.session import Session, SessionState
from warren.stores.rows import decoded, encoded
from warren.stores.sealing import Sealer

_KIND: Final = "copy"
_PAGE: Final = 1000
_SURE_S: Final = 3.0  # longer than a change may be on its way
_MOST_UNSURE: Final = 10_000
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
        self._unsure: dict[str, tuple[Session, float]] = {}  # perhaps changed to this; since when that is looked at

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
        if theirs is None or (theirs.version < mine.version and mine.state.can_be_lost):
            theirs = await self._published(mine)
        if theirs is None or not theirs.active:
            await self._forget(mine.id)
            return False
        if theirs.version >= mine.version:
            await self._remember(theirs)
        return theirs.state.can_be_lost or not mine.state.can_be_lost

    async def _published(self, mine: Session) -> Session | None:
        """What the shared store has of a session that is not among our active ones there; what runs is put back."""
        if not mine.state.can_be_lost:
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
        with self._doubting(session):
            found, added = await self._shared.add(session, key, caps)
        if added is Added.NEW:
            await self._remember(found)
        return self._surely(found), added

    async def get(self, tenant: str, session_id: str) -> Session | None:
        """Any worker may end a session that holds no sandbox: of such a session the copy may be out of date."""
        mine = self._rows.get(session_id)
        if mine is None or mine.tenant != tenant:
            return await self._shared.get(tenant, session_id)
        if not mine.state.holds_sandbox:
            return await self._refreshed(mine)
        return self._surely(mine)

    def _surely(self, session: Session) -> Session:
        """Nobody is given a session of which it is not known whether it was ended."""
        tried, _ = self._unsure.get(session.id, (session, 0.0))
        if session.state.can_be_lost and tried.state is SessionState.STOPPING:
            raise Unavailable(f"whether session {session.id} was ended is not known yet", retry_after_s=2)
        return session

    async def _refreshed(self, mine: Session) -> Session | None:
        current = await self._shared.get(mine.tenant, mine.id)
        if current is not None:
            await self._remember(current)
        return current

    async def of_thread(self, tenant: str, thread_id: str) -> Session | None:
        try:
            found = await self._shared.of_thread(tenant, thread_id)
        except Unavailable:
            for session in self._rows.values():
                if (session.tenant, session.thread_id) == (tenant, thread_id):
                    return self._surely(session)
            raise
        return None if found is None else self._surely(found)

    async def swap(self, session: Session) -> bool:
        before = self._rows.get(session.id)
        with self._doubting(session):
            is_made = await self._shared.swap(session)
        if is_made:
            self._unsure.pop(session.id, None)
            kept = self._rows.get(session.id)
            if kept is before or (kept is not None and kept.version < session.version):
                await self._remember(session)  # else a later change was faster to come back
            return True
        lost = await self._refreshed(session) is None
        if lost and before is not None and before.tenant == session.tenant:
            raise Unavailable("Redis has lost its data, this session is being published again", retry_after_s=2)
        return False

    async def list(self, tenant: str, page: Page) -> Sequence[Session]:
        return await self._shared.list(tenant, page)

    async def active(self) -> Sequence[Session]:
        return list(self._rows.values())

    async def due(self, now: float, limit: int) -> Sequence[Session]:
        turned_out = await self._turned_out(now)
        over = [one for one in self._rows.values() if one.state.expires and one.deadline <= now]
        return [*turned_out, *sorted(over, key=lambda session: session.deadline)][:limit]

    @contextlib.contextmanager
    def _doubting(self, session: Session) -> Iterator[None]:
        try:
            yield
        except (Unavailable, asyncio.CancelledError):
            if len(self._unsure) < _MOST_UNSURE:
                self._unsure[session.id] = (session, float("inf"))
            raise

    async def _turned_out(self, now: float) -> Sequence[Session]:
        """Changes that were made, though it was not known."""
        found = []
        for tried, since in list(self._unsure.values()):
            if tried.id not in self._unsure:
                continue  # a later change has settled it meanwhile
            self._unsure[tried.id] = (tried, min(since, now))
            if now - since >= _SURE_S:
                try:
                    current = await self._shared.get(tried.tenant, tried.id)
                except Unavailable:
                    break
                self._unsure.pop(tried.id, None)
                if current is not None and await self._is_news(current, tried):
                    found.append(current)
        return found

    async def _is_news(self, current: Session, tried: Session) -> bool:
        kept = self._rows.get(current.id)
        if current.version < tried.version or (kept is not None and kept.version > current.version):
            return False
        await self._remember(current)
        return current.id in self._rows

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
