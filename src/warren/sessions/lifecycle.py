"""The life of a session: it gets a sandbox, it may lose it, it ends.

A session is saved before its sandbox exists. Each change of its row is atomic and follows the table in
model/session.py. Whoever loses the race for a change reads the row again and acts on what the row then says. Tasks of
`SessionActivity`, not of a request, create and destroy sandboxes: a caller that disconnects neither stops them half-way
nor makes the server lose track of them.

`Lifecycle` puts together the parts that share this: starting.py, ending.py, losses.py, networks.py, pausing.py,
hibernation.py, secret_renewal.py.
"""

from dataclasses import dataclass, field
from typing import Final

from warren.interfaces.secrets import NoSecrets, SecretSource
from warren.sessions.activity import SessionActivity
from warren.sessions.allowances import PayerOf, unbounded
from warren.sessions.artifacts import Artifacts
from warren.sessions.basis import SessionBasis
from warren.sessions.egress import EgressRules
from warren.sessions.ending import SessionEnding
from warren.sessions.event_hub import EventHub
from warren.sessions.hibernation import SessionHibernation
from warren.sessions.losses import SessionLosses
from warren.sessions.metrics import MetricsMeter
from warren.sessions.network_meter import NetworkMeter
from warren.sessions.networks import SessionNetworks
from warren.sessions.pausing import SessionPausing
from warren.sessions.reports import SessionReports
from warren.sessions.secret_renewal import SecretRenewal
from warren.sessions.snapshots.service import Snapshots
from warren.sessions.starting import SessionStarting, StartWaits
from warren.sessions.volumes.service import VolumeRules, Volumes

STEPS: Final = (
    *("stored", "claimed", "running", "stopping", "destroyed", "ended"),
    *("pausing", "paused", "resuming", "resumed"),
    *("hibernating", "hibernated", "restoring", "restored"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleOptions:
    """What a process gives its sessions beside sandboxes. Without `artifacts` nothing of a sandbox is saved, without
    `snapshots` no session starts from one."""

    waits: StartWaits = field(default_factory=StartWaits)
    events: EventHub = field(default_factory=EventHub)
    egress: EgressRules = field(default_factory=EgressRules)
    network_meter: NetworkMeter | None = None
    metrics: MetricsMeter | None = None
    secrets: SecretSource = field(default_factory=NoSecrets)
    artifacts: Artifacts | None = None
    payer_of: PayerOf = unbounded
    snapshots: Snapshots | None = None
    volumes: VolumeRules = field(default_factory=VolumeRules)


class Lifecycle:
    def __init__(self, basis: SessionBasis, options: LifecycleOptions) -> None:
        self.basis = basis
        self.secrets = options.secrets
        self.artifacts = options.artifacts
        self.snapshots = options.snapshots
        self.metrics = options.metrics or MetricsMeter(basis.clock, basis.sandbox_of)
        self.activity = SessionActivity(self.metrics)
        self.reports = SessionReports(options.events, basis.clock, basis.recorder)
        meter = options.network_meter or NetworkMeter(basis.clock)
        self.networks = SessionNetworks(basis, self.activity.tasks, options.egress, meter, options.secrets)
        self.secret_renewal = SecretRenewal(basis, self.networks, options.secrets)
        parts = basis, self.activity, self.reports
        self.ending = SessionEnding(*parts, self.networks, options.artifacts, options.snapshots)
        self.volumes = Volumes(basis, options.volumes, options.events)
        self.starting = SessionStarting(
            *parts, self.networks, self.ending, options.waits, self.volumes, options.snapshots
        )
        self.losses = SessionLosses(*parts, self.ending)
        self.hibernation = SessionHibernation(*parts, self.ending, self.starting, options.snapshots)
        self.pausing = SessionPausing(
            *parts, self.networks, self.ending, self.losses, options.payer_of, self.hibernation
        )

    def __repr__(self) -> str:
        return f"<Lifecycle {self.activity!r}>"

    async def wait_for_tasks(self) -> None:
        """Waits until no sandbox is being made or destroyed."""
        self.networks.stop_trying()
        await self.activity.tasks.wait()
