"""Marks sessions as lost whose sandboxes have died, and destroys sandboxes that were taken from this worker."""

import asyncio
from typing import Final

from warren.kernel.logs import get_log
from warren.model.errors import SandboxLost, SandboxNotFound, SessionPaused
from warren.model.session import EndReason, Session, SessionState
from warren.sessions.activity import SessionActivity
from warren.sessions.basis import SessionBasis
from warren.sessions.ending import SessionEnding
from warren.sessions.reports import SessionReports

_LOST_PREFIX: Final = "the sandbox is lost: "
_log = get_log(__name__)


class SessionLosses:
    def __init__(
        self, basis: SessionBasis, activity: SessionActivity, reports: SessionReports, ending: SessionEnding
    ) -> None:
        self._basis = basis
        self._activity = activity
        self._reports = reports
        self._ending = ending

    async def mark_lost(self, session: Session, why: str) -> Session:
        """Marks a session whose sandbox has died as lost, and destroys the rest of the sandbox. The session stays and
        tells why."""
        return await asyncio.shield(self._activity.tasks.run(self._mark_lost(session, why), f"losing {session.id}"))

    async def _mark_lost(self, session: Session, why: str) -> Session:
        while session.state.can_be_lost:
            clocks = session.clocks_at(self._basis.clock.now())
            detail = why.removeprefix(_LOST_PREFIX)
            lost = session.moved_to(SessionState.LOST, reason=EndReason.LOST, detail=detail, **clocks)
            if await self._basis.store.swap(lost):
                self._reports.lost(lost)
                self._destroy(session)
                return lost
            session = await self._basis.get(session.tenant, session.id)
        if session.state is SessionState.LOST and session.sandbox_id in self._activity.owners:
            self._destroy(session)
        return session

    def _destroy(self, session: Session) -> None:
        self._activity.tasks.run(self._ending.destroy_sandbox(session), f"destroying {session.sandbox_id}")

    async def mark_owner_lost(self, sandbox_id: str, why: str) -> None:
        """Marks the session that has this sandbox as lost."""
        if (owner := self._activity.owners.get(sandbox_id)) is None:
            return
        session = await self._basis.store.get(*owner)
        if session is not None and session.sandbox_id == sandbox_id:
            await self.mark_lost(session, why)

    async def check_sandbox(self, session: Session) -> None:
        """Marks a running session as lost if its worker does not have its sandbox. Leaves a session alone whose start
        goes on or has failed: that one ends."""
        if session.state.can_be_lost and not self._activity.is_unsettled(session):
            try:
                await self._basis.sandbox_of(session)
            except SessionPaused:
                pass  # it is found out when it is resumed
            except (SandboxLost, SandboxNotFound) as exc:
                await self.mark_lost(session, exc.message)

    async def destroy_disowned(self) -> None:
        """Destroys the sandboxes of sessions that coordinators have taken from this worker; leaves their rows alone."""
        own = {session.id: session for session in await self._basis.store.active()}
        busy = self._activity.busy()  # their tasks destroy what is left
        disowned = {}
        for sandbox_id, (tenant, session_id) in self._activity.owners.items():
            session = own.get(session_id)
            if session_id not in busy and (session is None or session.state is SessionState.LOST):
                _log.warning("sandbox_disowned", sandbox=sandbox_id, session=session_id)
                disowned[sandbox_id] = tenant, session_id
        for sandbox_id, owner in disowned.items():
            self._activity.forget(*owner, sandbox_id)
        if self._basis.worker is not None:
            await asyncio.gather(*map(self._basis.worker.destroy, disowned))
