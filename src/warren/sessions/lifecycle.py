"""The life of a session: it gets a sandbox, it may lose it, it ends.

A session is saved before its sandbox exists. Each change of its row is atomic and follows the table in
model/session.py. Whoever loses the race for a change reads the row again and acts on what the row then says. Tasks of
`Lifecycle`, not of a request, create and destroy sandboxes: a caller that disconnects neither stops them half-way nor
makes the server lose track of them.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.secrets import NoSecrets, SecretSource
from warren.interfaces.store import SessionStore
from warren.interfaces.worker import Claim, Worker
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.kernel.tracing import traced
from warren.model.capability import Capability, choose_provider
from warren.model.environment import Environment
from warren.model.errors import (
    ImageBuilding,
    Misdirected,
    NoCapacity,
    SandboxLost,
    SandboxNotFound,
    SessionEnded,
    SessionNotFound,
    Unavailable,
    WarrenError,
)
from warren.model.events import (
    Event,
    EventData,
    EventKind,
    SessionChangedData,
    SessionCreatedData,
    SessionEndedData,
    SessionLostData,
)
from warren.model.session import FAILED_CREATIONS, EndReason, Session, SessionState
from warren.sessions.artifacts import Artifacts
from warren.sessions.egress import Egress
from warren.sessions.event_hub import EventHub
from warren.sessions.figures import FiguresMeter
from warren.sessions.network_meter import NetworkMeter
from warren.sessions.request_context import set_if_undelivered, shorter_claim_timeout, shorter_image_wait

T = TypeVar("T")
_log = get_log(__name__)

STEPS: Final = ("stored", "claimed", "running", "stopping", "destroyed", "ended")

MAX_KEPT_BYTES: Final = 4096
"""Of the metadata of a session that has ended, and of the names of its variables."""
_IMAGE_LOOK_S: Final = 0.5
_POLL_S: Final = (0.005, 0.1)
_CONFIRM_S: Final = 2.0
_REAPPLY_S: Final = 5.0
_LOOK_AT_SECRETS_S: Final = 2.0
_RENEWED_AT_ONCE: Final = 20
_CALLER_LEFT: Final = "the caller went away"
_LOST_PREFIX: Final = "the sandbox is lost: "
_REASON_TEXTS: Final = {
    EndReason.DELETED: "it was deleted",
    EndReason.IDLE: "it was idle for too long",
    EndReason.LIFETIME: "its maximum lifetime was over",
    EndReason.LOST: "its sandbox was lost",
    EndReason.FAILED: "its sandbox could not be made",
    EndReason.UNDONE: "the server stopped while it was being made",
    EndReason.SHUTDOWN: "the server was stopped",
}


class Lifecycle:
    """With `in_cluster` the store also has sessions of other workers, which those workers take care of.

    `fault` is called with the name of each step of a session's life, for tests of what a crash leaves.
    """

    def __init__(
        self,
        store: SessionStore,
        workers: Mapping[str, Worker],
        clock: Clock,
        *,
        claim_timeout_s: float = 30.0,
        image_wait_s: float = 0.0,
        in_cluster: bool = False,
        events: EventHub | None = None,
        egress: Egress | None = None,
        network_meter: NetworkMeter | None = None,
        figures: FiguresMeter | None = None,
        secrets: SecretSource | None = None,
        artifacts: Artifacts | None = None,
        recorder: Recorder = NO_RECORDER,
        fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.store = store
        self.egress = egress or Egress()
        self.network_meter = network_meter or NetworkMeter(clock)
        self.network_meter.reopen = self.keep_network
        self.figures = figures or FiguresMeter(clock)
        self.figures.find_sandbox = self._sandbox_of
        self.secrets = secrets or NoSecrets()
        self.artifacts = artifacts
        self.workers = workers
        self.clock = clock
        self._claim_timeout_s = claim_timeout_s
        self._image_wait_s = image_wait_s
        self.in_cluster = in_cluster
        self._events = events or EventHub()
        self._recorder = recorder
        self._fault = fault
        self._starting: dict[str, asyncio.Task[Session]] = {}
        self._ending: dict[str, asyncio.Task[Session]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._keeping: set[asyncio.Task[None]] = set()  # they try until networks are open
        self._network_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._secret_users: dict[str, _SecretUser] = {}  # by session id, those whose sandboxes are here
        self._owners: dict[str, tuple[str, str]] = {}  # sandbox id -> tenant and session id
        self._unsaved_ends: dict[str, Session] = {}  # the store could not save them yet
        self._undestroyed: dict[str, Session] = {}  # in STOPPING, and the worker could not destroy the sandbox

    def __repr__(self) -> str:
        return f"<Lifecycle {len(self._owners)} running, {len(self._starting)} creating, {len(self._tasks)} tasks>"

    async def get(self, tenant: str, session_id: str) -> Session:
        session = await self.store.get(tenant, session_id)
        if session is None:
            raise SessionNotFound(f"there is no session {session_id!r}", remedy="create one: POST /api/sessions")
        return session

    # -- starting

    async def prepare(self, session: Session, *, wait: bool) -> None:
        """Raises ImageBuilding if the image of a new session is not there yet: nothing is stored then. With `wait`,
        only once the caller has waited for it as long as callers may."""
        until = self.clock.now() + (shorter_image_wait(self._image_wait_s) if wait else 0.0)
        for worker in self.workers.values():
            while True:
                try:
                    await worker.prepare(session.environment, session.image, session.provider)
                    break
                except ImageBuilding:
                    if self.clock.now() + _IMAGE_LOOK_S > until:
                        raise
                await self.clock.sleep(_IMAGE_LOOK_S)

    async def image_state(self, environment: Environment) -> str | None:
        """None where no worker can tell: on a coordinator."""
        for worker in self.workers.values():
            return await worker.image_state(environment)
        return None

    async def start(self, session: Session, *, end_if_abandoned: bool) -> Session:
        """Gives a new session its sandbox.

        `end_if_abandoned`: the session has no name by which a caller could ask for it again, so it ends if the caller
        disconnects before it has the answer.
        """
        task = self._starting[session.id] = self._run_task(self._start(session), f"starting {session.id}")
        task.add_done_callback(lambda _: self._starting.pop(session.id, None))

        def abandon() -> None:
            self._run_task(self._abandon(session, task), f"abandoning {session.id}")

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
        current = await self.store.get(session.tenant, session.id)
        if current is not None and current.state.can_run:
            await self.end(current, EndReason.FAILED, _CALLER_LEFT)

    async def _start(self, session: Session) -> Session:
        worker = self._choose_worker()
        began = time.perf_counter()
        try:
            self._fault("stored")
            with traced("claim", session=session.id, environment=session.environment) as span:
                claimed = await worker.claim(self._claim(session))
                span.note(pooled=claimed.pooled, provider=claimed.provider)
        except BaseException as exc:
            await run_shielded(self._fail(session, exc))
            raise
        self._recorder.sandbox_claimed(time.perf_counter() - began)
        self._fault("claimed")
        if session.opens_network:
            try:
                await self._apply_network(session, claimed.sandbox)
            except BaseException as exc:
                await run_shielded(worker.destroy(claimed.sandbox.id))
                await run_shielded(self._fail(session, exc))
                raise
        now = self.clock.now()
        running = session.moved_to(
            SessionState.RUNNING,
            worker=worker.name,
            provider=claimed.provider,
            sandbox_id=claimed.sandbox.id,
            pooled=claimed.pooled,
            gpus=tuple(claimed.sandbox.isolation.gpus) or session.gpus,
            started=now,
            used=now,
        )
        self.track(running)
        try:
            saved = await self.store.swap(running)
        except BaseException as exc:
            await run_shielded(self._destroy_sandbox(running))
            await run_shielded(self._fail(session, exc))
            raise
        if not saved or await self._was_given_up(running):
            await self._destroy_sandbox(running)
            error = await self._why_not_started(session)
            self._recorder.creation_ended(session.environment, "none", _outcome(error))
            raise error
        self._report_created(running, ms=round((now - session.started) * 1000, 1))
        self._fault("running")
        return running

    async def _was_given_up(self, running: Session) -> bool:
        """Whether a coordinator gave the session up, because this worker stood still, before it was running."""
        if not self.in_cluster:
            return False
        current = await self.store.get(running.tenant, running.id)
        return current is None or not current.state.holds_sandbox

    async def _why_not_started(self, session: Session) -> WarrenError:
        """A caller, or a coordinator that took the worker for dead, has ended the session in the meantime."""
        current = await self.store.get(session.tenant, session.id)
        if current is None or current.state is SessionState.LOST or current.reason in FAILED_CREATIONS:
            return Unavailable(f"session {session.id} was given up while it was being made", retry_after_s=1)
        return SessionEnded(f"session {session.id} was deleted while it was being made")

    def _claim(self, session: Session) -> Claim:
        return Claim(
            session.environment,
            session.image,
            session.limits,
            session.require,
            shorter_claim_timeout(self._claim_timeout_s),
            session.tenant,
            session.provider,
            session.gpus,
        )

    async def _fail(self, session: Session, exc: BaseException) -> None:
        self._recorder.creation_ended(session.environment, "none", _outcome(exc))
        detail = _CALLER_LEFT if isinstance(exc, asyncio.CancelledError) else type(exc).__name__
        detail = exc.message if isinstance(exc, WarrenError) else detail
        await self._save_end(session, EndReason.FAILED, detail)

    def _choose_worker(self) -> Worker:
        for worker in self.workers.values():
            return worker
        raise NoCapacity("there is no worker", retry_after_s=5)

    def check_provider(self, name: str, needs: Collection[Capability]) -> None:
        """Raises InvalidRequest if no worker here has that provider, or if the provider lacks what is needed."""
        for worker in self.workers.values():
            choose_provider(worker.providers, name, needs)

    def track(self, session: Session) -> None:
        """Remembers which session has the sandbox, after a claim or after a restart."""
        self._owners[session.sandbox_id] = (session.tenant, session.id)
        self.figures.follow(session)

    async def _sandbox_of(self, session: Session) -> Sandbox:
        return await self.worker_of(session).sandbox(session.sandbox_id)

    # -- the network

    async def _apply_network(self, session: Session, sandbox: Sandbox) -> None:
        """Gives the sandbox the rules of its session's row. If this fails, the sandbox reaches nothing."""
        rules = await self.egress.in_force(session.network)
        if not session.opens_network:
            await self.network_meter.finish(sandbox.id)
            return await sandbox.set_network(rules)
        bounds = await self.network_meter.bounds_of(session)
        if session.secrets:
            versions = await self.secrets.versions(session.tenant, session.secrets)
            await sandbox.set_network(rules, await self.secrets.find(session.tenant, session.secrets), bounds)
            self._secret_users[session.id] = _SecretUser(session, sandbox, versions)
        else:
            await sandbox.set_network(rules, (), bounds)
        self.network_meter.follow(session, sandbox, bounds)

    async def apply_network(self, session: Session) -> None:
        """After a change of the row. If it fails it is tried again until it succeeds, the row has changed, or the
        sandbox is gone."""
        try:
            await self._apply_network(session, await self.worker_of(session).sandbox(session.sandbox_id))
        except WarrenError:
            self.keep_network(session, after_s=_REAPPLY_S)
            raise

    def keep_network(self, session: Session, after_s: float = 0.0) -> None:
        """Applies the rules in a task of its own, also for a sandbox that was taken over after a restart: it reaches
        nothing until then."""
        task = self._run_task(self._keep_network(session, after_s), f"network of {session.id}")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _keep_network(self, session: Session, pause_s: float) -> None:
        while True:
            await self.clock.sleep(pause_s)
            try:
                async with self.network_lock(session.id):
                    current = await self.store.get(session.tenant, session.id)
                    if current is None or not current.state.can_be_lost or current.network != session.network:
                        return
                    sandbox = await self.worker_of(current).sandbox(current.sandbox_id)
                    return await self._apply_network(current, sandbox)
            except (SandboxLost, SandboxNotFound):
                return
            except WarrenError as exc:
                _log.warning("network_not_opened", session=session.id, error=exc.message, retry_s=_REAPPLY_S)
            pause_s = _REAPPLY_S

    def network_lock(self, session_id: str) -> asyncio.Lock:
        """Held from the reading of a row to the applying of its rules, so that older ones never come last."""
        return self._network_locks.setdefault(session_id, asyncio.Lock())

    # -- secrets

    async def secret_changed(self, tenant: str, name: str) -> None:
        """Gives a secret that was set or deleted to the running sandboxes that use it, or takes it from them. Of one
        for which that fails the network is closed, and it is tried again."""
        users = [user for user in self._secret_users.values() if user.session.tenant == tenant]
        await self._renew_secrets([user for user in users if name in user.session.secrets])

    async def watch_secrets(self) -> None:
        """In a cluster other processes set and delete secrets: looks every two seconds whether one has changed."""
        while True:
            await self.clock.sleep(_LOOK_AT_SECRETS_S)
            names: dict[str, set[str]] = {}
            for user in self._secret_users.values():
                names.setdefault(user.session.tenant, set()).update(user.session.secrets)
            try:
                now = {tenant: await self.secrets.versions(tenant, sorted(found)) for tenant, found in names.items()}
            except WarrenError as exc:
                _log.warning("secrets_not_compared", action="retry", error=exc.message)
                continue
            users = [user for user in self._secret_users.values() if user.session.tenant in now]
            await self._renew_secrets([user for user in users if user.differs_from(now[user.session.tenant])])

    async def _renew_secrets(self, users: Sequence["_SecretUser"]) -> None:
        for at in range(0, len(users), _RENEWED_AT_ONCE):
            some = users[at : at + _RENEWED_AT_ONCE]
            await asyncio.gather(*map(self._renew_secrets_of, some))

    async def _renew_secrets_of(self, user: "_SecretUser") -> None:
        session = user.session
        try:
            async with self.network_lock(session.id):
                current = await self.store.get(session.tenant, session.id)
                if current is None or not current.state.holds_sandbox:
                    self._secret_users.pop(session.id, None)
                elif not self.network_meter.is_closed(user.sandbox.id):  # it gets them when it is opened again
                    await self._apply_network(current, user.sandbox)
        except WarrenError as exc:
            _log.warning("secrets_not_renewed", session=session.id, error=exc.message)
            self.keep_network(session, after_s=_REAPPLY_S)

    # -- ending

    async def end(self, session: Session, reason: EndReason, detail: str = "") -> Session | None:
        """Ends the session and waits until its sandbox is destroyed and the store says so; None if its row has changed
        since it was read. Raises the store's error if the store cannot save the end: it is saved later.
        """
        if session.state.can_be_lost:
            self.worker_of(session)
        if session.state is SessionState.LOST and self._is_elsewhere(session):
            return await self._end_at_once(session, reason, detail)
        stopping = session.moved_to(SessionState.STOPPING, reason=reason, detail=detail)
        return await asyncio.shield(self._run_task(self._stop(stopping), f"stopping {session.id}"))

    async def _stop(self, stopping: Session) -> Session | None:
        """Nobody else would destroy the sandbox of a session in STOPPING, so this does not end with its caller."""
        if not await self.store.swap(stopping):
            return None
        self._fault("stopping")
        return await self._confirm(await self.begin_end(stopping))

    async def _end_at_once(self, session: Session, reason: EndReason, detail: str) -> Session | None:
        """In one step, because its worker would not take care of a session that this process has left in STOPPING."""
        ended = self._ended(session, reason, detail)
        if not await self.store.swap(ended):
            return None
        self._report_ended(ended)
        return ended

    def begin_end(self, stopping: Session, slots: asyncio.Semaphore | None = None) -> asyncio.Task[Session]:
        """With `slots` the sandbox is destroyed when there is a free one."""
        task = self._ending[stopping.id] = self._run_task(self._end(stopping, slots), f"ending {stopping.id}")
        task.add_done_callback(lambda _: self._ending.pop(stopping.id, None))
        return task

    def is_ending(self, session: Session) -> bool:
        return session.id in self._ending

    async def _end(self, stopping: Session, slots: asyncio.Semaphore | None = None) -> Session:
        try:
            if stopping.sandbox_id:
                stopping = await self._save_artifacts(stopping)
                async with slots or contextlib.nullcontext():
                    await self._destroy_sandbox(stopping)
        except BaseException:
            self._undestroyed[stopping.id] = stopping
            raise
        self._fault("destroyed")
        ended = await self._save_end(stopping, stopping.reason, stopping.detail)
        self._fault("ended")
        return ended

    async def _save_artifacts(self, stopping: Session) -> Session:
        if self.artifacts is None or stopping.artifacts is not None or self._is_elsewhere(stopping):
            return stopping
        worker = self.worker_of(stopping)
        saved = await self.artifacts.save_at_end(stopping, lambda: worker.sandbox(stopping.sandbox_id))
        self._fault("artifacts saved")
        return stopping if saved is None else replace(stopping, artifacts=saved)

    async def _destroy_sandbox(self, session: Session) -> None:
        """Does nothing for a sandbox of another worker: that worker destroys it when it comes back."""
        self._owners.pop(session.sandbox_id, None)
        self.figures.forget(session.tenant, session.id)
        self._secret_users.pop(session.id, None)
        if not self._is_elsewhere(session):
            await self.network_meter.finish(session.sandbox_id)
            await self.worker_of(session).destroy(session.sandbox_id)

    def _is_elsewhere(self, session: Session) -> bool:
        return self.in_cluster and session.worker not in self.workers

    async def undo_start(self, session: Session) -> None:
        """Ends a session in CREATING if no task of this process is starting it."""
        if session.id not in self._starting:
            await self._save_end(session, EndReason.UNDONE, "")

    async def _save_end(self, session: Session, reason: EndReason, detail: str) -> Session:
        """Saves the end, later if the store cannot write now: the sandbox is gone in either case."""
        ended = self._ended(session, reason, detail)
        try:
            is_ended = await self._try_save_end(ended)
        except WarrenError:
            self._unsaved_ends[ended.id] = ended
            is_ended = True
        if is_ended:
            self._report_ended(ended)
        return ended

    def _ended(self, session: Session, reason: EndReason, detail: str) -> Session:
        """Of the variables only the names are kept: their values may be secrets, and nobody needs them any more. Of
        long metadata and many names the beginning is kept: no quota bounds how many sessions of a day have ended."""
        kept = {"env": _beginning(dict.fromkeys(session.env, "")), "metadata": _beginning(session.metadata)}
        return session.moved_to(SessionState.ENDED, reason=reason, detail=detail, ended=self.clock.now(), **kept)

    async def _try_save_end(self, ended: Session) -> bool:
        """Whether the end was saved; False if the row has changed.

        A session whose start failed may be running in the store: the store saved that, and its answer got lost. Such a
        session has no sandbox, and is ended like any other that runs.
        """
        if await self.store.swap(ended):
            return True
        current = await self.store.get(ended.tenant, ended.id)
        if current is not None and current.state.can_be_lost and current.sandbox_id not in self._owners:
            stopping = current.moved_to(SessionState.STOPPING, reason=ended.reason, detail=ended.detail)
            if await self.store.swap(stopping):
                self.begin_end(stopping)
        return False

    def is_unsettled(self, session: Session) -> bool:
        """Whether it may be running in the store alone: its start goes on, or failed and the store has yet to learn."""
        return session.id in self._starting or session.id in self._unsaved_ends

    async def _confirm(self, ended: Session) -> Session:
        """Waits until the store has the end: who is told of it must not be shown a session that is still stopping."""
        pause, deadline = _POLL_S[0], self.clock.now() + _CONFIRM_S
        while ended.id in self._unsaved_ends:
            try:
                await self._retry_end(ended)
            except WarrenError:
                if self.clock.now() > deadline:
                    raise
                await self.clock.sleep(pause)
                pause = min(pause * 2, _POLL_S[1])
        return ended

    async def _retry_end(self, ended: Session) -> None:
        await self._try_save_end(ended)
        self._unsaved_ends.pop(ended.id, None)

    async def retry_ends(self) -> None:
        """Tries again to save ends and to destroy sandboxes, where that failed before."""
        for ended in list(self._unsaved_ends.values()):
            await self._retry_end(ended)
        for session_id in self._undestroyed.keys() - self._ending.keys():
            self.begin_end(self._undestroyed.pop(session_id))  # `_end` puts it back if it fails again

    # -- losing

    async def mark_lost(self, session: Session, why: str) -> Session:
        """The session's sandbox has died: destroys the rest of the sandbox; the session stays and tells why."""
        return await asyncio.shield(self._run_task(self._mark_lost(session, why), f"losing {session.id}"))

    async def _mark_lost(self, session: Session, why: str) -> Session:
        while session.state.can_be_lost:
            lost = session.moved_to(SessionState.LOST, reason=EndReason.LOST, detail=why.removeprefix(_LOST_PREFIX))
            if await self.store.swap(lost):
                self.report_lost(lost)
                self._run_task(self._destroy_sandbox(session), f"destroying {session.sandbox_id}")
                return lost
            session = await self.get(session.tenant, session.id)
        if session.state is SessionState.LOST and session.sandbox_id in self._owners:
            self._run_task(self._destroy_sandbox(session), f"destroying {session.sandbox_id}")
        return session

    async def destroy_disowned(self) -> None:
        """Destroys the sandboxes of sessions that coordinators have taken from this worker; leaves their rows alone."""
        own = {session.id: session for session in await self.store.active()}
        tasks = (*self._starting.items(), *self._ending.items())
        busy = {session_id for session_id, task in tasks if not task.done()}  # their tasks destroy what is left
        disowned = {}
        for sandbox_id, (_, session_id) in self._owners.items():
            session = own.get(session_id)
            if session_id not in busy and (session is None or session.state is SessionState.LOST):
                _log.warning("sandbox_disowned", sandbox=sandbox_id, session=session_id)
                disowned[sandbox_id] = session_id
        for sandbox_id in disowned:
            self.figures.forget(*self._owners.pop(sandbox_id))
        for worker in self.workers.values():
            await asyncio.gather(*map(worker.destroy, disowned))

    async def check_sandbox(self, session: Session) -> None:
        """Marks a running session as lost if its worker does not have its sandbox. One whose start failed ends."""
        if session.state.can_be_lost and not self.is_unsettled(session):
            try:
                await self.worker_of(session).sandbox(session.sandbox_id)
            except (SandboxLost, SandboxNotFound) as exc:
                await self.mark_lost(session, exc.message)

    async def mark_owner_lost(self, sandbox_id: str, why: str) -> None:
        """Marks the session that has this sandbox as lost."""
        if (owner := self._owners.get(sandbox_id)) is None:
            return
        session = await self.store.get(*owner)
        if session is not None and session.sandbox_id == sandbox_id:
            await self.mark_lost(session, why)

    # -- reporting: to the log and to whoever subscribes to events

    def _report_created(self, session: Session, ms: float) -> None:
        _log.info(
            "session_created",
            session=session.id,
            tenant=session.tenant,
            environment=session.environment,
            sandbox=session.sandbox_id,
            pooled=session.pooled,
            ms=ms,
        )
        self._recorder.creation_ended(session.environment, "pool" if session.pooled else "cold", "created")
        data = SessionCreatedData(session.thread_id or None, session.memory_mb, session.environment, session.pooled)
        self._publish(EventKind.SESSION_CREATED, session, data)

    def report_changed(self, session: Session, *changed: str) -> None:
        self._publish(EventKind.SESSION_CHANGED, session, SessionChangedData(session.thread_id or None, changed))

    def _report_ended(self, session: Session) -> None:
        """A session that never had a sandbox has no `session_created` before it, and is no event for subscribers."""
        reason, name = session.reason, "session_ended" if session.sandbox_id else "session_not_created"
        detail = session.detail or None
        _log.info(name, session=session.id, tenant=session.tenant, reason=reason, detail=detail)
        if session.sandbox_id:
            expired = reason in (EndReason.IDLE, EndReason.LIFETIME)
            kind = EventKind.SESSION_EXPIRED if expired else EventKind.SESSION_ENDED
            lived_s = round(self.clock.now() - session.started, 3)
            data = SessionEndedData(session.thread_id or None, session.memory_mb, str(reason), lived_s)
            self._publish(kind, session, data)

    def report_lost(self, session: Session) -> None:
        _log.warning("session_lost", session=session.id, tenant=session.tenant, detail=session.detail)
        self._recorder.sandbox_lost(session.detail)
        data = SessionLostData(session.thread_id or None, session.memory_mb, session.detail)
        self._publish(EventKind.SESSION_LOST, session, data)

    def _publish(self, kind: EventKind, session: Session, data: EventData) -> None:
        self._events.publish(Event(kind, session.tenant, self.clock.wall(), data, session.id))

    # -- waiting

    async def wait_until_settled(self, session: Session) -> Session:
        """Waits while the session is starting or ending, here or in another process; Unavailable if that takes long."""
        task = self._starting.get(session.id) or self._ending.get(session.id)
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled():
                with contextlib.suppress(SessionEnded):
                    return await self._confirm(task.result())
            session = await self.get(session.tenant, session.id)
        if (unsaved := self._unsaved_ends.get(session.id)) is not None:
            return await self._confirm(unsaved)
        pause, deadline = _POLL_S[0], self.clock.now() + self._claim_timeout_s
        while session.state.is_in_transition:
            if self.clock.now() > deadline:
                raise Unavailable(f"session {session.id} is still {session.state}", retry_after_s=5)
            await self.clock.sleep(pause)
            pause = min(pause * 2, _POLL_S[1])
            session = await self.get(session.tenant, session.id)
        return session

    async def wait_until_started(self) -> None:
        while self._starting:
            await asyncio.wait(set(self._starting.values()))

    async def wait_for_tasks(self) -> None:
        """Networks that cannot be opened are left to the next process: they stay closed."""
        for task in self._keeping:
            task.cancel()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def worker_of(self, session: Session) -> Worker:
        try:
            return self.workers[session.worker]
        except KeyError:
            if self.in_cluster:
                raise Misdirected(f"session {session.id} is on another worker", worker=session.worker) from None
            raise SandboxLost(f"the worker {session.worker!r} is not here any more") from None

    def _run_task(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._remove_task)
        return task

    def _remove_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as seen: whoever waits gets it, and there may be nobody


