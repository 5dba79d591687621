"""Sessions over a fake provider, on a clock that stands still: what tests of the coordinator share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from warren.config.registry import Registry, packaged_registry
from warren.governance.tenancy import Tenancy
from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import NO_CAPS, Caps
from warren.interfaces.worker import Claim, Claimed
from warren.kernel.signing import Signer
from warren.model.environment import Environment, PoolSize
from warren.model.errors import NoSpace, WarrenError
from warren.model.metrics import DEFAULT_ALERTS, AlertThresholds
from warren.model.policy import Policy
from warren.model.session import DEFAULT_TENANT, Session
from warren.sessions.basis import SessionBasis
from warren.sessions.lifecycle import Lifecycle, LifecycleOptions
from warren.sessions.manager import Sessions
from warren.sessions.metrics import MetricsMeter
from warren.sessions.network_meter import NetworkMeter
from warren.sessions.new_rows import Offer
from warren.sessions.new_session import Defaults
from warren.sessions.reaper import Reaper
from warren.sessions.snapshots.records import SnapshotRecords
from warren.sessions.snapshots.service import SnapshotOptions, Snapshots
from warren.sessions.snapshots.signed_files import MAC, PURPOSE
from warren.stores.memory import MemoryStore
from warren.testing.fake_provider import FakeProvider
from warren.testing.manual_clock import ManualClock
from warren.testing.memory_audit import MemoryAudit
from warren.worker.guard import MachineGuard
from warren.worker.options import WorkerOptions
from warren.worker.worker import LocalWorker

TENANT = DEFAULT_TENANT


class StubbornWorker(LocalWorker):
    """Raises what it was told to raise, and finds sandboxes as slowly as it was told to."""

    no_claims: WarrenError | None = None
    no_destroying: Exception | None = None
    no_sandboxes: WarrenError | None = None
    slow_s = 0.0

    async def claim(self, claim: Claim) -> Claimed:
        if self.no_claims is not None:
            await asyncio.sleep(0.01)
            raise self.no_claims
        return await super().claim(claim)

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        if self.no_sandboxes is not None:
            raise self.no_sandboxes
        if self.slow_s:
            await self._options.clock.sleep(self.slow_s)
        return await super().sandbox(sandbox_id)

    async def destroy(self, sandbox_id: str) -> None:
        if self.no_destroying is not None:
            raise self.no_destroying
        await super().destroy(sandbox_id)


class FullStore(MemoryStore):
    """A store that may be full: it takes new sessions and no changes. `first` is done before the next change."""

    full = False
    first: Callable[[], Awaitable[object]] | None = None

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        if self.full:
            raise NoSpace("the disk is full")
        first, self.first = self.first, None
        if first is not None:
            await first()
        return await super().swap(session, caps)


@dataclass
class World:
    """`restarted` gives the world as a new server finds it: the same store, the same sandboxes."""

    clock: ManualClock = field(default_factory=ManualClock)
    provider: FakeProvider = field(default_factory=FakeProvider)
    store: FullStore = field(default_factory=FullStore)
    fault: Callable[[str], None] = lambda _: None
    pool: PoolSize = field(default_factory=lambda: PoolSize(0, 0, 0))
    policy: Policy = field(default_factory=Policy)
    alerts: AlertThresholds = DEFAULT_ALERTS
    recorder: Recorder = NO_RECORDER
    in_cluster: bool = False
    defaults: Defaults = field(default_factory=Defaults)
    snapshots: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.worker = StubbornWorker(
            "local",
            [self.provider],
            environment,
            WorkerOptions(
                clock=self.clock,
                guard=MachineGuard(Path("/tmp")),
                default_environment="base",
                default_pool=self.pool,
                recorder=self.recorder,
            ),
        )
        self.audit = MemoryAudit()
        self.tenancy = Tenancy(
            self.store.records, self.clock, self.environment, audit=self.audit, recorder=self.recorder
        )
        events = self.tenancy.events
        networks = self.tenancy.networks
        meter = NetworkMeter(self.clock, networks.report, networks.bounds_of, recorder=self.recorder)
        self.basis = SessionBasis(
            self.store,
            self.worker,
            self.clock,
            self.in_cluster,
            self.recorder,
            fault=lambda step: self.fault(step),
        )
        options = SnapshotOptions(
            signer=Signer([bytes(32)], PURPOSE, MAC), environment_of=self.environment, **self.snapshots
        )
        self.lifecycle = Lifecycle(
            self.basis,
            LifecycleOptions(
                events=events,
                network_meter=meter,
                metrics=MetricsMeter(self.clock, self.basis.sandbox_of, self.environment, events.publish),
                secrets=self.tenancy.secrets,
                payer_of=self.tenancy.payer_of,
                snapshots=Snapshots(
                    SnapshotRecords(self.store.records, self.clock), self.worker, self.clock, options, events
                ),
            ),
        )
        offer = Offer(environment, self.defaults, entries=Registry(packaged_registry()))
        self.sessions = Sessions(self.lifecycle, self.tenancy.metering, offer)
        self.reaper = Reaper(self.sessions)

    def environment(self, name: str) -> Environment:
        return replace(environment(name), policy=self.policy, alerts=self.alerts)

    async def session(self, session: Session) -> Session:
        return await self.sessions.get(session.tenant, session.id)


def environment(name: str) -> Environment:
    return Environment(name, "base")


@contextlib.asynccontextmanager
async def world(**parts: object) -> AsyncIterator[World]:
    made = World(**parts)  # type: ignore[arg-type]
    await made.reaper.recover()
    await made.worker.start()
    try:
        yield made
    finally:
        await made.lifecycle.wait_for_tasks()
        await made.tenancy.close()
        await made.worker.close()
