"""A shared store without Redis: the one in memory, which may also lose its data, get rows back, and be away."""

from collections.abc import Mapping, Sequence

from unit.fake_roster import FakeRoster

from warren.interfaces.store import NO_CAPS, Added, Caps, Key
from warren.model.errors import Unavailable
from warren.model.session import Session, SessionState
from warren.stores.memory import MemoryStore


class RestoringStore(MemoryStore):
    """Keeps the contract of `restore` (contract/restore_contract.py)."""

    away = False
    roster: FakeRoster | None = None  # who knows which workers' leases last

    async def swap_of_dead(self, session: Session, coordinator_id: str) -> bool:
        self._work()
        place = self.roster.entries.get(session.worker) if self.roster else None
        if self.roster is not None and place is not None:
            asked = place.report.coordinators
            if place.until > self.roster.clock.now() or (asked and coordinator_id not in asked):
                return False
        return await self.swap(session)

    async def restore(self, session: Session) -> bool:
        self._work()
        known = self._sessions.get(session.id)
        holder = self._active_of(session.tenant, session.thread_id)
        if known is not None and known.version >= session.version:
            return False
        if holder is not None and holder.id != session.id:
            return False
        self._sessions.pop(session.id, None)
        self._insert(session)
        return True

    def lose_data(self) -> None:
        self._sessions.clear()
        self._threads.clear()
        self._keys.clear()

    def forget(self, session_id: str) -> None:
        session = self._sessions.pop(session_id)
        self._threads.pop((session.tenant, session.thread_id), None)

    async def add(self, session: Session, key: Key | None = None, caps: Caps = NO_CAPS) -> tuple[Session, Added]:
        self._work()
        return await super().add(session, key, caps)

    async def get(self, tenant: str, session_id: str) -> Session | None:
        self._work()
        return await super().get(tenant, session_id)

    async def of_thread(self, tenant: str, thread_id: str) -> Session | None:
        self._work()
        return await super().of_thread(tenant, thread_id)

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        self._work()
        return await super().swap(session, caps)

    async def active(self) -> Sequence[Session]:
        self._work()
        return await super().active()

    async def count(self) -> Mapping[SessionState, int]:
        self._work()
        return await super().count()

    def _work(self) -> None:
        if self.away:
            raise Unavailable("Redis is away")
