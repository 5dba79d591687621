"""Turns a request for a session into the row that is stored, and refuses what the caller may not have."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warren.interfaces.entries import RegistryEntries
from warren.interfaces.metering import Metering
from warren.model.access import Caller
from warren.model.agent import Agent
from warren.model.capability import Capability, network_needs
from warren.model.egress import Presets
from warren.model.environment import Environment
from warren.model.errors import ImageNotFound, InvalidRequest
from warren.model.image_reference import is_image_reference
from warren.model.mismatch import Mismatch
from warren.model.network import NO_NETWORK, NetworkRules
from warren.model.preview import NO_PREVIEW_RULES
from warren.model.secrets import BoundSecret, authority_variables, broker_variables, check_names, check_together
from warren.model.session import OnIdle, Session, check_metadata, check_seconds, check_thread_id, new_session_id
from warren.model.session_log import LogLevel, read_level
from warren.model.snapshot import Snapshot
from warren.model.spec import NO_CEILINGS, Ceilings, Layer, check_env, check_env_size, check_image_name
from warren.model.tenant_images import may_use_image
from warren.model.volume import rendered
from warren.sessions.allowances import check_allowed, check_ceilings, longest_life
from warren.sessions.lifecycle import Lifecycle
from warren.sessions.mismatches import find_mismatch
from warren.sessions.new_session import Defaults, NewSession, changed_limits, with_agent, with_image
from warren.sessions.request_context import session_id_or
from warren.sessions.snapshots.beginnings import check_beginning, with_room, with_snapshot

LevelOf = Callable[[str, Environment, str], Awaitable[LogLevel]]


async def _no_log(tenant: str, environment: Environment, asked: str) -> LogLevel:
    read_level(asked)
    return LogLevel.OFF


@dataclass(frozen=True, slots=True)
class Offer:
    """What sessions can be made of here. Without `entries` there are no agents. `log_level` says how much is kept of
    what a session of a tenant and an environment does that asks for this level, which may be empty."""

    environments: Callable[[str], Environment]
    defaults: Defaults
    ceilings: Ceilings = NO_CEILINGS
    entries: RegistryEntries | None = None
    log_level: LevelOf = _no_log


class NewRows:
    def __init__(self, lifecycle: Lifecycle, metering: Metering, offer: Offer) -> None:
        self._lifecycle = lifecycle
        self._clock = lifecycle.basis.clock
        self._metering = metering
        self._offer = offer

    async def make(self, tenant: str, request: NewSession, caller: Caller) -> Session:
        """Raises InvalidRequest, Forbidden, QuotaExceeded, and what finding the parts of the session raises."""
        request, agent = self.complete(request)
        snapshot = await self._find_snapshot(tenant, request.snapshot)
        if snapshot is not None:
            request = with_snapshot(request, snapshot, self._offer.environments)
        environment = self._offer.environments(request.environment or self._offer.defaults.environment)
        snapshot = snapshot or await self._find_snapshot(tenant, environment.snapshot)
        rules = environment.network if request.network is None else request.network
        is_open, variables = rules.is_open, dict[str, str]()
        secrets: Sequence[BoundSecret] = ()
        if is_open:
            variables = (await self.check_network(rules, caller, environment.network)).env(rules.allow)
        if rules.headers_in_force():
            variables |= authority_variables()
        if environment.secrets or request.secrets:
            secrets = await self._find_secrets(tenant, environment, request, caller)
            variables |= broker_variables(secrets)
        _check_parts(tenant, request)
        provider = request.provider or ("" if snapshot is None else snapshot.provider) or environment.provider
        gpus = environment.gpus if request.gpus is None else request.gpus
        if (is_open or secrets) and Layer.NO_NETWORK in request.require:
            raise InvalidRequest(
                f"the session requires no_network, and its rules open: {rules if is_open else 'secrets'}",
                remedy="leave no_network out of require, or send an empty network",
            )
        in_force = changed_limits(environment.limits, request.limits)
        if snapshot is not None:
            check_beginning(snapshot, environment, request.image, provider)
            in_force = with_room(in_force, snapshot, request.limits)
        check_ceilings(self._offer.ceilings, in_force, environment.limits)
        sources = (request, environment) if agent is None else (request, agent, environment)
        lifetime_s = self._choose_seconds("max_lifetime_s", *sources)
        if request.max_lifetime_s is None:
            lifetime_s = min(lifetime_s, longest_life(caller))
        own_image = request.image if request.image != environment.image else ""
        check_allowed(caller, environment.name, in_force, lifetime_s, own_image, request.limits)
        level = await self._offer.log_level(tenant, environment, request.logs)
        now = self._clock.now()
        return Session(
            id=session_id_or(new_session_id),
            tenant=tenant,
            environment=environment.name,
            epoch=self._clock.epoch,
            created_at=self._clock.wall(),
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
            worker=self._lifecycle.basis.worker_name,
            provider=provider,
            require=request.require,
            network=rules,
            secrets=tuple(secret.name for secret in secrets),
            gpus=gpus,
            env={**variables, **request.env},
            metadata=check_metadata(dict(request.metadata)),
            agent=request.agent_config if isinstance(request.agent_config, str) else "",
            agent_config=agent.as_mapping() if agent else {},
            previews=request.previews or NO_PREVIEW_RULES,
            on_idle=self._choose_on_idle(request, environment, provider),
            on_timeout=self._check_pause(request.on_timeout, provider) if request.on_timeout else OnIdle.END,
            renewal_s=request.renewal_s,
            max_paused_s=self._choose_seconds("max_paused_s", request, environment),
            hibernate_after_s=self._offer.defaults.hibernate_after_s if self._can_hibernate(provider) else 0.0,
            auto_resume=request.auto_resume,
            snapshot="" if snapshot is None else snapshot.id,
            forked_from=request.forked_from,
            logs="" if level is LogLevel.OFF else str(level),
        )

    def complete(self, request: NewSession) -> tuple[NewSession, Agent | None]:
        """Returns the request with what only its agent says, and with an image that it names as its environment as its
        image."""
        agent = self._find_agent(request.agent_config) if request.agent_config else None
        request = with_agent(request, agent) if agent else request
        return with_image(request) if is_image_reference(request.environment) else request, agent

    def check_provider(self, row: Session) -> None:
        """Raises InvalidRequest if the row's provider is not here, or lacks what the session needs."""
        needs = self._offer.environments(row.environment).needs | network_needs(row.network)
        needs |= {Capability.EGRESS} if row.secrets else set()
        needs |= {Capability.SNAPSHOTS} if row.snapshot else set()
        self._lifecycle.starting.check_provider(row.provider, needs | ({Capability.GPU} if row.gpus else set()))

    def mismatch(self, session: Session, request: NewSession) -> Mismatch:
        """Returns where the session of the request's thread has something else than the request names."""
        environment = self._offer.environments(session.environment)
        image, limits = session.image or environment.image, session.limits or environment.limits
        return find_mismatch(session, self.complete(request)[0], image, limits)

    def _choose_on_idle(self, request: NewSession, environment: Environment, provider: str) -> OnIdle:
        """What the server does by default, a provider need not be able to do. Raises InvalidRequest if it lacks what
        was asked for."""
        starting, asked = self._lifecycle.starting, request.on_idle or environment.on_idle
        if asked is None:
            usual = self._offer.defaults.on_idle
            if usual is OnIdle.HIBERNATE and not self._can_hibernate(provider):
                usual = OnIdle.PAUSE
            return usual if starting.can(provider, Capability.PAUSE) else OnIdle.END
        return self._check_pause(asked, provider)

    def _check_pause(self, asked: OnIdle, provider: str) -> OnIdle:
        if asked is not OnIdle.END:
            needs = {Capability.PAUSE, Capability.SNAPSHOTS} if asked is OnIdle.HIBERNATE else {Capability.PAUSE}
            self._lifecycle.starting.check_provider(provider, needs)
        return asked

    def _can_hibernate(self, provider: str) -> bool:
        return self._lifecycle.starting.can(provider, Capability.PAUSE, Capability.SNAPSHOTS)

    async def _find_snapshot(self, tenant: str, which: str) -> Snapshot | None:
        if not which:
            return None
        if self._lifecycle.snapshots is None:
            raise InvalidRequest("this server keeps no snapshots")
        return await self._lifecycle.snapshots.records.get_usable(tenant, which)

    async def with_volumes(self, row: Session, request: NewSession) -> Session:
        """Returns the new session with its volumes, which are made if need be: those of the request, and those of its
        environment at other paths. Raises InvalidRequest, and what Volumes.choose raises."""
        environment = self._offer.environments(row.environment)
        if not (environment.volumes or request.volumes):
            return row
        self._lifecycle.starting.check_provider(row.provider, {Capability.VOLUMES})
        values = {"tenant": row.tenant, "user": row.metadata.get("user", ""), "thread": row.thread_id}
        taken = {wish.path for wish in request.volumes}
        usual = [rendered(wish, values) for wish in environment.volumes if wish.path not in taken]
        return replace(row, volumes=await self._lifecycle.volumes.choose(row.tenant, (*usual, *request.volumes)))

    def check_limits(self, caller: Caller, environment: Environment, limits: Mapping[str, float]) -> None:
        """Raises InvalidRequest or Forbidden if no session of the caller could have these limits."""
        in_force = changed_limits(environment.limits, limits)
        check_ceilings(self._offer.ceilings, in_force, environment.limits)
        check_allowed(caller, environment.name, in_force, 0.0, asked=limits)

    async def check_network(
        self, rules: NetworkRules, caller: Caller, environment: NetworkRules = NO_NETWORK, *, opens: bool = False
    ) -> Presets:
        """Returns the presets that the rules name. Raises Forbidden if the caller may not have these rules, and
        QuotaExceeded if nothing is left of its bytes and the rules, or something beside them (`opens`), need some."""
        if rules.is_open or opens:
            await self._metering.check_network(caller)
        return await self._lifecycle.networks.egress.check(rules, caller, environment)

    def _find_agent(self, config: str | Mapping[str, Any]) -> Agent:
        """Raises for an agent that is unknown or mistaken, and for one that names what the registry does not have."""
        entries = self._offer.entries
        if entries is None:
            raise InvalidRequest("there is no registry here, and no agents")
        agent = entries.agents.get(config) if isinstance(config, str) else Agent.inline(config)
        entries.check_agent(agent)
        return agent

    async def _find_secrets(
        self, tenant: str, environment: Environment, request: NewSession, caller: Caller
    ) -> Sequence[BoundSecret]:
        """Returns the secrets that the environment and the request name. Raises InvalidRequest if the tenant does not
        have one, and Forbidden if the caller may not reach the hosts of one."""
        names = check_names((*environment.secrets, *request.secrets))
        found = await self._lifecycle.secrets.find(tenant, names)
        missing = sorted(set(names) - {secret.name for secret in found})
        if missing:
            whose = "" if missing[0] in request.secrets else f", which the environment {environment.name!r} needs"
            raise InvalidRequest(
                f"there is no valid secret {missing[0]!r}{whose}", remedy=f"set it: warren secrets set {missing[0]}"
            )
        check_together(found)
        hosts = dict.fromkeys(f"{host}:443" for secret in found for host in secret.hosts)
        await self.check_network(NetworkRules(allow=tuple(hosts)), caller)
        return found

    def _choose_seconds(self, name: str, *sources: object) -> float:
        """The value of the first source that has one; the last source is the server's default."""
        for source in (*sources, self._offer.defaults):
            if (value := getattr(source, name)) is not None:
                return check_seconds(name, value)
        raise AssertionError(f"the server has no default {name}")


def _check_parts(tenant: str, request: NewSession) -> None:
    if request.thread_id:
        check_thread_id(request.thread_id)
    if request.image:
        check_image_name(request.image)
        if not may_use_image(tenant, request.image):
            raise ImageNotFound(f"there is no image {request.image!r}")
    if request.env:
        for name, value in request.env.items():
            check_env(name, value)
        check_env_size(request.env)
