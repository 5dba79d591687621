"""The use of sessions by operations, and whether operations are accepted at all.

Only a `SandboxUse` counts as use of a session, and looking at a session does not. It resumes a paused one. A use is
saved if the last saved one is older than the session's `slack_s`. The reaper saves the use of sessions that are in use
at that moment, so a long command keeps its session alive.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from warren.interfaces.metering import Metering
from warren.interfaces.sandbox import Sandbox
from warren.kernel.shielding import run_shielded
from warren.kernel.tracing import current_span
from warren.model.errors import (
    NoSpace,
    QuotaExceeded,
    SandboxLost,
    SandboxNotFound,
    SessionPaused,
    Stopping,
    Unavailable,
    WarrenError,
)
from warren.model.session import Session, SessionState
from warren.sessions.ending import unusable_error
from warren.sessions.lifecycle import Lifecycle
from warren.sessions.request_context import current_caller, note

Name = tuple[str, str]  # tenant and session id


class SandboxUses:
    """`running` counts the operations in each session; `idle` is set while there are none."""

    def __init__(self, lifecycle: Lifecycle, metering: Metering) -> None:
        self.basis = lifecycle.basis
        self.metering = metering
        self._starting = lifecycle.starting
        self._losses = lifecycle.losses
        self._pausing = lifecycle.pausing
        self._frozen = lifecycle.activity.frozen
        self.running: Counter[Name] = Counter()
        self._unsaved: set[Name] = set()  # the store could not save them
        self.idle = asyncio.Event()
        self.idle.set()
        self.stopping = False

    def __repr__(self) -> str:
        return f"<SandboxUses: {len(self.running)} sessions>"

    def stop(self) -> None:
        """Accepts no more work."""
        self.stopping = True

    def check_open(self) -> None:
        if self.stopping:
            raise Stopping("the server is being stopped", retry_after_s=5)

    async def usable(self, tenant: str, session_id: str, check: Callable[[Session], object] | None = None) -> Session:
        """The session, once it runs; a paused one is resumed, unless that is left to whoever paused it. Raises
        SessionNotFound, what `unusable_error` and `resume` give, and before it resumes anything what `check` raises."""
        note(session_id=session_id)
        session = await self.basis.get(tenant, session_id)
        if check is not None:
            check(session)
        if session.state.can_run and session.id not in self._frozen:
            return session
        session = await self._settled(session)
        if session.state.is_paused and not session.auto_resume:
            raise unusable_error(session)
        is_still = session.state.is_paused or session.id in self._frozen
        return await self.resume(session) if is_still else session

    async def settled(self, tenant: str, session_id: str) -> Session:
        """The session, once it runs or is paused. Raises SessionNotFound, and what `unusable_error` gives."""
        note(session_id=session_id)
        session = await self.basis.get(tenant, session_id)
        return session if session.state.can_run else await self._settled(session)

    async def _settled(self, session: Session) -> Session:
        if session.state is SessionState.CREATING:
            session = await self._starting.wait_until_settled(session)
        if not session.state.is_usable:
            raise unusable_error(session)
        return session

    async def resume(self, session: Session) -> Session:
        try:
            return await self._pausing.resume(session)
        except QuotaExceeded:
            self.metering.report_limit(current_caller(), "sessions")
            raise

    async def pause(self, session: Session, changes: Mapping[str, Any], *, to_disk: bool = False) -> Session:
        try:
            return await self._pausing.pause(session, changes, to_disk=to_disk)
        except QuotaExceeded:
            self.metering.report_limit(current_caller(), "paused_sessions")
            raise

    async def raise_why_lost(self, session: Session, exc: WarrenError) -> None:
        """An operation found the sandbox gone: raises whether the session was ended or its sandbox died.

        Returns if the store does not have the session any more.
        """
        current = await self.basis.store.get(session.tenant, session.id)
        if current is not None and current.state.can_be_lost:
            current = await self._losses.mark_lost(current, exc.message)
        if current is not None:
            raise unusable_error(current) from exc

    async def record(self, tenant: str, session_id: str) -> None:
        """Records a use within a stream that does not count by being open. If its session is paused it is resumed, or
        the stream waits."""
        note(session_id=session_id)
        session = await self.basis.get(tenant, session_id)
        if session.state.is_paused:
            if session.auto_resume:
                await self.resume(session)
            return
        await self.record_of(session)

    async def record_under_way(self, tenant: str, session_id: str) -> None:
        """Records the use by operations that are under way: they do not resume a session."""
        note(session_id=session_id)
        await self.record_of(await self.basis.get(tenant, session_id))

    async def record_of(self, session: Session) -> Session:
        """Saves the use of a session that was just read; later if the store cannot write now, which must not stop
        anybody's work."""
        try:
            return await self.save(session)
        except (NoSpace, Unavailable):
            self._unsaved.add((session.tenant, session.id))
            return session

    async def save(self, session: Session, *, at_once: bool = False) -> Session:
        """Saves that the session is used now, if the last saved use is old enough to matter."""
        while True:
            now = self.basis.clock.now()
            if not session.state.can_run:
                raise unusable_error(session)
            if not at_once and now - session.used < session.slack_s:
                return session
            changed = session.changed(used=max(session.used, now))
            if await self.basis.store.swap(changed):
                return changed
            session = await self.basis.get(session.tenant, session.id)

    async def save_all(self) -> None:
        """Saves the use of every session that is in use now, and the uses that the store could not save before."""
        for name in {*self.running, *self._unsaved}:
            self._unsaved.discard(name)
            try:
                await self.record_under_way(*name)
            except (NoSpace, Unavailable):
                self._unsaved.add(name)
            except WarrenError:
                continue

    def is_in_use(self, session: Session) -> bool:
        name = (session.tenant, session.id)
        return name in self.running or name in self._unsaved


