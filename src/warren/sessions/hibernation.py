"""Saves the disks of sessions that stand still and gives their sandboxes back; makes them new ones when they are used.

The saved disk is a hidden snapshot, and `saved` of the row names it from the change to HIBERNATED until the session
runs again. Whatever step a crash comes after: a sandbox that no row names is destroyed by the next process, a snapshot
that no row names by the sweep (snapshots/expiry.py), and a restore that nobody continues is undone (ending.py). The
row of a hibernated session names the worker that has saved it. If any worker can read the snapshot, any may restore the
session, and its row then names that one.
"""

from typing import Final

from warren.interfaces.store import Caps
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.capability import Capability, choose_provider
from warren.model.errors import InvalidRequest, Misdirected, NotFound, Unavailable, WarrenError
from warren.model.gpus import ANY
from warren.model.session import EndReason, Session, SessionState
from warren.sessions.activity import SessionActivity
from warren.sessions.basis import SessionBasis
from warren.sessions.ending import SessionEnding
from warren.sessions.reports import SessionReports
from warren.sessions.snapshots.service import Snapshots
from warren.sessions.starting import SessionStarting

_RETRY_S: Final = 5.0
_log = get_log(__name__)


class SessionHibernation:
    def __init__(
        self,
        basis: SessionBasis,
        activity: SessionActivity,
        reports: SessionReports,
        ending: SessionEnding,
        starting: SessionStarting,
        snapshots: Snapshots | None,
    ) -> None:
        self._basis = basis
        self._activity = activity
        self._reports = reports
        self._ending = ending
        self._starting = starting
        self._snapshots = snapshots

    def check_capable(self, session: Session) -> Snapshots:
        if self._snapshots is None:
            raise InvalidRequest("this server keeps no snapshots, so it cannot save a session to disk")
        choose_provider(self._basis.worker_of(session).providers, session.provider, {Capability.SNAPSHOTS})
        return self._snapshots

    async def hibernate(self, paused: Session) -> Session | None:
        """Saves the disk of a session that is paused here, and gives its sandbox back. Returns None if its row has
        changed meanwhile; then, and if it raises, the session is as before."""
        snapshots = self.check_capable(paused)
        self._basis.fault("hibernating")
        async with snapshots.saved_for(paused) as saved:
            hibernated = paused.moved_to(
                SessionState.HIBERNATED,
                saved=saved.id,
                saved_gpus=len(paused.gpus),
                gpus=(),
                sandbox_id="",
                pooled=False,
                disk_mb=0,
            )
            if not await self._basis.store.swap(hibernated):
                await run_shielded(snapshots.remove(saved, "unused"))
                return None
        try:
            await self._basis.store.records.sync()  # the row too survives a loss of power, as what it names does
        except WarrenError as exc:  # it is hibernated all the same, and nobody else would destroy its sandbox
            _log.warning("hibernation_not_synced", session=hibernated.id, error=exc)
        self._basis.fault("hibernated")
        self._reports.hibernated(hibernated, saved.bytes)
        await self._give_back(paused)
        return hibernated

    async def give_back_rest(self, session: Session) -> None:
        """Destroys the sandbox that a hibernated session still has here: the store was away when its row was saved, and
        could not say so."""
        for sandbox_id, (tenant, session_id) in list(self._activity.owners.items()):
            if (tenant, session_id) == (session.tenant, session.id):
                await self._give_back(session.changed(sandbox_id=sandbox_id, worker=self._basis.worker_name))

    async def _give_back(self, session: Session) -> None:
        try:
            await self._ending.destroy_sandbox(session)
        except WarrenError as exc:
            _log.warning("sandbox_not_destroyed", sandbox=session.sandbox_id, error=exc, action="retry")
            self._activity.tasks.run(self._keep_trying(session), f"destroying {session.sandbox_id}")

    async def _keep_trying(self, session: Session) -> None:
        await self._basis.clock.sleep(_RETRY_S)
        await self._give_back(session)

    async def restore(self, session: Session, caps: Caps) -> Session | None:
        """Gives a hibernated session a fresh sandbox with its files. Returns None if its row has changed meanwhile."""
        if self._snapshots is None or self._basis.worker is None:
            raise Unavailable(f"the worker {session.worker!r}, which keeps its files, does not answer", retry_after_s=5)
        await self.give_back_rest(session)
        try:
            snapshot = await self._snapshots.records.get(session.tenant, session.saved)
        except NotFound:
            return await self._lose(session)
        if snapshot.place not in ("", self._snapshots.place):
            raise Misdirected(f"the files of session {session.id} are on another worker", worker=snapshot.place)
        now = self._basis.clock.now()
        creating = session.moved_to(
            SessionState.CREATING,
            worker=self._basis.worker_name,
            epoch=self._basis.clock.epoch,
            disk_mb=session.limits.disk_mb if session.limits else 0,
            gpus=(ANY,) * session.saved_gpus,
            **session.clocks_at(now),
        )
        if not await self._basis.store.swap(creating, caps):
            return None
        self._basis.fault("restoring")
        running = await self._starting.start(creating, end_if_abandoned=False)
        self._basis.fault("restored")
        self._reports.resumed(running, session.paused_for(now))
        return running

    async def _lose(self, session: Session) -> Session | None:
        detail = "its saved files are gone"
        lost = session.moved_to(SessionState.LOST, reason=EndReason.LOST, detail=detail)
        if not await self._basis.store.swap(lost):
            return None
        self._reports.lost(lost)
        return lost
