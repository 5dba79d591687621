"""The background work on sessions: expiry, losses, and taking over after a restart.

`run` wakes every half second. It saves the use of sessions that are in use, ends sessions whose time is over, or pauses
them if that is what becomes of them then, undoes starts that no process continues, and deletes the rows of
sessions that ended long ago. It ends a session by one atomic change of the row it has read: if a caller used the
session in between, the row is different and the session lives on. It destroys a few sandboxes at a time.
"""

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import Final

from warren.interfaces.worker import Loss, Worker
from warren.kernel.logs import get_log
from warren.model.errors import NoSpace, Unavailable, WarrenError
from warren.model.session import EndReason, OnIdle, Session, SessionState
from warren.sessions.manager import Sessions

TICK_S: Final = 0.5
_AT_ONCE: Final = 8
_BATCH: Final = 200
_PURGE_EVERY_S: Final = 60.0
_RECONNECT_S: Final = 60.0  # the least time that a session lives after a restart, for its caller to reconnect

_log = get_log(__name__)


class Reaper:
    """`rebooted`: the machine was restarted since the sandboxes were made; needed where the clock's epoch stays."""

    def __init__(self, sessions: Sessions, *, retention_s: float = 86400.0, rebooted: bool = False) -> None:
        self._sessions = sessions
        self._basis = sessions.lifecycle.basis
        self._activity = sessions.lifecycle.activity
        self._ending = sessions.lifecycle.ending
        self._losses = sessions.lifecycle.losses
        self._pausing = sessions.lifecycle.pausing
        self._networks = sessions.lifecycle.networks
        self._clock = sessions.clock
        self._retention_s = retention_s
        self._rebooted = rebooted
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._purged = -_PURGE_EVERY_S

    async def run(self) -> None:
        last_error = ""
        while True:
            try:
                await self.tick()
                last_error = ""
            except Exception as exc:
                # No session would ever expire without this loop, so it goes on whatever a part of it raises.
                if repr(exc) != last_error:
                    last_error = repr(exc)
                    _log.error("expiry_failed", error=exc, exc=None if isinstance(exc, WarrenError) else exc)
            await self._clock.sleep(TICK_S)

    async def tick(self) -> None:
        """Does all there is to do, also if the store refuses to change some sessions; then raises the first error."""
        errors = await self._ending.retry_ends()
        await self._sessions.uses.save_all()
        for session in await self._sessions.store.due(self._clock.now(), _BATCH):
            try:
                await self._expire(session)
            except WarrenError as exc:
                errors.append(exc)
        if self._clock.now() - self._purged >= _PURGE_EVERY_S:
            self._purged = self._clock.now()
            await self._sessions.store.purge(self._clock.epoch, self._purged - self._retention_s)
        if errors:
            raise errors[0]

    async def _expire(self, session: Session) -> None:
        reason = session.expiry(self._clock.now())
        if session.state is SessionState.STOPPING:
            if not self._activity.is_ending(session):
                self._ending.begin_end(session, self._slots)
        elif session.state is SessionState.CREATING:
            await self._ending.undo_start(session)
        elif reason is not None and not (reason is EndReason.IDLE and self._sessions.uses.is_in_use(session)):
            if session.state.can_run and session.on_expiry(reason) is not OnIdle.END:
                return await self._pausing.pause_expired(session, reason)
            if session.state is SessionState.LOST:
                reason = EndReason.LOST
            stopping = session.moved_to(SessionState.STOPPING, reason=reason)
            if await self._sessions.store.swap(stopping):
                self._ending.begin_end(stopping, self._slots)
        elif session.hibernates(self._clock.now()):
            await self._pausing.hibernate_overdue(session)
        elif reason is None:  # the store was away, and whether it saved a change was in doubt
            await self._pausing.settle(session)

    async def watch_losses(self, worker: Worker) -> None:
        """Marks the session of each sandbox that dies as lost, as soon as the store can save that."""
        async for loss in worker.losses():
            while not await self._mark_lost(loss):
                await self._clock.sleep(TICK_S)

    async def _mark_lost(self, loss: Loss) -> bool:
        """Returns False if the store cannot write now."""
        try:
            await self._losses.mark_owner_lost(loss.sandbox_id, loss.why)
        except (NoSpace, Unavailable):
            return False
        except Exception as exc:
            _log.error("loss_not_saved", sandbox=loss.sandbox_id, exc=exc)
        return True

    async def recover(self) -> None:
        """Takes over from an earlier server: sessions whose sandboxes are alive go on, unfinished starts are undone."""
        sessions = await self._sessions.store.active()
        if (worker := self._basis.worker) is not None:
            own = [session for session in sessions if self._belongs_to(worker, session)]
            alive = [session for session in own if self._may_be_alive(session)]
            frozen = {session.sandbox_id for session in alive if session.state.is_paused}
            lost = await worker.recover({session.sandbox_id for session in alive}, frozen)
            for session in own:
                await self._take_over(session, worker, lost)
                if session.state is SessionState.STOPPING:
                    self._ending.begin_end(replace(session, worker=worker.name))
        for session in sessions:
            if session.state is SessionState.CREATING:
                await self._ending.undo_start(session)

    def _belongs_to(self, worker: Worker, session: Session) -> bool:
        """A worker outside a cluster has all sandboxes of its state directory, even if it has been renamed."""
        return session.worker == worker.name or (session.worker != "" and not self._basis.in_cluster)

    def _may_be_alive(self, session: Session) -> bool:
        """Whether the session's sandbox may be alive. That of a session in STOPPING counts too: its artifacts are saved
        before it is destroyed."""
        same_boot = not self._rebooted and session.epoch == self._clock.epoch
        return (session.state.can_be_lost or session.state is SessionState.STOPPING) and same_boot

    async def _take_over(self, session: Session, worker: Worker, lost: dict[str, str]) -> None:
        if session.state.is_in_transition:
            return
        now = self._clock.now()
        restarted = self._rebooted or session.epoch != self._clock.epoch
        used = max(session.used, now - session.idle_timeout_s + min(_RECONNECT_S, session.idle_timeout_s))
        if restarted:
            paused = {"paused_at": now} if session.state.is_paused else {}
            current = session.changed(worker=worker.name, epoch=self._clock.epoch, started=now, used=now, **paused)
        else:
            current = session.changed(worker=worker.name, used=used)
        if not await self._sessions.store.swap(current):
            return
        why = "the machine was restarted" if restarted else lost.get(session.sandbox_id)
        if why is not None and current.state.can_be_lost:
            await self._losses.mark_lost(current, why)
        elif current.state.can_be_lost:
            self._activity.track(current)
            if current.state.is_paused:
                self._pausing.take_over(current, partial(self._follow, worker))
                return
            if current.opens_network:
                self._networks.keep_trying(current)
            self._follow(worker, current)

    def _follow(self, worker: Worker, session: Session) -> None:
        self._sessions.metering.follow(self._meter_again(session, worker), f"metering {session.id} again")

    async def _meter_again(self, session: Session, worker: Worker) -> None:
        with contextlib.suppress(WarrenError):
            await self._sessions.metering.take_over(session, await worker.sandbox(session.sandbox_id))
