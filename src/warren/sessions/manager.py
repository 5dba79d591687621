"""The use cases: who gets which sandbox, for how long, and what may be done with it.

Only `using` counts as use. It writes the time down when the last note is older than the session's
`slack_s`, and sessions in use at this moment are noted again by the reaper, so a long command keeps its
session alive, and looking at it does not.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from warren.interfaces.metering import Metering
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import Added, Key, Page
from warren.model.access import Caller
from warren.model.environment import Environment
from warren.model.errors import (
    NoSpace,
    QuotaExceeded,
    SandboxLost,
    SandboxNotFound,
    SessionEnded,
    SessionNotFound,
    Stopping,
    Unavailable,
    WarrenError,
)
from warren.model.operations import ExecResult
from warren.model.session import (
    CAME_TO_NOTHING,
    EndReason,
    Session,
    SessionState,
    check_key,
    check_metadata,
    check_seconds,
    check_thread_id,
    new_session_id,
)
from warren.model.spec import check_env, check_env_size, check_image_name
from warren.sessions.allowances import caps_of, check_allowed, check_lifetime, longest_life
from warren.sessions.lifecycle import Lifecycle, gone
from warren.sessions.new_session import Defaults, NewSession, Opened, fingerprint, limits_of, previous_of
from warren.sessions.request_context import current_caller, note, session_id_or
from warren.shielding import run_shielded


class Sessions:
    def __init__(
        self,
        lifecycle: Lifecycle,
        environments: Callable[[str], Environment],
        defaults: Defaults,
        metering: Metering,
    ) -> None:
        self.lifecycle = lifecycle
        self.metering = metering
        self.store = lifecycle.store
        self.clock = lifecycle.clock
        self._environments = environments
        self._defaults = defaults
        self.once: dict[Key, asyncio.Task[ExecResult]] = {}  # commands with an Idempotency-Key that run
        self._busy: Counter[tuple[str, str]] = Counter()
        self._unnoted: set[tuple[str, str]] = set()  # used, and the store could not write it down
        self._idle = asyncio.Event()
        self._idle.set()
        self.stopping = False

    def __repr__(self) -> str:
        return f"<Sessions {len(self._busy)} in use, {self.lifecycle!r}>"

    # -- creating

    async def create(self, tenant: str, wanted: NewSession, key: str = "") -> Opened:
        """A new session; or the one its thread or its key already has."""
        self.check_open()
        caller = current_caller()
        row = self._row(tenant, wanted, caller)
        idempotency = Key(tenant, "create", check_key(key), fingerprint(wanted)) if key else None
        counted = False
        while True:
            earlier = await self.store.of_thread(tenant, wanted.thread_id) if wanted.thread_id else None
            row = replace(row, previous=previous_of(earlier))
            if not counted and (earlier is None or not earlier.active):
                await self.metering.count_create(caller)
                counted = True
            try:
                session, added = await self._added(row, idempotency, caller)
            except Unavailable:
                if earlier is None or idempotency is not None or not earlier.state.can_run:
                    raise
                with contextlib.suppress(SessionEnded, SandboxLost):  # in between: look again
                    return Opened(await self._noted(earlier), created=False)  # who has one needs no store for it
                continue
            note(session_id=session.id)
            if added is Added.NEW:
                made = await self.lifecycle.made(session, orphan=not key and not wanted.thread_id)
                return Opened(made, created=True)
            opened = await self._existing(session, added, wanted)
            if opened is not None:
                return opened

    async def _added(self, row: Session, key: Key | None, caller: Caller) -> tuple[Session, Added]:
        try:
            return await self.store.add(row, key, caps_of(caller))
        except QuotaExceeded:
            self.metering.report_limit(caller, "sessions")
            raise

    async def _existing(self, session: Session, added: Added, wanted: NewSession) -> Opened | None:
        """What to do with the session that was there; None: it is out of the way now, try again."""
        if session.state is SessionState.CREATING:
            session = await self.lifecycle.settled(session)
            if session.reason in CAME_TO_NOTHING:
                raise Unavailable(f"the sandbox could not be made: {session.detail}", retry_after_s=1)
        if added is Added.KEY:
            return Opened(session, created=False, replayed=True)
        if session.state.can_run:
            with contextlib.suppress(SessionEnded, SandboxLost):  # in between: look again
                return Opened(await self._noted(session), created=False)
            return None
        if session.state is SessionState.LOST:
            if not wanted.replace_lost:
                raise gone(session)
            await self.lifecycle.end(session, EndReason.LOST, session.detail)
        else:
            await self.lifecycle.settled(session)
        return None

    def _row(self, tenant: str, wanted: NewSession, caller: Caller) -> Session:
        environment = self._environments(wanted.environment or self._defaults.environment)
        if wanted.thread_id:
            check_thread_id(wanted.thread_id)
        if wanted.image:
            check_image_name(wanted.image)
        for name, value in wanted.env.items():
            check_env(name, value)
        check_env_size(wanted.env)
        provider = wanted.provider or environment.provider
        self.lifecycle.check_provider(provider, environment.needs)
        limits = limits_of(environment.limits, wanted.limits)
        in_force = limits or environment.limits
        lifetime_s = self._seconds("max_lifetime_s", wanted, environment)
        if wanted.max_lifetime_s is None:
            lifetime_s = min(lifetime_s, longest_life(caller))
        own_image = wanted.image if wanted.image != environment.image else ""
        check_allowed(caller, environment.name, in_force, lifetime_s, own_image)
        now = self.clock.now()
        return Session(
            id=session_id_or(new_session_id),
            tenant=tenant,
            environment=environment.name,
            epoch=self.clock.epoch,
            created_at=self.clock.wall(),
            started=now,
            used=now,
            thread_id=wanted.thread_id,
            idle_timeout_s=self._seconds("idle_timeout_s", wanted, environment),
            max_lifetime_s=lifetime_s,
            image=wanted.image,
            limits=limits,
            key_id=caller.key_id,
            disk_mb=in_force.disk_mb,
            memory_mb=in_force.memory_mb,
            worker=next(iter(self.lifecycle.workers), ""),
            provider=provider,
            require=wanted.require,
            env=dict(wanted.env),
            metadata=check_metadata(dict(wanted.metadata)),
        )

    def _seconds(self, name: str, *sources: object) -> float:
        """The first that says something: the caller, the environment, the server."""
        given = (getattr(source, name) for source in (*sources, self._defaults))
        return check_seconds(name, next(value for value in given if value is not None))

    # -- looking

    async def get(self, tenant: str, session_id: str) -> Session:
        note(session_id=session_id)
        return await self.lifecycle.get(tenant, session_id)

    async def of_thread(self, tenant: str, thread_id: str) -> Session:
        session = await self.store.of_thread(tenant, check_thread_id(thread_id))
        if session is None:
            raise SessionNotFound(f"the thread {thread_id!r} has no session")
        note(session_id=session.id)
        return session

    async def list(self, tenant: str, page: Page) -> Sequence[Session]:
        return await self.store.list(tenant, page)

    async def look(self, session: Session) -> Sandbox | None:
        """Its sandbox, without using it; None if there is none to be had."""
        if not session.state.can_run:
            return None
        with contextlib.suppress(WarrenError):
            return await self.lifecycle.worker_of(session).sandbox(session.sandbox_id)
        return None

    # -- using

    @contextlib.asynccontextmanager
    async def using(
        self, tenant: str, session_id: str, *, counts: bool = True
    ) -> AsyncIterator[tuple[Session, Sandbox]]:
        """The session's sandbox for an operation; with `counts` the operation keeps the session alive."""
        self.check_open()
        session = await self._usable(await self.get(tenant, session_id))
        if counts:
            session = await self._noted(session)
        sandbox = self.metering.sandbox(session, await self._sandbox(session))
        begun = self.clock.now()
        self._begin(session, counts)
        try:
            yield session, sandbox
        except SandboxLost as exc:
            raise await self._why_gone(session, exc) from exc
        finally:
            self._finish(session, counts)
            if counts and self.clock.now() - begun >= session.slack_s:
                await run_shielded(self._note_if_running(tenant, session_id))

    def _begin(self, session: Session, counts: bool) -> None:
        if counts:
            self._busy[session.tenant, session.id] += 1
            self._idle.clear()

    def _finish(self, session: Session, counts: bool) -> None:
        name = (session.tenant, session.id)
        if counts:
            self._busy[name] -= 1
            if not self._busy[name]:
                del self._busy[name]
            if not self._busy:
                self._idle.set()

    async def _sandbox(self, session: Session) -> Sandbox:
        try:
            return await self.lifecycle.worker_of(session).sandbox(session.sandbox_id)
        except (SandboxLost, SandboxNotFound) as exc:
            raise await self._why_gone(session, exc) from exc

    async def _why_gone(self, session: Session, exc: WarrenError) -> WarrenError:
        """An operation found the sandbox gone: because the session ended, or because it died."""
        current = await self.store.get(session.tenant, session.id)
        if current is not None and current.state.can_be_lost:
            current = await self.lifecycle.mark_lost(current, exc.message)
        return exc if current is None else gone(current)

    async def _usable(self, session: Session) -> Session:
        if session.state is SessionState.CREATING:
            session = await self.lifecycle.settled(session)
        if not session.state.can_run:
            raise gone(session)
        return session

    async def _noted(self, session: Session) -> Session:
        """A store that cannot write keeps nobody from working: the use is written down later."""
        try:
            return await self._note_use(session)
        except (NoSpace, Unavailable):
            self._unnoted.add((session.tenant, session.id))
            return session

    async def note_use(self, tenant: str, session_id: str) -> None:
        """Something was done in a stream that does not count by being open."""
        await self._noted(await self.get(tenant, session_id))

    async def _note_use(self, session: Session, *, at_once: bool = False) -> Session:
        """Writes down that the session is used now, if the last note is old enough to matter."""
        while True:
            now = self.clock.now()
            if not session.state.can_run:
                raise gone(session)
            if not at_once and now - session.used < session.slack_s:
                return session
            noted = session.changed(used=max(session.used, now))
            if await self.store.swap(noted):
                return noted
            session = await self.get(session.tenant, session.id)

    async def _note_if_running(self, tenant: str, session_id: str) -> None:
        with contextlib.suppress(WarrenError):
            await self.note_use(tenant, session_id)

    async def note_busy(self) -> None:
        """Notes the use of every session that is in use at this moment, or was when the store could not write."""
        for name in {*self._busy, *self._unnoted}:
            self._unnoted.discard(name)
            try:
                await self.note_use(*name)
            except (NoSpace, Unavailable):
                self._unnoted.add(name)
            except WarrenError:
                continue

    def is_busy(self, session: Session) -> bool:
        name = (session.tenant, session.id)
        return name in self._busy or name in self._unnoted

    # -- changing

    async def keep_alive(self, tenant: str, session_id: str) -> Session:
        return await self._note_use(await self._usable(await self.get(tenant, session_id)), at_once=True)

    async def patch(
        self,
        tenant: str,
        session_id: str,
        *,
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        metadata: Mapping[str, str | None] | None = None,
    ) -> Session:
        """New time-outs, counted from the same beginnings, and metadata: a None takes an entry away."""
        while True:
            session = await self._usable(await self.get(tenant, session_id))
            merged = {**session.metadata, **(metadata or {})}
            idle = session.idle_timeout_s if idle_timeout_s is None else idle_timeout_s
            lifetime = session.max_lifetime_s if max_lifetime_s is None else max_lifetime_s
            check_lifetime(current_caller(), lifetime)
            new = session.changed(
                idle_timeout_s=check_seconds("idle_timeout_s", idle),
                max_lifetime_s=check_seconds("max_lifetime_s", lifetime),
                metadata=check_metadata({name: value for name, value in merged.items() if value is not None}),
            )
            if await self.store.swap(new):
                return new

    # -- ending

    async def delete(self, tenant: str, session_id: str) -> Session:
        """Ends a session and waits until its sandbox is gone. Ending it again changes nothing."""
        session = await self.get(tenant, session_id)
        while session.active:
            if session.state is SessionState.STOPPING:
                return await self.lifecycle.settled(session)
            ended = await self.lifecycle.end(session, EndReason.DELETED)
            session = ended or await self.get(tenant, session_id)
        return session

    async def stop(self, grace_s: float, *, destroy: bool) -> None:
        """Takes no more work, lets what runs finish for a while, then ends the sessions or lets them be."""
        await self.quiet(grace_s)
        if destroy:
            for session in await self.store.active():
                if not session.state.is_in_transition:
                    stopping = session.moved_to(SessionState.STOPPING, reason=EndReason.SHUTDOWN)
                    if await self.store.swap(stopping):
                        self.lifecycle.finishing(stopping)
        await self.lifecycle.all_done()

    async def quiet(self, grace_s: float) -> None:
        """Takes no more work, and waits for so long until nothing runs any more."""
        self.stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
                await self.lifecycle.all_made()

    def check_open(self) -> None:
        if self.stopping:
            raise Stopping("the server is being stopped", retry_after_s=5)
