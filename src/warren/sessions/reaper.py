"""What goes on beside the requests: expiry, losses, taking over after a restart.

`run` wakes every half second. It notes the use of sessions that are busy, ends those whose time is over
(each by one atomic change over the row it read: whoever used the session in between has changed the row, and
it lives on), undoes what nobody makes any more and forgets what ended long ago. Sandboxes are destroyed a
few at a time.
"""

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Final

from warren.interfaces.worker import Loss, Worker
from warren.model.errors import NoSpace, Unavailable, WarrenError
from warren.model.session import EndReason, Session, SessionState
from warren.sessions.lifecycle import Lifecycle
from warren.sessions.manager import Sessions

TICK_S: Final = 0.5
_AT_ONCE: Final = 8
_BATCH: Final = 200
_PURGE_EVERY_S: Final = 60.0
_COMEBACK_S: Final = 60.0  # so long a session lives at least after a restart, for its caller to come back

_log = logging.getLogger("warren.reaper")


class Reaper:
    """`rebooted`: the machine was started anew since the sandboxes were made, if the clock's epoch does not tell."""

    def __init__(self, sessions: Sessions, *, retention_s: float = 86400.0, rebooted: bool = False) -> None:
        self._sessions = sessions
        self._lifecycle: Lifecycle = sessions.lifecycle
        self._clock = sessions.clock
        self._retention_s = retention_s
        self._rebooted = rebooted
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._ending: set[asyncio.Task[None]] = set()
        self._purged = -_PURGE_EVERY_S

    async def run(self) -> None:
        trouble = ""
        while True:
            try:
                await self.tick()
                trouble = ""
            except Exception as exc:
                # Sessions depend on this loop for their end: it outlives whatever a part of it raises.
                if repr(exc) != trouble:
                    trouble = repr(exc)
                    unforeseen = None if isinstance(exc, WarrenError) else exc
                    _log.warning("the store does not work, sessions cannot expire: %s", exc, exc_info=unforeseen)
            await self._clock.sleep(TICK_S)

    async def tick(self) -> None:
        await self._lifecycle.retry()
        await self._sessions.note_busy()
        for session in await self._sessions.store.due(self._clock.now(), _BATCH):
            await self._expire(session)
        if self._clock.now() - self._purged >= _PURGE_EVERY_S:
            self._purged = self._clock.now()
            await self._sessions.store.purge(self._clock.epoch, self._purged - self._retention_s)

    async def _expire(self, session: Session) -> None:
        reason = session.expiry(self._clock.now())
        if session.state is SessionState.STOPPING:
            if not self._lifecycle.is_ending(session):
                await self._end(session)
        elif session.state is SessionState.CREATING:
            await self._lifecycle.undo(session)
        elif reason is not None and not (reason is EndReason.IDLE and self._sessions.is_busy(session)):
            if session.state is SessionState.LOST:
                reason = EndReason.LOST
            stopping = session.moved_to(SessionState.STOPPING, reason=reason)
            if await self._sessions.store.swap(stopping):
                await self._end(stopping)

    async def _end(self, stopping: Session) -> None:
        """Begins to end it; waits only while too many are being ended."""
        await self._slots.acquire()
        task = self._lifecycle.finishing(stopping)
        task.add_done_callback(lambda _: self._slots.release())

    async def note_losses(self, worker: Worker) -> None:
        async for loss in worker.losses():
            while not await self._noted(loss):
                await self._clock.sleep(TICK_S)

    async def _noted(self, loss: Loss) -> bool:
        try:
            await self._lifecycle.sandbox_died(loss.sandbox_id, loss.why)
        except (NoSpace, Unavailable):
            return False
        except Exception as exc:
            _log.warning("the loss of sandbox %s could not be written down: %s", loss.sandbox_id, exc)
        return True

    async def recover(self) -> None:
        """Takes over from an earlier server: what lives goes on, what was half-made is undone."""
        sessions = await self._sessions.store.active()
        for worker in self._lifecycle.workers.values():
            mine = [session for session in sessions if self._belongs(session, worker)]
            lost = await worker.recover({session.sandbox_id for session in mine if self._may_live(session)})
            for session in mine:
                await self._take_over(session, worker, lost)
                if session.state is SessionState.STOPPING:
                    self._lifecycle.finishing(replace(session, worker=worker.name))
        for session in sessions:
            if session.state is SessionState.CREATING:
                await self._lifecycle.undo(session)

    def _belongs(self, session: Session, worker: Worker) -> bool:
        """A lone worker has the sandboxes of its state directory, whatever it was called before."""
        return session.worker == worker.name or (session.worker != "" and not self._lifecycle.others)

    def _may_live(self, session: Session) -> bool:
        same_boot = not self._rebooted and session.epoch == self._clock.epoch
        return session.state.can_be_lost and same_boot

    async def _take_over(self, session: Session, worker: Worker, lost: dict[str, str]) -> None:
        if session.state.is_in_transition:
            return
        now = self._clock.now()
        restarted = self._rebooted or session.epoch != self._clock.epoch
        used = max(session.used, now - session.idle_timeout_s + min(_COMEBACK_S, session.idle_timeout_s))
        if restarted:
            taken = session.changed(worker=worker.name, epoch=self._clock.epoch, started=now, used=now)
        else:
            taken = session.changed(worker=worker.name, used=used)
        if not await self._sessions.store.swap(taken):
            return
        why = "the machine was restarted" if restarted else lost.get(session.sandbox_id)
        if why is not None:
            await self._lifecycle.mark_lost(taken, why)
        elif taken.state.can_be_lost:
            self._lifecycle.took_over(taken)
            self._sessions.metering.follow(self._follow_again(taken, worker), f"following {taken.id} again")

    async def _follow_again(self, session: Session, worker: Worker) -> None:
        with contextlib.suppress(WarrenError):
            await self._sessions.metering.take_over(session, await worker.sandbox(session.sandbox_id))
