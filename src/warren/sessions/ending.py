"""Ends sessions: their artifacts are saved, their sandboxes destroyed, and their ends written to the store.

A session goes to STOPPING first, by an atomic change of its row. Then a task of `SessionActivity`, not of a request,
does the rest. An end that the store cannot save, and a sandbox that the worker cannot destroy, are tried again by
`retry_ends`, which the reaper calls.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Final

from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Claim
from warren.kernel.logs import get_log
from warren.model.errors import SandboxLost, SessionEnded, SessionPaused, WarrenError
from warren.model.session import EndReason, Session, SessionState
from warren.sessions.activity import SessionActivity
from warren.sessions.artifacts import Artifacts
from warren.sessions.basis import SessionBasis
from warren.sessions.networks import SessionNetworks
from warren.sessions.reports import SessionReports
from warren.sessions.snapshots.service import Snapshots

MAX_KEPT_BYTES: Final = 4096
"""The most that is kept of the metadata of a session that has ended, and the most of the names of its variables."""
POLL_S: Final = (0.005, 0.1)  # the first and the longest pause between two looks at the store
_CONFIRM_S: Final = 2.0
_log = get_log(__name__)
_REASON_TEXTS: Final = {
    EndReason.DELETED: "it was deleted",
    EndReason.IDLE: "it was idle for too long",
    EndReason.LIFETIME: "its maximum lifetime was over",
    EndReason.PAUSED_TOO_LONG: "it was paused for too long",
    EndReason.LOST: "its sandbox was lost",
    EndReason.FAILED: "its sandbox could not be made",
    EndReason.UNDONE: "the server stopped while it was being made",
    EndReason.SHUTDOWN: "the server was stopped",
    EndReason.REPLACED: "its thread asked for another one",
}


class SessionEnding:
    def __init__(
        self,
        basis: SessionBasis,
        activity: SessionActivity,
        reports: SessionReports,
        networks: SessionNetworks,
        artifacts: Artifacts | None,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._basis = basis
        self._activity = activity
        self._reports = reports
        self._networks = networks
        self._artifacts = artifacts
        self._snapshots = snapshots
        self._undestroyed: dict[str, Session] = {}  # in STOPPING, and the worker could not destroy the sandbox

    async def end(self, session: Session, reason: EndReason, detail: str = "") -> Session | None:
        """Ends the session and waits until its sandbox is destroyed and the store says so; None if its row has changed
        since it was read. Raises the store's error if the store cannot save the end: it is saved later.
        """
        if session.state.can_be_lost:
            # Raises if another worker has the session: only its own worker ends one that may still run.
            self._basis.worker_of(session)
        if not session.state.holds_sandbox and self._basis.is_elsewhere(session):
            return await self._end_at_once(session, reason, detail)
        stopping = session.moved_to(SessionState.STOPPING, reason=reason, detail=detail)
        return await asyncio.shield(self._activity.tasks.run(self._stop(stopping), f"stopping {session.id}"))

    async def _stop(self, stopping: Session) -> Session | None:
        """Nobody else would destroy the sandbox of a session in STOPPING, so this does not end with its caller."""
        if not await self._basis.store.swap(stopping):
            return None
        self._basis.fault("stopping")
        return await self.confirm(await self.begin_end(stopping))

    async def _end_at_once(self, session: Session, reason: EndReason, detail: str) -> Session | None:
        """Ends the session in one step: its worker would not take care of one that this process had left in
        STOPPING."""
        ended = self.ended(session, reason, detail)
        if not await self._basis.store.swap(ended):
            return None
        self._reports.ended(ended)
        await self._remove_saved(session)
        return ended

    def begin_end(self, stopping: Session, slots: asyncio.Semaphore | None = None) -> asyncio.Task[Session]:
        """Ends a session in STOPPING. With `slots` the sandbox is destroyed when there is a free one."""
        return self._activity.begin_end(stopping, self._end(stopping, slots))

    async def _end(self, stopping: Session, slots: asyncio.Semaphore | None = None) -> Session:
        try:
            if stopping.sandbox_id:
                stopping = await self._save_artifacts(stopping)
                async with slots or contextlib.nullcontext():
                    await self.destroy_sandbox(stopping)
            elif stopping.saved:
                async with slots or contextlib.nullcontext():
                    stopping = await self._save_artifacts_on_disk(stopping)
        except BaseException:
            self._undestroyed[stopping.id] = stopping
            raise
        self._basis.fault("destroyed")
        ended = await self.save_end(stopping, stopping.reason, stopping.detail)
        await self._remove_saved(stopping)
        self._basis.fault("ended")
        return ended

    async def _save_artifacts(self, stopping: Session) -> Session:
        if self._artifacts is None or stopping.artifacts is not None or self._basis.is_elsewhere(stopping):
            return stopping
        saved = await self._artifacts.save_at_end(stopping, lambda: self._awake_sandbox(stopping))
        self._basis.fault("artifacts saved")
        return stopping if saved is None else replace(stopping, artifacts=saved)

    async def _save_artifacts_on_disk(self, stopping: Session) -> Session:
        """The same for a session that has given its sandbox back: it gets one for as long as that takes."""
        worker = self._basis.worker
        keeps = self._artifacts is not None and self._artifacts.store is not None
        if not keeps or worker is None or self._snapshots is None or stopping.artifacts is not None:
            return stopping
        try:
            async with self._snapshots.disk_of(stopping) as disk:
                claimed = await worker.claim(
                    Claim(
                        stopping.environment,
                        stopping.image,
                        stopping.limits,
                        stopping.require,
                        tenant=stopping.tenant,
                        provider=stopping.provider,
                        gpus=(),
                        disk=disk,
                    )
                )
        except WarrenError as exc:
            _log.warning("artifacts_not_saved", session=stopping.id, error=exc)
            return stopping
        try:
            awake = replace(stopping, sandbox_id=claimed.sandbox.id, worker=worker.name, paused_at=None)
            return replace(stopping, artifacts=(await self._save_artifacts(awake)).artifacts)
        finally:
            await worker.destroy(claimed.sandbox.id)

    async def _remove_saved(self, ended: Session) -> None:
        if ended.saved and self._snapshots is not None:
            await self._snapshots.remove_saved(ended)

    async def _awake_sandbox(self, stopping: Session) -> Sandbox:
        """Thaws the sandbox of a session that was paused: what reads its files runs in it."""
        worker, since = self._basis.worker_of(stopping), stopping.paused_at
        if since is None:
            return await worker.sandbox(stopping.sandbox_id)
        return await worker.thaw(stopping.sandbox_id, max(0.0, self._basis.clock.now() - since))

    async def destroy_sandbox(self, session: Session) -> None:
        """Does nothing for a sandbox of another worker: that worker destroys it when it comes back."""
        self._activity.forget(session.tenant, session.id, session.sandbox_id)
        self._networks.forget(session.id)
        if not self._basis.is_elsewhere(session):
            await self._networks.meter.finish(session.sandbox_id)
            await self._basis.worker_of(session).destroy(session.sandbox_id)

    async def undo_start(self, session: Session) -> None:
        """Ends a session in CREATING if no task of this process is starting it."""
        if session.id not in self._activity.starting:
            await self.give_up_start(session, EndReason.UNDONE, "")

    async def give_up_start(self, session: Session, reason: EndReason, detail: str) -> None:
        """Ends a session that got no sandbox. One that was hibernated is so again: it is tried anew by its next use."""
        if not session.saved:
            await self.save_end(session, reason, detail)
            return
        again = self.hibernated_again(session)
        try:
            await self._try_save_end(again)
        except WarrenError:
            self._activity.unsaved_ends[again.id] = again

    def hibernated_again(self, session: Session) -> Session:
        """Returns the row of a session that could not be restored."""
        changes = {"paused_at": self._basis.clock.now(), "saved_gpus": len(session.gpus), "gpus": (), "disk_mb": 0}
        return session.moved_to(SessionState.HIBERNATED, **changes)

    # -- saving ends

    async def save_end(self, session: Session, reason: EndReason, detail: str) -> Session:
        """Saves the end, later if the store cannot write now: the sandbox is gone in either case."""
        ended = self.ended(session, reason, detail)
        try:
            is_ended = await self._try_save_end(ended)
        except WarrenError:
            self._activity.unsaved_ends[ended.id] = ended
            is_ended = True
        if is_ended:
            self._reports.ended(ended)
        return ended

    def ended(self, session: Session, reason: EndReason, detail: str) -> Session:
        """Returns the row of a session that ends now.

        Of the variables only the names are kept, and headers of requests are not: their values may be secrets, and
        nobody needs them any more. Of long metadata and many names the beginning is kept: no quota bounds how many
        sessions of a day have ended.
        """
        kept = {"env": _beginning(dict.fromkeys(session.env, "")), "metadata": _beginning(session.metadata)}
        network, ended_at = session.network.with_headers(()), self._basis.clock.now()
        return session.moved_to(
            SessionState.ENDED, reason=reason, detail=detail, ended=ended_at, network=network, **kept
        )

    async def _try_save_end(self, ended: Session) -> bool:
        """Whether the end was saved; False if the row has changed.

        A session whose start failed may be running in the store: the store saved that, and its answer got lost. Such a
        session has no sandbox, and is ended like any other that runs.
        """
        store = self._basis.store
        if await store.swap(ended):
            return True
        current = await store.get(ended.tenant, ended.id)
        if current is not None and current.state.can_be_lost and current.sandbox_id not in self._activity.owners:
            if ended.state is SessionState.HIBERNATED:
                return await store.swap(replace(ended, version=current.version + 1))
            stopping = current.moved_to(SessionState.STOPPING, reason=ended.reason, detail=ended.detail)
            if await store.swap(stopping):
                self.begin_end(stopping)
        return False

    async def confirm(self, ended: Session) -> Session:
        """Waits until the store has the end, so that a caller who was told of it is not shown a session that is still
        stopping."""
        clock = self._basis.clock
        pause, deadline = POLL_S[0], clock.now() + _CONFIRM_S
        while ended.id in self._activity.unsaved_ends:
            try:
                await self._retry_end(ended)
            except WarrenError:
                if clock.now() > deadline:
                    raise
                await clock.sleep(pause)
                pause = min(pause * 2, POLL_S[1])
        return ended

    async def _retry_end(self, ended: Session) -> None:
        await self._try_save_end(ended)
        self._activity.unsaved_ends.pop(ended.id, None)

    async def retry_ends(self) -> list[WarrenError]:
        """Tries again to save ends and to destroy sandboxes, where that failed before. Returns why the store refused
        some ends again: one of them must not stop the caller's other work."""
        errors: list[WarrenError] = []
        for ended in list(self._activity.unsaved_ends.values()):
            try:
                await self._retry_end(ended)
            except WarrenError as exc:
                errors.append(exc)
        for session_id in self._undestroyed.keys() - self._activity.ending.keys():
            self.begin_end(self._undestroyed.pop(session_id))  # `_end` puts it back if it fails again
        return errors


def _beginning(texts: Mapping[str, str]) -> dict[str, str]:
    """Returns the first entries, at most MAX_KEPT_BYTES of them together."""
    sizes = accumulate(len(f"{name}{value}".encode(errors="surrogatepass")) for name, value in texts.items())
    return {name: texts[name] for name, size in zip(texts, sizes, strict=True) if size <= MAX_KEPT_BYTES}


def unusable_error(session: Session) -> WarrenError:
    """Returns the error that says why a session cannot be used."""
    if session.state.is_paused:
        return SessionPaused(
            f"session {session.id} is {session.state}", remedy=f"resume it: warren resume {session.id}"
        )
    if session.state is SessionState.LOST:
        return SandboxLost(
            f"the sandbox of session {session.id} is lost: {session.detail}",
            remedy="its files are gone; create a new session"
            + (", or use the thread with replace_lost" if session.thread_id else ""),
        )
    why = _REASON_TEXTS.get(session.reason, "it is being ended")
    detail = f" ({session.detail})" if session.detail else ""
    return SessionEnded(f"session {session.id} has ended: {why}{detail}", remedy="create a new session")