@dataclass(frozen=True, slots=True)
class _SecretUser:
    """A session whose sandbox has secrets, and which versions of them."""

    session: Session
    sandbox: Sandbox
    versions: Mapping[str, str]

    def differs_from(self, versions: Mapping[str, str]) -> bool:
        return any(self.versions.get(name) != versions.get(name) for name in self.session.secrets)


def _outcome(error: BaseException) -> str:
    """Of a session that was not created."""
    if isinstance(error, NoCapacity):
        return "no_capacity"
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"


def _beginning(texts: Mapping[str, str]) -> dict[str, str]:
    """The first entries, as far as they are short together."""
    sizes = accumulate(len(f"{name}{value}".encode(errors="surrogatepass")) for name, value in texts.items())
    return {name: texts[name] for name, size in zip(texts, sizes, strict=True) if size <= MAX_KEPT_BYTES}


def unusable_error(session: Session) -> WarrenError:
    """Why a session cannot be used."""
    if session.state is SessionState.LOST:
        return SandboxLost(
            f"the sandbox of session {session.id} is lost: {session.detail}",
            remedy="its files are gone; create a new session"
            + (", or use the thread with replace_lost" if session.thread_id else ""),
        )
    why = _REASON_TEXTS.get(session.reason, "it is being ended")
    detail = f" ({session.detail})" if session.detail else ""
    return SessionEnded(f"session {session.id} has ended: {why}{detail}", remedy="create a new session")
