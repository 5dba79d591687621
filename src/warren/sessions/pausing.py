"""Pauses sessions and resumes them.

The row goes first. A session is PAUSED before its sandbox is frozen, so that no new use begins in between; it is
RUNNING before its sandbox is thawed, so that a quota refuses it while nothing runs yet. Whatever step a crash comes
after, the next process freezes the sandboxes of paused sessions and thaws those of running ones (reaper.py). Operations
that are under way when their session is paused wait, and go on when it is resumed. A session that is to be hibernated
is paused first (hibernation.py).

Pausing and resuming are tasks of `SessionActivity`: a caller that leaves does not stop them half-way. One at a time
works on a session, by its lock.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

from warren.interfaces.store import Caps
from warren.kernel.logs import get_log
from warren.model.capability import Capability, choose_provider
from warren.model.errors import InvalidRequest, QuotaExceeded, SandboxLost, SandboxNotFound, Unavailable, WarrenError
from warren.model.session import EndReason, OnIdle, Session, SessionState
from warren.sessions.activity import SessionActivity
from warren.sessions.allowances import PayerOf, caps_of
from warren.sessions.basis import SessionBasis
from warren.sessions.ending import SessionEnding, unusable_error
from warren.sessions.hibernation import SessionHibernation
from warren.sessions.losses import SessionLosses
from warren.sessions.networks import SessionNetworks
from warren.sessions.reports import SessionReports

_AT_ONCE: Final = 8
_HIBERNATE_AGAIN_S: Final = 600.0  # after an attempt that failed
_log = get_log(__name__)


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
        hibernation: SessionHibernation,
    ) -> None:
        self._basis = basis
        self._activity = activity
        self._reports = reports
        self._networks = networks
        self._ending = ending
        self._losses = losses
        self._payer_of = payer_of
        self._hibernation = hibernation
        self._resuming: dict[str, asyncio.Task[Session]] = {}
        self._idle: set[str] = set()  # ids of sessions that `pause_expired` or `hibernate_overdue` looks after
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def __repr__(self) -> str:
        return f"<SessionPausing: {len(self._resuming)} being resumed>"

    # -- pausing

    async def pause(self, session: Session, changes: Mapping[str, Any], *, to_disk: bool = False) -> Session:
        """Pauses a session that runs, and sets what `changes` says, also of one that is paused already. With `to_disk`
        it is hibernated; if that fails, what ran runs on.

        Raises what `unusable_error` gives, InvalidRequest if its provider cannot do it, QuotaExceeded, NoSpace.
        """
        work = self._pause(session, changes, to_disk)
        return await asyncio.shield(self._activity.tasks.run(work, f"pausing {session.id}"))

    async def _pause(self, session: Session, changes: Mapping[str, Any], to_disk: bool) -> Session:
        async with self._lock(session.id):
            while True:
                session = await self._basis.get(session.tenant, session.id)
                if to_disk and session.state.can_be_lost:
                    self._hibernation.check_capable(session)
                if session.state.is_paused:
                    changed = session.changed(**changes) if changes else session
                    if changed is session or await self._basis.store.swap(changed):
                        return await self._hibernate(changed) if to_disk else changed
                elif not session.state.can_run:
                    raise unusable_error(session)
                else:
                    self._check_capable(session)
                    if (paused := await self._store_paused(session, changes)) is not None:
                        paused = await self._freeze(paused, idle=False)
                        return await self._hibernate_or_resume(paused) if to_disk else paused

    async def _hibernate_or_resume(self, paused: Session) -> Session:
        try:
            return await self._hibernate(paused)
        except BaseException:
            current = await self._basis.get(paused.tenant, paused.id)
            if current.state is SessionState.PAUSED:
                now = self._basis.clock.now()
                running = current.moved_to(SessionState.RUNNING, **current.clocks_at(now))
                if await self._basis.store.swap(running):
                    await self._thaw(current, running, current.paused_for(now))
            raise

    async def _hibernate(self, paused: Session) -> Session:
        """Returns the session as it then is. Whoever uses it meanwhile waits for the lock, and restores it."""
        while paused.state is SessionState.PAUSED:
            if (hibernated := await self._hibernation.hibernate(paused)) is not None:
                return hibernated
            paused = await self._basis.get(paused.tenant, paused.id)
        return paused

    async def pause_expired(self, session: Session, reason: EndReason) -> None:
        """Pauses a session whose time is over; ends it if it cannot be paused, and says why in its row. Does nothing if
        its row has changed."""
        self._look_after(session, self._pause_expired(session, reason))

    async def hibernate_overdue(self, session: Session) -> None:
        """Hibernates a session that was paused for long. If it cannot be, it stays paused and is tried again later."""
        self._look_after(session, self._hibernate_overdue(session))

    def _look_after(self, session: Session, work: Coroutine[Any, Any, None]) -> None:
        if session.id in self._idle:
            work.close()
        else:
            self._idle.add(session.id)
            task = self._activity.tasks.run(work, f"pausing {session.id}")
            task.add_done_callback(lambda _: self._idle.discard(session.id))

    async def _pause_expired(self, session: Session, reason: EndReason) -> None:
        async with self._slots, self._lock(session.id):
            try:
                self._check_capable(session)
                paused = await self._store_paused(session, {})
            except (InvalidRequest, QuotaExceeded) as exc:
                return await self._end_expired(session, reason, exc)
            if paused is None:
                return
            try:
                await self._freeze(paused, idle=True)
            except WarrenError as exc:
                current = await self._basis.store.get(session.tenant, session.id)
                if current is not None and current.state.can_run:
                    await self._end_expired(current, reason, exc)
                return
            if paused.on_expiry(reason) is OnIdle.HIBERNATE:
                await self._try_to_hibernate(paused)

    async def _hibernate_overdue(self, session: Session) -> None:
        async with self._slots, self._lock(session.id):
            current = await self._basis.store.get(session.tenant, session.id)
            if current is not None and current.state is SessionState.PAUSED:
                await self._try_to_hibernate(current)

    async def _try_to_hibernate(self, paused: Session) -> None:
        try:
            await self._hibernate(paused)
        except WarrenError as exc:
            _log.warning("session_not_hibernated", session=paused.id, error=exc.message, action="retry")
            current = await self._basis.store.get(paused.tenant, paused.id)
            if current is not None and current.state is SessionState.PAUSED:
                later = current.paused_for(self._basis.clock.now()) + _HIBERNATE_AGAIN_S
                await self._basis.store.swap(current.changed(hibernate_after_s=later))

    async def _end_expired(self, session: Session, reason: EndReason, why: WarrenError) -> None:
        _log.warning("session_not_paused", session=session.id, error=why.message, action="end")
        detail = f"it could not be paused: {why.message}"
        await self._ending.end(session, reason, detail)

    def _check_capable(self, session: Session) -> None:
        choose_provider(self._basis.worker_of(session).providers, session.provider, {Capability.PAUSE})

    async def _store_paused(self, session: Session, changes: Mapping[str, Any]) -> Session | None:
        """Returns None if the row has changed."""
        caps = await self._caps(session)
        paused = session.moved_to(SessionState.PAUSED, **session.pause_clocks(self._basis.clock.now()), **changes)
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
                if session.state is SessionState.HIBERNATED:
                    if (restored := await self._restore(session)) is not None:
                        return restored
                    continue
                if session.state is SessionState.CREATING:  # another worker restores it
                    raise Unavailable(f"session {session.id} is being restored", retry_after_s=1)
                if not session.state.is_paused:
                    raise unusable_error(session)
                self._basis.worker_of(session)
                now = self._basis.clock.now()
                running = session.moved_to(SessionState.RUNNING, **session.clocks_at(now))
                if await self._basis.store.swap(running, await self._caps(session)):
                    return await self._thaw(session, running, session.paused_for(now))

    async def _restore(self, hibernated: Session) -> Session | None:
        restored = await self._hibernation.restore(hibernated, await self._caps(hibernated))
        if restored is not None and restored.state is SessionState.LOST:
            raise unusable_error(restored)
        return restored

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
        if session.state is SessionState.HIBERNATED:
            return await self._hibernation.give_back_rest(session)
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
