"""The use cases of sessions: create, find, use, change and end them.

Only `using` counts as use of a session, and looking at a session does not. A use is saved if the last saved one is
older than the session's `slack_s`. The reaper saves the use of sessions that are in use at that moment, so a long
command keeps its session alive.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from warren.interfaces.entries import Entries
from warren.interfaces.metering import Metering
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import Added, Key, Page
from warren.interfaces.worker import WorkerStats
from warren.kernel.shielding import run_shielded
from warren.kernel.tracing import note_trace
from warren.model.access import Caller
from warren.model.agent import Agent
from warren.model.capability import Capability, network_needs
from warren.model.egress import Presets
from warren.model.environment import Environment
from warren.model.errors import (
    Conflict,
    ImageNotFound,
    InvalidRequest,
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
from warren.model.network import NO_NETWORK, NetworkRules
from warren.model.preview import NO_PREVIEW_RULES, PreviewRules
from warren.model.secrets import BoundSecret, broker_variables, check_names, check_together
from warren.model.session import (
    FAILED_CREATIONS,
    EndReason,
    Session,
    SessionState,
    check_key,
    check_metadata,
    check_seconds,
    check_thread_id,
    new_session_id,
)
from warren.model.spec import NO_CEILINGS, Ceilings, Layer, check_env, check_env_size, check_image_name
from warren.model.tenant_images import may_use_image
from warren.sessions.allowances import caps_of, check_allowed, check_ceilings, check_lifetime, longest_life
from warren.sessions.lifecycle import Lifecycle, unusable_error
from warren.sessions.new_session import (
    CreateResult,
    Defaults,
    NewSession,
    changed_limits,
    fingerprint,
    previous_of,
    with_agent,
)
from warren.sessions.request_context import current_caller, note, session_id_or


@dataclass(frozen=True, slots=True)
class SessionStats:
    """How many sessions are in which state, and the figures of each worker."""

    sessions: Mapping[str, int]
    workers: Mapping[str, WorkerStats]


class Sessions:
    def __init__(
        self,
        lifecycle: Lifecycle,
        environments: Callable[[str], Environment],
        defaults: Defaults,
        metering: Metering,
        ceilings: Ceilings = NO_CEILINGS,
        entries: Entries | None = None,
    ) -> None:
        self._entries = entries
        self._ceilings = ceilings
        self.lifecycle = lifecycle
        self.metering = metering
        self.store = lifecycle.store
        self.clock = lifecycle.clock
        self._environments = environments
        self._defaults = defaults
        self.keyed_commands: dict[Key, asyncio.Task[Any]] = {}  # running commands with an Idempotency-Key
        self._uses: Counter[tuple[str, str]] = Counter()  # by tenant and session id
        self._unsaved_uses: set[tuple[str, str]] = set()  # the store could not save them
        self._idle = asyncio.Event()
        self._idle.set()
        self.stopping = False

    def __repr__(self) -> str:
        return f"<Sessions {len(self._uses)} in use, {self.lifecycle!r}>"

    # -- creating

    async def create(self, tenant: str, request: NewSession, key: str = "") -> CreateResult:
        """A new session, or the session that the thread or the Idempotency-Key already has."""
        self.check_open()
        caller = current_caller()
        agent = self._find_agent(request.agent_config) if request.agent_config else None
        idempotency = Key(tenant, "create", check_key(key), fingerprint(request)) if key else None
        request = with_agent(request, agent) if agent else request
        environment = self._environments(request.environment or self._defaults.environment)
        rules = environment.network if request.network is None else request.network
        presets = await self._check_network(rules, caller, environment.network)
        secrets = await self._find_secrets(tenant, environment, request, caller)
        variables = {**presets.env(rules.allow), **broker_variables(secrets)}
        row = self._new_row(
            tenant, request, caller, environment, rules, variables, [each.name for each in secrets], agent
        )
        counted = False
        while True:
            earlier = await self.store.of_thread(tenant, request.thread_id) if request.thread_id else None
            if (previous := previous_of(earlier)) != row.previous:
                row = replace(row, previous=previous)
            if not counted and (earlier is None or not earlier.active):
                await self.lifecycle.prepare(row, wait=not key)  # who has a key asks again
                await self.metering.count_create(caller)
                counted = True
            try:
                session, added = await self._add(row, idempotency, caller)
            except Unavailable:
                # A caller whose thread already has a session does not need the store to write.
                if earlier is None or idempotency is not None or not earlier.state.can_run:
                    raise
                session, added = earlier, Added.THREAD
            note(session_id=session.id)
            note_trace(session=session.id, environment=session.environment)
            if added is Added.NEW:
                has_no_name = not key and not request.thread_id
                return CreateResult(await self.lifecycle.start(session, end_if_abandoned=has_no_name), created=True)
            result = await self._use_existing(session, added, request)
            if result is not None:
                return result

    async def _add(self, row: Session, key: Key | None, caller: Caller) -> tuple[Session, Added]:
        try:
            return await self.store.add(row, key, caps_of(caller))
        except QuotaExceeded:
            self.metering.report_limit(caller, "sessions")
            raise

    async def _use_existing(self, session: Session, added: Added, request: NewSession) -> CreateResult | None:
        """Decides about the session that the store has found. None: it is out of the way now, so try again.

        Raises Misdirected for a running session of another worker, which alone knows whether the start was a success.
        """
        if session.state is SessionState.CREATING or self.lifecycle.is_unsettled(session):
            session = await self.lifecycle.wait_until_settled(session)
            if session.reason in FAILED_CREATIONS:
                raise Unavailable(f"the sandbox could not be made: {session.detail}", retry_after_s=1)
        if session.state.can_run:
            self.lifecycle.worker_of(session)
        if added is Added.KEY:
            return CreateResult(session, created=False, replayed=True)
        if session.state.can_run:
            with contextlib.suppress(SessionEnded, SandboxLost):  # it has just ended: try again
                return CreateResult(await self._record_use(session), created=False)
            return None
        if session.state is SessionState.LOST:
            if not request.replace_lost:
                raise unusable_error(session)
            await self.lifecycle.end(session, EndReason.LOST, session.detail)
        else:
            await self.lifecycle.wait_until_settled(session)
        return None

    async def _check_network(
        self, rules: NetworkRules, caller: Caller, environment: NetworkRules = NO_NETWORK
    ) -> Presets:
        if rules.is_open:
            await self.metering.check_network(caller)
        return await self.lifecycle.egress.check(rules, caller, environment)

    def image_of(self, session: Session) -> str:
        """The image of the session's sandbox: its own, or that of its environment as it is now."""
        if not session.image:
            with contextlib.suppress(WarrenError):
                return self._environments(session.environment).image
        return session.image

    def check_limits(self, caller: Caller, environment: Environment, limits: Mapping[str, float]) -> None:
        """Raises InvalidRequest or Forbidden if no session of the caller could have these limits."""
        in_force = changed_limits(environment.limits, limits)
        check_ceilings(self._ceilings, in_force, environment.limits)
        check_allowed(caller, environment.name, in_force, 0.0)

    def _new_row(
        self,
        tenant: str,
        request: NewSession,
        caller: Caller,
        environment: Environment,
        network: NetworkRules,
        network_env: Mapping[str, str],
        secrets: Sequence[str],
        agent: Agent | None,
    ) -> Session:
        if request.thread_id:
            check_thread_id(request.thread_id)
        if request.image:
            check_image_name(request.image)
            if not may_use_image(tenant, request.image):
                raise ImageNotFound(f"there is no image {request.image!r}")
        for name, value in request.env.items():
            check_env(name, value)
        check_env_size(request.env)
        provider = request.provider or environment.provider
        gpus = environment.gpus if request.gpus is None else request.gpus
        needs = environment.needs | network_needs(network) | ({Capability.EGRESS} if secrets else set())
        needs |= {Capability.GPU} if gpus else set()
        self.lifecycle.check_provider(provider, needs)
        if (network.is_open or secrets) and Layer.NO_NETWORK in request.require:
            raise InvalidRequest(
                f"the session requires no_network, and its rules open: {network if network.is_open else 'secrets'}",
                remedy="leave no_network out of require, or send an empty network",
            )
        in_force = changed_limits(environment.limits, request.limits)
        check_ceilings(self._ceilings, in_force, environment.limits)
        sources = (request, environment) if agent is None else (request, agent, environment)
        lifetime_s = self._choose_seconds("max_lifetime_s", *sources)
        if request.max_lifetime_s is None:
            lifetime_s = min(lifetime_s, longest_life(caller))
        own_image = request.image if request.image != environment.image else ""
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
            thread_id=request.thread_id,
            idle_timeout_s=self._choose_seconds("idle_timeout_s", *sources),
            max_lifetime_s=lifetime_s,
            image=request.image,
            limits=in_force,
            key_id=caller.key_id,
            disk_mb=in_force.disk_mb,
            memory_mb=in_force.memory_mb,
            worker=next(iter(self.lifecycle.workers), ""),
            provider=provider,
            require=request.require,
            network=network,
            secrets=tuple(secrets),
            gpus=gpus,
            env={**network_env, **request.env},
            metadata=check_metadata(dict(request.metadata)),
            agent=request.agent_config if isinstance(request.agent_config, str) else "",
            agent_config=agent.as_mapping() if agent else {},
            previews=request.previews or NO_PREVIEW_RULES,
        )

    def _find_agent(self, config: str | Mapping[str, Any]) -> Agent:
        """Raises for an agent that is unknown or mistaken, and for what it names and the registry does not have."""
        if self._entries is None:
            raise InvalidRequest("there is no registry here, and no agents")
        agent = self._entries.agents.get(config) if isinstance(config, str) else Agent.inline(config)
        self._entries.check_agent(agent)
        return agent

    async def _find_secrets(
        self, tenant: str, environment: Environment, request: NewSession, caller: Caller
    ) -> Sequence[BoundSecret]:
        """Those that the environment and the request name. Raises InvalidRequest if the tenant does not have one, and
        Forbidden if the caller may not reach the hosts of one."""
        names = check_names((*environment.secrets, *request.secrets))
        if not names:
            return ()
        found = await self.lifecycle.secrets.find(tenant, names)
        missing = sorted(set(names) - {secret.name for secret in found})
        if missing:
            whose = "" if missing[0] in request.secrets else f", which the environment {environment.name!r} needs"
            raise InvalidRequest(
                f"there is no valid secret {missing[0]!r}{whose}", remedy=f"set it: warren secrets set {missing[0]}"
            )
        check_together(found)
        hosts = dict.fromkeys(f"{host}:443" for secret in found for host in secret.hosts)
        await self._check_network(NetworkRules(allow=tuple(hosts)), caller)
        return found

    def _choose_seconds(self, name: str, *sources: object) -> float:
        """The value of the first source that has one; the last source is the server's default."""
        given = (getattr(source, name) for source in (*sources, self._defaults))
        return check_seconds(name, next(value for value in given if value is not None))

    # -- finding

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

    async def find_sandbox(self, session: Session) -> Sandbox | None:
        """The session's sandbox, without using it; None if it cannot be reached."""
        if not session.state.can_run:
            return None
        with contextlib.suppress(WarrenError):
            return await self.lifecycle.worker_of(session).sandbox(session.sandbox_id)
        return None

    async def stats(self) -> SessionStats:
        counts = await self.store.count()
        workers = {worker.name: worker.stats() for worker in self.lifecycle.workers.values()}
        return SessionStats({str(state): count for state, count in counts.items()}, workers)

    # -- using

    def using(self, tenant: str, session_id: str, *, counts: bool = True) -> "SandboxUse":
        """The session and its sandbox for an `async with` block; with `counts` the block keeps the session alive."""
        return SandboxUse(self, tenant, session_id, counts)

    async def _begin_use(self, tenant: str, session_id: str, counts: bool) -> tuple[Session, Sandbox]:
        self.check_open()
        session = await self._wait_until_usable(await self.get(tenant, session_id))
        note_trace(session=session.id, environment=session.environment)
        if counts:
            session = await self._record_use(session)
        try:
            sandbox = await self.lifecycle.worker_of(session).sandbox(session.sandbox_id)
        except (SandboxLost, SandboxNotFound) as exc:
            await self._raise_why_lost(session, exc)
            raise
        if counts:
            self._uses[tenant, session_id] += 1
            self._idle.clear()
        return session, self.metering.sandbox(session, sandbox)

    def _end_use(self, tenant: str, session_id: str) -> None:
        name = (tenant, session_id)
        self._uses[name] -= 1
        if not self._uses[name]:
            del self._uses[name]
        if not self._uses:
            self._idle.set()

    async def _raise_why_lost(self, session: Session, exc: WarrenError) -> None:
        """An operation found the sandbox gone: raises whether the session was ended or its sandbox died.

        Returns if the store does not have the session any more.
        """
        current = await self.store.get(session.tenant, session.id)
        if current is not None and current.state.can_be_lost:
            current = await self.lifecycle.mark_lost(current, exc.message)
        if current is not None:
            raise unusable_error(current) from exc

    async def _wait_until_usable(self, session: Session) -> Session:
        if session.state is SessionState.CREATING:
            session = await self.lifecycle.wait_until_settled(session)
        if not session.state.can_run:
            raise unusable_error(session)
        return session

    async def record_use(self, tenant: str, session_id: str) -> None:
        """For a use within a stream that does not count by being open."""
        await self._record_use(await self.get(tenant, session_id))

    async def record_use_of(self, session: Session) -> None:
        """The same for a session that was just read."""
        await self._record_use(session)

    async def _record_use(self, session: Session) -> Session:
        """Saves the use, later if the store cannot write now: that must not stop anybody's work."""
        try:
            return await self._save_use(session)
        except (NoSpace, Unavailable):
            self._unsaved_uses.add((session.tenant, session.id))
            return session

    async def _save_use(self, session: Session, *, at_once: bool = False) -> Session:
        """Saves that the session is used now, if the last saved use is old enough to matter."""
        while True:
            now = self.clock.now()
            if not session.state.can_run:
                raise unusable_error(session)
            if not at_once and now - session.used < session.slack_s:
                return session
            changed = session.changed(used=max(session.used, now))
            if await self.store.swap(changed):
                return changed
            session = await self.get(session.tenant, session.id)

    async def save_uses(self) -> None:
        """Saves the use of every session that is in use now, and the uses that the store could not save before."""
        for name in {*self._uses, *self._unsaved_uses}:
            self._unsaved_uses.discard(name)
            try:
                await self.record_use(*name)
            except (NoSpace, Unavailable):
                self._unsaved_uses.add(name)
            except WarrenError:
                continue

    def is_in_use(self, session: Session) -> bool:
        name = (session.tenant, session.id)
        return name in self._uses or name in self._unsaved_uses

    # -- changing

    async def keep_alive(self, tenant: str, session_id: str) -> Session:
        return await self._save_use(await self._wait_until_usable(await self.get(tenant, session_id)), at_once=True)

    async def patch(
        self,
        tenant: str,
        session_id: str,
        *,
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        metadata: Mapping[str, str | None] | None = None,
    ) -> Session:
        """Sets time-outs, counted from the same beginnings as before, and merges metadata: None removes an entry."""
        while True:
            session = await self._wait_until_usable(await self.get(tenant, session_id))
            merged = {**session.metadata, **(metadata or {})}
            idle = session.idle_timeout_s if idle_timeout_s is None else idle_timeout_s
            lifetime = session.max_lifetime_s if max_lifetime_s is None else max_lifetime_s
            check_lifetime(current_caller(), lifetime)
            changed = session.changed(
                idle_timeout_s=check_seconds("idle_timeout_s", idle),
                max_lifetime_s=check_seconds("max_lifetime_s", lifetime),
                metadata=check_metadata({name: value for name, value in merged.items() if value is not None}),
            )
            if await self.store.swap(changed):
                given = {"idle_timeout_s": idle_timeout_s, "max_lifetime_s": max_lifetime_s, "metadata": metadata}
                self.lifecycle.report_changed(changed, *(name for name, value in given.items() if value is not None))
                return changed

    async def set_network(self, tenant: str, session_id: str, rules: NetworkRules) -> Session:
        """Replaces what the sandbox may reach; when it returns, the new rules hold. If it fails after the rules were
        saved, the sandbox reaches nothing until they could be applied."""
        async with self.lifecycle.network_lock(session_id):
            while True:
                session = await self._wait_until_usable(await self.get(tenant, session_id))
                self.lifecycle.worker_of(session)
                if rules.is_open and Layer.NO_NETWORK in session.require:
                    raise Conflict(
                        f"session {session_id} was created with the requirement no_network",
                        remedy="create a session without it",
                    )
                self.lifecycle.check_provider(session.provider, network_needs(rules))
                presets = await self._check_network(rules, current_caller())
                env = {**presets.env(rules.allow), **session.env}
                changed = session.changed(network=rules, env=env, used=max(session.used, self.clock.now()))
                if await self.store.swap(changed):
                    break
            if rules.is_open or session.network.is_open:
                await self.lifecycle.apply_network(changed)
            self.lifecycle.report_changed(changed, "network")
            return changed

    async def change_previews(
        self, tenant: str, session_id: str, change: Callable[[PreviewRules], PreviewRules]
    ) -> Session:
        while True:
            session = await self._wait_until_usable(await self.get(tenant, session_id))
            changed = session.changed(previews=change(session.previews))
            if await self.store.swap(changed):
                return changed

    # -- ending

    async def delete(self, tenant: str, session_id: str) -> Session:
        """Ends a session and waits until its sandbox is destroyed. Ending it again changes nothing."""
        session = await self.get(tenant, session_id)
        while session.active:
            if session.state is SessionState.STOPPING:
                return await self.lifecycle.wait_until_settled(session)
            ended = await self.lifecycle.end(session, EndReason.DELETED)
            session = ended or await self.get(tenant, session_id)
        return session

    async def stop(self, grace_s: float, *, destroy: bool) -> None:
        """Drains the sessions; with `destroy` it then ends them, otherwise the next server takes them over."""
        await self.drain(grace_s)
        if destroy:
            for session in await self.store.active():
                if not session.state.is_in_transition:
                    stopping = session.moved_to(SessionState.STOPPING, reason=EndReason.SHUTDOWN)
                    if await self.store.swap(stopping):
                        self.lifecycle.begin_end(stopping)
        await self.lifecycle.wait_for_tasks()

    async def drain(self, grace_s: float) -> None:
        """Accepts no more work, and waits up to `grace_s` until no operation runs."""
        self.stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
                await self.lifecycle.wait_until_started()

    def check_open(self) -> None:
        if self.stopping:
            raise Stopping("the server is being stopped", retry_after_s=5)


class SandboxUse:
    """One operation in a session's sandbox. `session` and `sandbox` are set inside the `async with` block."""

    __slots__ = ("_begun", "_counts", "_session_id", "_sessions", "_tenant", "sandbox", "session")

    session: Session
    sandbox: Sandbox

    def __init__(self, sessions: Sessions, tenant: str, session_id: str, counts: bool) -> None:
        self._sessions, self._tenant, self._session_id, self._counts = sessions, tenant, session_id, counts

    async def __aenter__(self) -> tuple[Session, Sandbox]:
        sessions = self._sessions
        in_use = self.session, self.sandbox = await sessions._begin_use(self._tenant, self._session_id, self._counts)
        self._begun = sessions.clock.now()
        return in_use

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        sessions = self._sessions
        try:
            if isinstance(exc, SandboxLost):
                await sessions._raise_why_lost(self.session, exc)
        finally:
            if self._counts:
                sessions._end_use(self._tenant, self._session_id)
                if sessions.clock.now() - self._begun >= self.session.slack_s:
                    await run_shielded(self._save_end_of_use())

    async def _save_end_of_use(self) -> None:
        with contextlib.suppress(WarrenError):
            await self._sessions.record_use(self._tenant, self._session_id)
