"""The store of a worker: the store that the cluster shares, with copies of the rows of the worker's own sessions.

While a worker has its lease no other process ends its sessions. So it reads its own rows from the copies, and continues
to serve them while Redis is away. It makes every change in the shared store first; a change that fails there has not
happened. The copies are also in a file, from which a Redis that has lost its data is restored.

If the shared store fails during a change, or the caller goes away, the change may or may not have been made: it is in
doubt. When the store is back the worker finds out; `due` then returns the sessions whose doubtful change was made, so
that the reaper acts on it as after a restart.
"""

import asyncio
import contextlib
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from warren.interfaces.records import Record, RecordStore
from warren.interfaces.store import NO_CAPS, Added, Caps, Held, Key, KeyLimits, KeyRecord, Page, SessionStore
from warren.kernel.logs import get_log
from warren.model.errors import Unavailable
from warren.model.session import Session, SessionState
from warren.stores.encryption import Encryption
from warren.stores.session_json import decode_session, encode_session

_KIND: Final = "copy"
_PAGE: Final = 1000
_IN_FLIGHT_S: Final = 3.0  # longer than a change may take to arrive
_MAX_DOUBTS: Final = 10_000
_log = get_log(__name__)


class SharedStore(SessionStore, Protocol):
    """A store with `restore`, which stores a session as its worker has it, if the store has none or an older one and
    the session's thread has no other. It returns whether the store has it now."""

    async def restore(self, session: Session) -> bool: ...