class SandboxUse:
    """One operation in a session's sandbox. `session` and `sandbox` are set inside the `async with` block."""

    __slots__ = ("_begun", "_check", "_counts", "_name", "_slack_s", "_uses", "_wakes", "sandbox", "session")

    session: Session
    sandbox: Sandbox

    def __init__(
        self,
        uses: SandboxUses,
        tenant: str,
        session_id: str,
        counts: bool,
        wakes: bool = True,
        check: Callable[[Session], object] | None = None,
    ) -> None:
        self._uses, self._name, self._counts, self._wakes = uses, (tenant, session_id), counts, wakes
        self._check = check

    async def __aenter__(self) -> tuple[Session, Sandbox]:
        uses, basis = self._uses, self._uses.basis
        if uses.stopping:
            uses.check_open()
        session = await (uses.usable(*self._name, self._check) if self._wakes else uses.settled(*self._name))
        if (span := current_span.get()) is not None:
            span.note(session=session.id, environment=session.environment)
        self._begun, self._slack_s = basis.clock.now(), session.slack_s
        if self._counts and self._begun - session.used >= self._slack_s:
            session = await self._record(session)
        try:
            sandbox = await basis.worker_of(session).sandbox(session.sandbox_id)
        except (SandboxLost, SandboxNotFound) as exc:
            await uses.raise_why_lost(session, exc)
            raise
        if self._counts:
            uses.running[self._name] += 1
            uses.idle.clear()
        self.session, self.sandbox = session, uses.metering.sandbox(session, sandbox)
        return session, self.sandbox

    async def _record(self, session: Session) -> Session:
        """Records the use; resumes a session that was paused since it was read."""
        while True:
            try:
                return await self._uses.record_of(session)
            except SessionPaused:
                session = await self._uses.usable(*self._name)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        uses = self._uses
        try:
            if isinstance(exc, SandboxLost):
                await uses.raise_why_lost(self.session, exc)
        finally:
            if self._counts:
                uses.running[self._name] -= 1
                if not uses.running[self._name]:
                    del uses.running[self._name]
                if not uses.running:
                    uses.idle.set()
                if uses.basis.clock.now() - self._begun >= self._slack_s:
                    await run_shielded(self._save_end_of_use())

    async def _save_end_of_use(self) -> None:
        with contextlib.suppress(WarrenError):
            await self._uses.record_under_way(*self._name)
