"""Pauses sessions and resumes them.

The row goes first. A session is PAUSED before its sandbox is frozen, so that no new use begins in between; it is
RUNNING before its sandbox is thawed, so that a quota refuses it while nothing runs yet. Whatever step a crash comes
after, the next process freezes the sandboxes of paused sessions and thaws those of running ones (reaper.py). Operations
that are under way when their session is paused wait, and go on when it is resumed.

Pausing and resuming are tasks of `SessionActivity`: a caller that leaves does not stop them half-way. One at a time
works on a session, by its lock.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

from warren.interfaces.store import Caps
from warren.kernel.logs import get_log
from warren.model.capability import Capability, choose_provider
from warren.model.errors import InvalidRequest, QuotaExceeded, SandboxLost, SandboxNotFound, WarrenError
from warren.model.session import EndReason, Session, SessionState
from warren.sessions.activity import SessionActivity
from warren.sessions.allowances import PayerOf, caps_of
from warren.sessions.basis import SessionBasis
from warren.sessions.ending import SessionEnding, unusable_error
from warren.sessions.losses import SessionLosses
from warren.sessions.networks import SessionNetworks
from warren.sessions.reports import SessionReports

_AT_ONCE: Final = 8
_log = get_log(__name__)


def refuse_hibernation(asked: str) -> None:
    """Raises InvalidRequest: nothing saves sessions to disk yet."""
    raise InvalidRequest(
        f"{asked} would save the session to disk, which this server cannot do",
        remedy="pause it without: it keeps its memory and is there at once",
    )


class SessionPausing:
    """`payer_of` returns the caller whose quotas a session uses up."""

    def __init__(
        self,
        basis: SessionBasis,
        activity: SessionActivity,
        reports: SessionReports,
        networks: SessionNetworks,
        ending: SessionEnding,
        losses: SessionLosses,
        payer_of: PayerOf,
    ) -> None:
        self._basis = basis
        self._activity = activity
        self._reports = reports
        self._networks = networks
        self._ending = ending
        self._losses = losses
        self._payer_of = payer_of
        self._resuming: dict[str, asyncio.Task[Session]] = {}
        self._idle: set[str] = set()  # ids of sessions that a task of `pause_idle` looks after
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def __repr__(self) -> str:
        return f"<SessionPausing: {len(self._resuming)} being resumed>"

    # -- pausing

    async def pause(self, session: Session, changes: Mapping[str, Any]) -> Session:
        """Pauses a session that runs, and sets what `changes` says, also of one that is paused already.

        Raises what `unusable_error` gives, InvalidRequest if its provider cannot pause, and QuotaExceeded.
        """
        return await asyncio.shield(self._activity.tasks.run(self._pause(session, changes), f"pausing {session.id}"))

    async def _pause(self, session: Session, changes: Mapping[str, Any]) -> Session:
        async with self._lock(session.id):
            while True:
                session = await self._basis.get(session.tenant, session.id)
                if session.state.is_paused:
                    changed = session.changed(**changes) if changes else session
                    if changed is session or await self._basis.store.swap(changed):
                        return changed
                elif not session.state.can_run:
                    raise unusable_error(session)
                else:
                    self._check_capable(session)
                    if (paused := await self._store_paused(session, changes)) is not None:
                        return await self._freeze(paused, idle=False)

    async def pause_idle(self, session: Session) -> None:
        """Pauses a session that was not used for too long; ends it if it cannot be paused, and says why in its row.
        Does nothing if its row has changed."""
        if session.id not in self._idle:
            self._idle.add(session.id)
            task = self._activity.tasks.run(self._pause_idle(session), f"pausing {session.id}")
            task.add_done_callback(lambda _: self._idle.discard(session.id))

    async def _pause_idle(self, session: Session) -> None:
        async with self._slots, self._lock(session.id):
            try:
                self._check_capable(session)
                paused = await self._store_paused(session, {})
            except (InvalidRequest, QuotaExceeded) as exc:
                return await self._end_idle(session, exc)
            if paused is not None:
                try:
                    await self._freeze(paused, idle=True)
                except WarrenError as exc:
                    current = await self._basis.store.get(session.tenant, session.id)
                    if current is not None and current.state.can_run:
                        await self._end_idle(current, exc)

    async def _end_idle(self, session: Session, why: WarrenError) -> None:
        _log.warning("session_not_paused", session=session.id, error=why.message, action="end")
        detail = f"it could not be paused: {why.message}"
        await self._ending.end(session, EndReason.IDLE, detail)

    def _check_capable(self, session: Session) -> None:
        choose_provider(self._basis.worker_of(session).providers, session.provider, {Capability.PAUSE})

    async def _store_paused(self, session: Session, changes: Mapping[str, Any]) -> Session | None:
        """Returns None if the row has changed."""
        caps = await self._caps(session)
        paused = session.moved_to(SessionState.PAUSED, paused_at=self._basis.clock.now(), **changes)
        return paused if await self._basis.store.swap(paused, caps) else None

    async def _freeze(self, paused: Session, *, idle: bool) -> Session:
        worker = self._basis.worker_of(paused)
        self._basis.fault("pausing")
        try:
            await worker.freeze(paused.sandbox_id)
        except (SandboxLost, SandboxNotFound) as exc:
            raise unusable_error(await self._losses.mark_lost(paused, exc.message)) from exc
        except Exception:
            await self._undo_pause(paused)
            raise
        self._activity.frozen[paused.id] = self._basis.clock.now()
        self._basis.fault("paused")
        self._reports.paused(paused, idle=idle)
        return paused

    async def _undo_pause(self, paused: Session) -> None:
        """Lets a session go on whose sandbox could not be frozen, or not wholly. No cap refuses that: it ran before."""
        now = self._basis.clock.now()
        if await self._basis.store.swap(paused.moved_to(SessionState.RUNNING, **paused.clocks_at(now))):
            with contextlib.suppress(WarrenError):
                await self._basis.worker_of(paused).thaw(paused.sandbox_id, paused.paused_for(now))

    # -- resuming

    async def resume(self, session: Session) -> Session:
        """Resumes a session, once however many ask; returns it as it is if it runs.

        Raises what `unusable_error` gives, and QuotaExceeded; then it stays paused.
        """
        task = self._resuming.get(session.id)
        if task is None:
            task = self._resuming[session.id] = self._activity.tasks.run(
                self._resume(session), f"resuming {session.id}"
            )
            task.add_done_callback(lambda _: self._resuming.pop(session.id, None))
        return await asyncio.shield(task)

    async def _resume(self, session: Session) -> Session:
        async with self._lock(session.id):
            while True:
                session = await self._basis.get(session.tenant, session.id)
                if session.state.can_run:
                    return await self._settle(session)
                if not session.state.is_paused:
                    raise unusable_error(session)
                self._basis.worker_of(session)
                now = self._basis.clock.now()
                running = session.moved_to(SessionState.RUNNING, **session.clocks_at(now))
                if await self._basis.store.swap(running, await self._caps(session)):
                    return await self._thaw(session, running, session.paused_for(now))

    async def _thaw(self, paused: Session, running: Session, paused_s: float) -> Session:
        # Uses that see the row already wait until this session is in `frozen` no longer.
        self._basis.fault("resuming")
        try:
            sandbox = await self._basis.worker_of(running).thaw(running.sandbox_id, paused_s)
            await self._networks.apply_resumed(running, sandbox)
        except (SandboxLost, SandboxNotFound) as exc:
            raise unusable_error(await self._losses.mark_lost(running, exc.message)) from exc
        except Exception:
            await self._undo_resume(paused, running)
            raise
        self._activity.frozen.pop(running.id, None)
        self._basis.fault("resumed")
        if (call := self._activity.when_resumed.pop(running.id, None)) is not None:
            call(running)
        self._reports.resumed(running, paused_s)
        return running

    async def _undo_resume(self, paused: Session, running: Session) -> None:
        """Pauses a session again whose sandbox could not be thawed."""
        clocks = {"paused_at": paused.paused_at, "paused_s": paused.paused_s, "used": paused.used}
        if await self._basis.store.swap(running.moved_to(SessionState.PAUSED, **clocks)):
            with contextlib.suppress(WarrenError):
                await self._basis.worker_of(paused).freeze(paused.sandbox_id)

    # -- after a restart, and after an outage of the store

    def take_over(self, session: Session, when_resumed: Callable[[Session], None]) -> None:
        """Takes over a session that an earlier process has paused, and whose sandbox was just frozen again."""
        self._activity.frozen[session.id] = self._basis.clock.now() - session.paused_for(self._basis.clock.now())
        self._activity.when_resumed[session.id] = when_resumed
        if session.opens_network:
            self._networks.outdated.add(session.id)

    async def settle(self, session: Session) -> None:
        """Does to the sandbox what the row says, if the store has saved a pause or its end and could not say so."""
        if session.state.can_be_lost and session.state.is_paused is not (session.id in self._activity.frozen):
            async with self._lock(session.id):
                await self._settle(await self._basis.get(session.tenant, session.id))

    async def _settle(self, session: Session) -> Session:
        since = self._activity.frozen.get(session.id)
        if session.state.is_paused and since is None:
            return await self._freeze(session, idle=False)
        if session.state.can_run and since is not None:
            paused_s = self._basis.clock.now() - since
            return await self._thaw(session.moved_to(SessionState.PAUSED, paused_at=since), session, paused_s)
        return session

    async def _caps(self, session: Session) -> Caps:
        return caps_of(await self._payer_of(session))

    def _lock(self, session_id: str) -> asyncio.Lock:
        return self._locks.setdefault(session_id, asyncio.Lock())