class MirroredStore:
    """The store of one worker. No other process uses `copies`. Call `load` before anything else."""

    def __init__(
        self, shared: SharedStore, copies: RecordStore, worker: str, encryption: Encryption | None = None
    ) -> None:
        self._shared = shared
        self._copies = copies
        self._worker = worker
        self._encryption = encryption
        self._rows: dict[str, Session] = {}
        self._records: dict[str, Record] = {}
        self._doubts: dict[str, tuple[Session, float]] = {}  # changes in doubt, and since when the store has been back

    def __repr__(self) -> str:
        return f"<MirroredStore of {self._worker}: {len(self._rows)} sessions, {self._shared!r}>"

    @property
    def records(self) -> RecordStore:
        return self._shared.records

    @property
    def revision(self) -> Hashable | None:
        return self._shared.revision

    @property
    def key_limits(self) -> KeyLimits:
        return self._shared.key_limits

    @key_limits.setter
    def key_limits(self, limits: KeyLimits) -> None:
        self._shared.key_limits = limits

    async def load(self) -> None:
        after = ""
        while page := await self._copies.list(_KIND, after=after, limit=_PAGE):
            for record in page:
                self._records[record.id] = record
                self._rows[record.id] = decode_session(record.value, self._encryption)
            after = page[-1].id

    # -- the worker's own sessions

    def own(self) -> Collection[Session]:
        return self._rows.values()

    async def reconcile(self) -> Collection[Session]:
        """Compares the copies with the shared store after an outage: changes in the shared store win, and sessions that
        it has lost are restored. Returns the sessions that no longer belong to this worker.

        Sessions change meanwhile: a copy that has changed since `before` is newer than what was read.
        """
        before = dict(self._rows)
        theirs = {session.id: session for session in await self._shared.active() if session.worker == self._worker}
        dropped = [mine for mine in before.values() if not await self._is_kept(mine, theirs.get(mine.id))]
        for session in theirs.values():
            if session.id not in before and session.id not in self._rows:
                await self._refresh(session)
        return dropped

    async def _is_kept(self, mine: Session, theirs: Session | None) -> bool:
        if self._rows.get(mine.id) is mine and (theirs is None or (theirs.version < mine.version and mine.state.lives)):
            theirs = await self._restored(mine)
        if self._rows.get(mine.id) is not mine:
            return True
        if theirs is None or not theirs.active:
            await self._forget(mine.id)
            return False
        if theirs.version >= mine.version:
            await self._remember(theirs)
        return theirs.state.lives or not mine.state.lives

    async def _restored(self, mine: Session) -> Session | None:
        """Restores a session that the shared store does not list for this worker, if it lives. Returns what the shared
        store has afterwards."""
        if not mine.state.lives:
            return None
        return mine if await self._shared.restore(mine) else await self._shared.get(mine.tenant, mine.id)

    async def _remember_read(self, current: Session, before: Session | None) -> None:
        """Keeps a row that was read, unless the copy, which was `before` then, has changed to a later version
        meanwhile."""
        kept = self._rows.get(current.id)
        if kept is before or (kept is not None and kept.version <= current.version):
            await self._remember(current)

    async def _remember(self, session: Session) -> None:
        if session.worker != self._worker or not session.active:
            await self._forget(session.id)
            return
        self._rows[session.id] = session
        text, known = encode_session(session, self._encryption), self._records.get(session.id)
        record = Record(_KIND, session.id, text) if known is None else known.changed(text)
        try:
            if await self._copies.put(record):
                self._records[session.id] = record
        except Exception as exc:
            _log.warning("session_copy_not_written", session=session.id, error=exc)

    async def _forget(self, session_id: str) -> None:
        self._rows.pop(session_id, None)
        if self._records.pop(session_id, None) is not None:
            try:
                await self._copies.delete(_KIND, session_id)
            except Exception as exc:
                _log.warning("session_copy_not_deleted", session=session_id, error=exc)

    # -- SessionStore

    async def add(self, session: Session, key: Key | None = None, caps: Caps = NO_CAPS) -> tuple[Session, Added]:
        with self._noting_doubt(session):
            found, added = await self._shared.add(session, key, caps)
            if added is Added.NEW:
                await self._remember(found)
        return self._check_doubt(found), added

    async def get(self, tenant: str, session_id: str) -> Session | None:
        """Reads the copy, or the shared row of a session without a sandbox: any worker may have ended that."""
        mine = self._rows.get(session_id)
        if mine is None or mine.tenant != tenant:
            return await self._shared.get(tenant, session_id)
        if not mine.state.holds_sandbox:
            return await self._refresh(mine)
        return self._check_doubt(mine)

    async def find(self, session_id: str) -> Session | None:
        mine = self._rows.get(session_id)
        return await self._shared.find(session_id) if mine is None else await self.get(mine.tenant, session_id)

    def _check_doubt(self, session: Session) -> Session:
        """Raises Unavailable for a session that may have been ended: nobody may use it."""
        tried, _ = self._doubts.get(session.id, (session, 0.0))
        if session.state.can_be_lost and tried.state is SessionState.STOPPING:
            raise Unavailable(f"whether session {session.id} was ended is not known yet", retry_after_s=2)
        return session

    async def _refresh(self, mine: Session) -> Session | None:
        before = self._rows.get(mine.id)
        current = await self._shared.get(mine.tenant, mine.id)
        if current is not None:
            await self._remember_read(current, before)
        return current

    async def of_thread(self, tenant: str, thread_id: str) -> Session | None:
        try:
            found = await self._shared.of_thread(tenant, thread_id)
        except Unavailable:
            for session in self._rows.values():
                if (session.tenant, session.thread_id) == (tenant, thread_id):
                    return self._check_doubt(session)
            raise
        return None if found is None else self._check_doubt(found)

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        before = self._rows.get(session.id)
        with self._noting_doubt(session):
            if await self._shared.swap(session, caps):
                self._doubts.pop(session.id, None)
                await self._remember_read(session, before)
                return True
        lost = await self._refresh(session) is None
        if lost and before is not None and before.tenant == session.tenant:
            raise Unavailable("Redis has lost its data, this session is being published again", retry_after_s=2)
        return False

    async def list(self, tenant: str, page: Page) -> Sequence[Session]:
        return await self._shared.list(tenant, page)

    async def held(self, tenant: str, key_id: str) -> tuple[Held, Held]:
        return await self._shared.held(tenant, key_id)

    async def active(self) -> Sequence[Session]:
        return list(self._rows.values())

    async def active_ids(self) -> Sequence[str]:
        return list(self._rows)

    async def due(self, now: float, limit: int) -> Sequence[Session]:
        settled = await self._settle_doubts(now)
        over = [one for one in self._rows.values() if one.state.expires and one.deadline <= now]
        return [*settled, *sorted(over, key=lambda session: session.deadline)][:limit]

    @contextlib.contextmanager
    def _noting_doubt(self, session: Session) -> Iterator[None]:
        try:
            yield
        except (Unavailable, asyncio.CancelledError):
            if len(self._doubts) < _MAX_DOUBTS:
                self._doubts[session.id] = (session, float("inf"))
            raise

    async def _settle_doubts(self, now: float) -> Sequence[Session]:
        """Finds out about doubtful changes, and returns the sessions whose change was made."""
        found = []
        for tried, since in list(self._doubts.values()):
            if tried.id not in self._doubts:
                continue  # a later change has settled the doubt
            self._doubts[tried.id] = (tried, min(since, now))
            if now - since >= _IN_FLIGHT_S:
                before = self._rows.get(tried.id)
                try:
                    current = await self._shared.get(tried.tenant, tried.id)
                except Unavailable:
                    break
                self._doubts.pop(tried.id, None)
                if current is not None and current.version >= tried.version:
                    await self._remember_read(current, before)
                    if self._rows.get(tried.id) is current:
                        found.append(current)
        return found

    async def count(self) -> Mapping[SessionState, int]:
        try:
            return await self._shared.count()
        except Unavailable:
            states = [session.state for session in self._rows.values()]
            return {state: states.count(state) for state in SessionState}

    async def purge(self, epoch: str, before: float) -> int:
        """Does nothing: coordinators purge ended sessions."""
        return 0

    async def claim_key(self, key: Key, epoch: str, now: float) -> KeyRecord | None:
        return await self._shared.claim_key(key, epoch, now)

    async def answer_key(self, key: Key, answer: str) -> None:
        await self._shared.answer_key(key, answer)

    async def release_key(self, key: Key) -> None:
        await self._shared.release_key(key)

    async def close(self) -> None:
        await self._shared.close()
