"""The life of sessions: sandboxes claimed for them, losses noted, ends brought about.

A session is written down before its sandbox exists and is moved, by one atomic change of its row at a
time, along the table in model/session.py. Whoever loses the race for a change reads the row again and
does what the row then says. Sandboxes are made and destroyed by tasks that belong to `Lifecycle`, not to
a request: a caller that goes away neither stops them half-way nor loses track of them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final, TypeVar

from warren.clock import Clock
from warren.interfaces.store import SessionStore
from warren.interfaces.worker import Claim, Worker
from warren.model.capability import Capability, choose_provider
from warren.model.errors import (
    Misdirected,
    NoCapacity,
    SandboxLost,
    SandboxNotFound,
    SessionEnded,
    SessionNotFound,
    Unavailable,
    WarrenError,
)
from warren.model.events import Event, EventData, EventKind, SessionCreatedData, SessionEndedData, SessionLostData
from warren.model.session import CAME_TO_NOTHING, EndReason, Session, SessionState
from warren.sessions.event_hub import Events
from warren.sessions.request_context import patience_s
from warren.shielding import run_shielded

T = TypeVar("T")
_log = logging.getLogger(__name__)

STEPS: Final = ("stored", "claimed", "running", "stopping", "destroyed", "ended")

_POLL_S: Final = (0.005, 0.1)
_LEFT: Final = "the caller went away"
_LOST_PREFIX: Final = "the sandbox is lost: "
_IN_WORDS: Final = {
    EndReason.DELETED: "it was deleted",
    EndReason.IDLE: "it was idle for too long",
    EndReason.LIFETIME: "its maximum lifetime was over",
    EndReason.LOST: "its sandbox was lost",
    EndReason.FAILED: "its sandbox could not be made",
    EndReason.UNDONE: "the server stopped while it was being made",
    EndReason.SHUTDOWN: "the server was stopped",
}


class Lifecycle:
    """With `others` there may be sessions of workers that are not here: those are left to them.

    `fault` is called with the name of each step of a session's life, for tests of what a crash leaves.
    """

    def __init__(
        self,
        store: SessionStore,
        workers: Mapping[str, Worker],
        clock: Clock,
        *,
        claim_timeout_s: float = 30.0,
        others: bool = False,
        events: Events | None = None,
        fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.store = store
        self.workers = workers
        self.clock = clock
        self._claim_timeout_s = claim_timeout_s
        self.others = others
        self._events = events or Events()
        self._fault = fault
        self._making: dict[str, asyncio.Task[Session]] = {}
        self._ending: dict[str, asyncio.Task[Session]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._holder: dict[str, tuple[str, str]] = {}  # sandbox id -> tenant and session id
        self._unwritten: dict[str, Session] = {}  # ends that the store would not take yet
        self._unfinished: dict[str, Session] = {}  # in STOPPING, and the worker could not destroy the sandbox

    def __repr__(self) -> str:
        return f"<Lifecycle {len(self._holder)} running, {len(self._making)} creating, {len(self._tasks)} tasks>"

    async def get(self, tenant: str, session_id: str) -> Session:
        session = await self.store.get(tenant, session_id)
        if session is None:
            raise SessionNotFound(f"there is no session {session_id!r}", remedy="create one: POST /api/sessions")
        return session

    # -- beginning

    async def made(self, session: Session, *, orphan: bool) -> Session:
        """The session with its sandbox. An `orphan`, which nobody can ask for again, ends if the caller goes away."""
        task = self._making[session.id] = self._own(self._make(session), f"making {session.id}")
        task.add_done_callback(lambda _: self._making.pop(session.id, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if orphan:
                self._own(self._discard(task), f"discarding {session.id}")
            raise

    async def _discard(self, making: asyncio.Task[Session]) -> None:
        """What is not made yet gives up its place in the queue; what was made goes."""
        making.cancel()
        await asyncio.wait([making])
        if not making.cancelled() and making.exception() is None:
            await self.end(making.result(), EndReason.FAILED, _LEFT)

    async def _make(self, session: Session) -> Session:
        worker = self._place(session)
        try:
            self._fault("stored")
            claimed = await worker.claim(self._claim(session))
        except BaseException as exc:
            await run_shielded(self._failed(session, exc))
            raise
        self._fault("claimed")
        now = self.clock.now()
        running = session.moved_to(
            SessionState.RUNNING,
            worker=worker.name,
            provider=claimed.provider,
            sandbox_id=claimed.sandbox.id,
            pooled=claimed.pooled,
            started=now,
            used=now,
        )
        self.took_over(running)
        try:
            written = await self.store.swap(running)
        except BaseException as exc:
            await run_shielded(self._let_go(running))
            await run_shielded(self._failed(session, exc))
            raise
        if not written or await self._was_taken(running):
            await self._let_go(running)
            raise await self._why_unmade(session)
        created = SessionCreatedData(running.thread_id or None, running.memory_mb, running.environment, running.pooled)
        self._publish(EventKind.SESSION_CREATED, running, created)
        self._fault("running")
        return running

    async def _was_taken(self, running: Session) -> bool:
        """Whether it was given up, as that of a worker that stood still, before this worker knew that it runs."""
        if not self.others:
            return False
        current = await self.store.get(running.tenant, running.id)
        return current is None or not current.state.holds_sandbox

    async def _why_unmade(self, session: Session) -> WarrenError:
        """Somebody has ended it in the meantime: a caller, or whoever thought that it is not being made any more."""
        current = await self.store.get(session.tenant, session.id)
        if current is None or current.state is SessionState.LOST or current.reason in CAME_TO_NOTHING:
            return Unavailable(f"session {session.id} was given up while it was being made", retry_after_s=1)
        return SessionEnded(f"session {session.id} was deleted while it was being made")

    def _claim(self, session: Session) -> Claim:
        return Claim(
            session.environment,
            session.image,
            session.limits,
            session.require,
            patience_s(self._claim_timeout_s),
            session.tenant,
            session.provider,
        )

    async def _failed(self, session: Session, exc: BaseException) -> None:
        detail = _LEFT if isinstance(exc, asyncio.CancelledError) else type(exc).__name__
        detail = exc.message if isinstance(exc, WarrenError) else detail
        await self._write_end(session, EndReason.FAILED, detail)

    def _place(self, session: Session) -> Worker:
        for worker in self.workers.values():
            return worker
        raise NoCapacity("there is no worker", retry_after_s=5)

    def check_provider(self, name: str, needs: Collection[Capability]) -> None:
        """Raises InvalidRequest if no worker here has that provider, or if the provider lacks what is needed."""
        for worker in self.workers.values():
            choose_provider(worker.providers, name, needs)

    def took_over(self, session: Session) -> None:
        """A running session has its sandbox, from a claim or again after a restart."""
        self._holder[session.sandbox_id] = (session.tenant, session.id)

    # -- ending

    async def end(self, session: Session, reason: EndReason, detail: str = "") -> Session | None:
        """Ends the session as it was read and waits until its sandbox is gone; None if it has changed since."""
        if session.state.can_be_lost:
            self.worker_of(session)
        stopping = session.moved_to(SessionState.STOPPING, reason=reason, detail=detail)
        if not await self.store.swap(stopping):
            return None
        self._fault("stopping")
        return await asyncio.shield(self.finishing(stopping))

    def finishing(self, stopping: Session) -> asyncio.Task[Session]:
        task = self._ending[stopping.id] = self._own(self._finish(stopping), f"ending {stopping.id}")
        task.add_done_callback(lambda _: self._ending.pop(stopping.id, None))
        return task

    def is_ending(self, session: Session) -> bool:
        return session.id in self._ending

    async def _finish(self, stopping: Session) -> Session:
        try:
            if stopping.sandbox_id:
                await self._let_go(stopping)
        except BaseException:
            self._unfinished[stopping.id] = stopping
            raise
        self._fault("destroyed")
        ended = await self._write_end(stopping, stopping.reason, stopping.detail)
        self._fault("ended")
        return ended

    async def _let_go(self, session: Session) -> None:
        """What is lost with another worker is that one's to clear away, when it comes back."""
        self._holder.pop(session.sandbox_id, None)
        if session.worker in self.workers or not self.others:
            await self.worker_of(session).destroy(session.sandbox_id)

    async def undo(self, session: Session) -> None:
        """A session that nobody makes any more."""
        if session.id not in self._making:
            await self._write_end(session, EndReason.UNDONE, "")

    async def _write_end(self, session: Session, reason: EndReason, detail: str) -> Session:
        """A store that cannot take it now is asked again later; the sandbox is gone either way.

        Of the variables only the names are kept: their values may be secrets, and nobody needs them any more.
        """
        names = dict.fromkeys(session.env, "")
        ended = session.moved_to(SessionState.ENDED, reason=reason, detail=detail, ended=self.clock.now(), env=names)
        try:
            told = await self._wrote_end(ended)
        except WarrenError:
            self._unwritten[ended.id] = ended
            told = True
        if told and session.sandbox_id:
            expired = reason in (EndReason.IDLE, EndReason.LIFETIME)
            kind = EventKind.SESSION_EXPIRED if expired else EventKind.SESSION_ENDED
            lived_s = round(self.clock.now() - session.started, 3)
            self._publish(kind, ended, SessionEndedData(ended.thread_id or None, ended.memory_mb, str(reason), lived_s))
        return ended

    async def _wrote_end(self, ended: Session) -> bool:
        """A session that was not to come about may have begun to run after all: the store went away over it, and
        nobody knew. Then it is ended as what it is."""
        if await self.store.swap(ended):
            return True
        current = await self.store.get(ended.tenant, ended.id)
        if current is not None and current.state.can_be_lost and current.version == ended.version:
            self._own(self.end(current, ended.reason, ended.detail), f"ending {ended.id}")
        return False

    def _publish(self, kind: EventKind, session: Session, data: EventData) -> None:
        self._events.publish(Event(kind, session.tenant, self.clock.wall(), data, session.id))

    async def retry(self) -> None:
        """What could not be finished before is tried again."""
        for session_id, ended in list(self._unwritten.items()):
            await self._wrote_end(ended)
            del self._unwritten[session_id]
        for session_id in self._unfinished.keys() - self._ending.keys():
            self.finishing(self._unfinished.pop(session_id))  # if it fails it is among them again

    # -- losing

    async def mark_lost(self, session: Session, why: str) -> Session:
        """Its sandbox has died: what is left of that goes, the session stays and says why."""
        while session.state.can_be_lost:
            lost = session.moved_to(SessionState.LOST, reason=EndReason.LOST, detail=why.removeprefix(_LOST_PREFIX))
            if await self.store.swap(lost):
                self.tell_lost(lost)
                self._own(self._let_go(session), f"clearing {session.sandbox_id}")
                return lost
            session = await self.get(session.tenant, session.id)
        if session.state is SessionState.LOST and session.sandbox_id in self._holder:
            self._own(self._let_go(session), f"clearing {session.sandbox_id}")
        return session

    def tell_lost(self, lost: Session) -> None:
        data = SessionLostData(lost.thread_id or None, lost.memory_mb, lost.detail)
        self._publish(EventKind.SESSION_LOST, lost, data)

    async def forget_lost(self) -> None:
        """Sandboxes of sessions that were taken from this worker are destroyed; their rows are somebody else's affair.

        Whoever came to know of it first, and whatever was done about it: what counts is which sandboxes are held.
        """
        own = {session.id: session for session in await self.store.active()}
        tasks = (*self._making.items(), *self._ending.items())
        busy = {session_id for session_id, task in tasks if not task.done()}  # those see to it themselves
        gone = {}
        for sandbox_id, (_, session_id) in self._holder.items():
            session = own.get(session_id)
            if session_id not in busy and (session is None or session.state is SessionState.LOST):
                _log.warning("session %s was given up: its sandbox is destroyed", session_id)
                gone[sandbox_id] = session_id
        for sandbox_id in gone:
            del self._holder[sandbox_id]
        for worker in self.workers.values():
            await asyncio.gather(*map(worker.destroy, gone))

    async def check(self, session: Session) -> None:
        """A running session whose sandbox is not here is lost."""
        if session.state.can_be_lost:
            try:
                await self.worker_of(session).sandbox(session.sandbox_id)
            except (SandboxLost, SandboxNotFound) as exc:
                await self.mark_lost(session, exc.message)

    async def sandbox_died(self, sandbox_id: str, why: str) -> None:
        if (holder := self._holder.get(sandbox_id)) is None:
            return
        session = await self.store.get(*holder)
        if session is not None and session.sandbox_id == sandbox_id:
            await self.mark_lost(session, why)

    # -- waiting

    async def settled(self, session: Session) -> Session:
        """The session when it is no longer being made or unmade, whoever does that; Unavailable if that takes long."""
        at_work = (self._making if session.state is SessionState.CREATING else self._ending).get(session.id)
        if at_work is not None:
            await asyncio.wait([at_work])
            if not at_work.cancelled():
                with contextlib.suppress(SessionEnded):
                    return at_work.result()
        pause, deadline = _POLL_S[0], self.clock.now() + self._claim_timeout_s
        while session.state.is_in_transition:
            if self.clock.now() > deadline:
                raise Unavailable(f"session {session.id} is still {session.state}", retry_after_s=5)
            await self.clock.sleep(pause)
            pause = min(pause * 2, _POLL_S[1])
            session = await self.get(session.tenant, session.id)
        return session

    async def all_made(self) -> None:
        while self._making:
            await asyncio.wait(set(self._making.values()))

    async def all_done(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def worker_of(self, session: Session) -> Worker:
        try:
            return self.workers[session.worker]
        except KeyError:
            if self.others:
                raise Misdirected(f"session {session.id} is on another worker", worker=session.worker) from None
            raise SandboxLost(f"the worker {session.worker!r} is not here any more") from None

    def _own(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it has it; nobody may be waiting


def gone(session: Session) -> WarrenError:
    """Why a session cannot be used."""
    if session.state is SessionState.LOST:
        return SandboxLost(
            f"the sandbox of session {session.id} is lost: {session.detail}",
            remedy="its files are gone; create a new session"
            + (", or use the thread with replace_lost" if session.thread_id else ""),
        )
    why = _IN_WORDS.get(session.reason, "it is being ended")
    detail = f" ({session.detail})" if session.detail else ""
    return SessionEnded(f"session {session.id} has ended: {why}{detail}", remedy="create a new session")
