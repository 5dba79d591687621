"""Gives new sessions their sandboxes.

A session is stored before its sandbox exists. A task of `SessionActivity`, not of the request, claims the sandbox: a
caller that disconnects neither stops it half-way nor makes the server lose track of it.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

from warren.interfaces.worker import Claim, Claimed
from warren.kernel.shielding import run_shielded
from warren.kernel.tracing import traced
from warren.model.capability import Capability, choose_provider
from warren.model.environment import Environment
from warren.model.errors import ImageBuilding, InvalidRequest, NoCapacity, SessionEnded, Unavailable, WarrenError
from warren.model.session import FAILED_CREATIONS, EndReason, Session, SessionState
from warren.sessions.activity import SessionActivity
from warren.sessions.basis import SessionBasis
from warren.sessions.ending import POLL_S, SessionEnding
from warren.sessions.networks import SessionNetworks
from warren.sessions.reports import SessionReports
from warren.sessions.request_context import set_if_undelivered, shorter_claim_timeout, shorter_image_wait
from warren.sessions.snapshots.service import Snapshots
from warren.sessions.volumes.service import Volumes

_IMAGE_LOOK_S: Final = 0.5
_CALLER_LEFT: Final = "the caller went away"


@dataclass(frozen=True, slots=True)
class StartWaits:
    """How long a caller waits at most for a sandbox, and for an image that is being built."""

    claim_timeout_s: float = 30.0
    image_wait_s: float = 0.0


class SessionStarting:
    def __init__(
        self,
        basis: SessionBasis,
        activity: SessionActivity,
        reports: SessionReports,
        networks: SessionNetworks,
        ending: SessionEnding,
        waits: StartWaits,
        volumes: Volumes,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._basis = basis
        self._activity = activity
        self._reports = reports
        self._networks = networks
        self._ending = ending
        self._waits = waits
        self._snapshots = snapshots
        self._volumes = volumes

    # -- before a session is stored

    def check_provider(self, name: str, needs: Collection[Capability]) -> None:
        """Raises InvalidRequest if the worker lacks that provider, or if the provider lacks what is needed. A
        coordinator has no worker, and leaves the check to the one that gets the session."""
        if self._basis.worker is not None:
            choose_provider(self._basis.worker.providers, name, needs)

    def can(self, provider: str, *needs: Capability) -> bool:
        """Whether the worker's provider of that name, or its default one, is capable of all this. One that is not here
        is not: who asks for it is told later."""
        worker = self._basis.worker
        with contextlib.suppress(InvalidRequest):
            return worker is not None and set(needs) <= worker.providers[choose_provider(worker.providers, provider)]
        return False

    async def prepare(self, session: Session, *, wait: bool) -> Session:
        """Returns the new session with the image that it gets: one that is pulled for its tenant has a name of its own.
        Raises ImageBuilding if the image is not there yet: nothing is stored then. With `wait` the caller first waits
        for the image as long as callers may."""
        worker, clock = self._basis.worker, self._basis.clock
        if worker is None:
            return session
        until: float | None = None
        while True:
            try:
                image = await worker.prepare(session.environment, session.image, session.provider, session.tenant)
                return session if image == session.image else replace(session, image=image)
            except ImageBuilding:
                if until is None:
                    until = clock.now() + (shorter_image_wait(self._waits.image_wait_s) if wait else 0.0)
                if clock.now() + _IMAGE_LOOK_S > until:
                    raise
            await clock.sleep(_IMAGE_LOOK_S)

    async def image_state(self, environment: Environment) -> str | None:
        """Returns None on a coordinator, which has no worker to ask."""
        return None if self._basis.worker is None else await self._basis.worker.image_state(environment)

    # -- starting

    async def start(self, session: Session, *, end_if_abandoned: bool) -> Session:
        """Gives a stored session its sandbox.

        `end_if_abandoned`: the session has no name by which a caller could ask for it again, so it ends if the caller
        disconnects before it has the answer.
        """
        task = self._activity.begin_start(session, self._start(session))

        def abandon() -> None:
            self._activity.tasks.run(self._abandon(session, task), f"abandoning {session.id}")

        if end_if_abandoned:
            set_if_undelivered(abandon)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if end_if_abandoned:
                set_if_undelivered(None)
                abandon()
            raise

    async def _abandon(self, session: Session, starting: asyncio.Task[Session]) -> None:
        """Leaves the queue for a sandbox, or ends the session if it has got one."""
        starting.cancel()
        await asyncio.wait([starting])
        current = await self._basis.store.get(session.tenant, session.id)
        if current is not None and current.state.can_run:
            await self._ending.end(current, EndReason.FAILED, _CALLER_LEFT)

    async def _start(self, session: Session) -> Session:
        basis = self._basis
        try:
            basis.fault("stored")
            claimed = await self._claim(session)
        except BaseException as exc:
            await run_shielded(self._fail(session, exc))
            raise
        basis.fault("claimed")
        if session.opens_network:
            await self._open_network(session, claimed)
        if session.volumes:
            await self._give_volumes(session, claimed)
        now = basis.clock.now()
        running = session.moved_to(
            SessionState.RUNNING,
            worker=basis.worker_name,
            provider=claimed.provider,
            sandbox_id=claimed.sandbox.id,
            pooled=claimed.pooled,
            gpus=tuple(claimed.sandbox.isolation.gpus) or session.gpus,
            started=session.started if session.saved else now,
            used=now,
            saved="",
            restored=session.restored + bool(session.saved),
        )
        self._activity.track(running)
        try:
            saved = await basis.store.swap(running)
        except BaseException as exc:
            # The store may have saved it all the same: `_fail` then ends the row that says RUNNING (`_try_save_end`).
            await run_shielded(self._ending.destroy_sandbox(running))
            await run_shielded(self._fail(session, exc))
            raise
        if not saved or (basis.in_cluster and await self._was_given_up(running)):
            await self._ending.destroy_sandbox(running)
            error = await self._why_not_started(session)
            self._reports.not_created(session, error)
            raise error
        if session.saved and self._snapshots is not None:
            self._activity.tasks.run(self._snapshots.remove_saved(session), f"removing the saved disk of {session.id}")
        else:
            self._reports.created(running, ms=round((now - session.started) * 1000, 1))
        basis.fault("running")
        return running

    async def _claim(self, session: Session) -> Claimed:
        worker = self._basis.worker
        if worker is None:
            raise NoCapacity("there is no worker", retry_after_s=5)
        began = time.perf_counter()
        disk_of = nullcontext("") if self._snapshots is None else self._snapshots.disk_of(session)
        with traced("claim", session=session.id, environment=session.environment) as span:
            async with disk_of as disk:
                claimed = await worker.claim(
                    Claim(
                        session.environment,
                        session.image,
                        session.limits,
                        session.require,
                        shorter_claim_timeout(self._waits.claim_timeout_s),
                        session.tenant,
                        session.provider,
                        session.gpus,
                        disk,
                    )
                )
            span.note(pooled=claimed.pooled, provider=claimed.provider)
        self._basis.recorder.sandbox_claimed(time.perf_counter() - began)
        return claimed

    async def _open_network(self, session: Session, claimed: Claimed) -> None:
        try:
            await self._networks.apply(session, claimed.sandbox)
        except BaseException as exc:
            assert self._basis.worker is not None
            await run_shielded(self._basis.worker.destroy(claimed.sandbox.id))
            await run_shielded(self._fail(session, exc))
            raise

    async def _give_volumes(self, session: Session, claimed: Claimed) -> None:
        try:
            await self._volumes.attach_all(session, claimed.sandbox)
        except BaseException as exc:
            assert self._basis.worker is not None
            await run_shielded(self._basis.worker.destroy(claimed.sandbox.id))
            await run_shielded(self._fail(session, exc))
            raise
        self._basis.fault("volumes attached")

    async def _was_given_up(self, running: Session) -> bool:
        """Whether a coordinator gave the session up, because this worker stood still, before it was running."""
        current = await self._basis.store.get(running.tenant, running.id)
        return current is None or not current.state.holds_sandbox

    async def _why_not_started(self, session: Session) -> WarrenError:
        """Returns the error for a session that a caller, or a coordinator that took the worker for dead, has ended
        meanwhile."""
        current = await self._basis.store.get(session.tenant, session.id)
        gave_up = SessionState.LOST, SessionState.HIBERNATED
        if current is None or current.state in gave_up or current.reason in FAILED_CREATIONS:
            return Unavailable(f"session {session.id} was given up while it was being made", retry_after_s=1)
        return SessionEnded(f"session {session.id} was deleted while it was being made")

    async def _fail(self, session: Session, exc: BaseException) -> None:
        self._reports.not_created(session, exc)
        detail = _CALLER_LEFT if isinstance(exc, asyncio.CancelledError) else type(exc).__name__
        detail = exc.message if isinstance(exc, WarrenError) else detail
        await self._ending.give_up_start(session, EndReason.FAILED, detail)

    # -- waiting

    async def wait_until_settled(self, session: Session) -> Session:
        """Waits while the session is starting or ending, here or in another process. Raises Unavailable if that takes
        long."""
        basis, activity = self._basis, self._activity
        task = activity.starting.get(session.id) or activity.ending.get(session.id)
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled():
                with contextlib.suppress(SessionEnded):
                    return await self._ending.confirm(task.result())
            session = await basis.get(session.tenant, session.id)
        if (unsaved := activity.unsaved_ends.get(session.id)) is not None:
            return await self._ending.confirm(unsaved)
        pause, deadline = POLL_S[0], basis.clock.now() + self._waits.claim_timeout_s
        while session.state.is_in_transition:
            if basis.clock.now() > deadline:
                raise Unavailable(f"session {session.id} is still {session.state}", retry_after_s=5)
            await basis.clock.sleep(pause)
            pause = min(pause * 2, POLL_S[1])
            session = await basis.get(session.tenant, session.id)
        return session
