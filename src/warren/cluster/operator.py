"""The cluster for its operator: status, drain, remove, and the figures that a coordinator reports.

The coordinator's routes and `/ready` call it as `interfaces.cluster.ClusterControl`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from warren.cluster.demand import DemandGoal, DemandWatch
from warren.cluster.failover import Failover
from warren.cluster.fleet import Fleet
from warren.cluster.roster import LEASE_S, Member, Roster
from warren.interfaces.cluster import ClusterDemand, ClusterStatus, WorkerStatus
from warren.interfaces.worker import WorkerStats
from warren.model.errors import Unavailable
from warren.model.metrics import LatestMetrics

FetchMetrics = Callable[[str, str, Sequence[str]], Awaitable[Mapping[str, LatestMetrics]]]


class ClusterOperator:
    """`fetch_stats` asks the worker at an address for its figures, `fetch_metrics` for those of a tenant's sessions."""

    def __init__(
        self,
        fleet: Fleet,
        roster: Roster,
        failover: Failover,
        fetch_stats: Callable[[str], Awaitable[WorkerStats]],
        fetch_metrics: FetchMetrics,
        goal: DemandGoal,
    ) -> None:
        self._fleet = fleet
        self._roster = roster
        self._failover = failover
        self._fetch_stats = fetch_stats
        self._fetch_metrics = fetch_metrics
        self._demand = DemandWatch(goal)

    def status(self) -> ClusterStatus:
        fleet = self._fleet
        redis = "there" if fleet.has_redis else "away"
        workers = [_describe(member) for member in fleet.members.values()]
        return ClusterStatus(fleet.me.id, redis, fleet.settled, workers)

    def look(self) -> None:
        """To be called with each new view of the workers."""
        if self._fleet.has_redis and self._fleet.settled:  # without them the view is old, or has gaps
            self._demand.look(self.status().workers)

    def demand(self) -> ClusterDemand:
        return self._demand.demand()

    async def drain(self, worker_id: str, draining: bool) -> WorkerStatus:
        await self._roster.set_draining(worker_id, draining)
        await self._fleet.refresh()
        return _describe(self._fleet.member(worker_id))

    async def remove(self, worker_id: str) -> None:
        """Forgets a dead worker and gives up its sessions now.

        Raises Unavailable until workers that went on without Redis have had the time to report again: see
        `Fleet.redis_stable_s`.
        """
        await self._fleet.refresh()
        stable_s = self._fleet.redis_stable_s if self._fleet.settled else 0.0
        if not self._fleet.member(worker_id).alive and stable_s < LEASE_S:
            raise Unavailable(
                "this coordinator has not seen the cluster for long enough to know who is dead", retry_after_s=LEASE_S
            )
        await self._roster.remove(worker_id)
        await self._fleet.refresh()
        await self._failover.sweep(self._fleet.members.values())

    def check_ready(self) -> None:
        """Raises Unavailable if no worker is alive. A coordinator without Redis is ready: running sessions go on."""
        if not any(member.compatible and not member.rejects_us for member in self._alive()):
            raise Unavailable("no worker of the cluster is there", retry_after_s=2)

    def pool_size(self) -> int:
        return sum(sum(member.report.ready.values()) for member in self._alive())

    def claimed(self) -> int:
        return sum(member.report.claimed for member in self._alive())

    async def figures(self) -> Mapping[str, WorkerStats]:
        """Returns the current figures of every worker that responds, by worker id."""
        alive = self._alive()
        found = await asyncio.gather(*(self._fetch_stats(member.address) for member in alive), return_exceptions=True)
        return {member.id: stats for member, stats in zip(alive, found, strict=True) if isinstance(stats, WorkerStats)}

    async def session_metrics(
        self, tenant: str, session_ids: Mapping[str, Sequence[str]]
    ) -> Mapping[str, LatestMetrics]:
        alive = [member for member in self._alive() if member.id in session_ids]
        asked = (self._fetch_metrics(member.address, tenant, session_ids[member.id]) for member in alive)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return {name: one for answer in answers if isinstance(answer, Mapping) for name, one in answer.items()}

    def _alive(self) -> list[Member]:
        return [member for member in self._fleet.members.values() if member.alive]


def _describe(member: Member) -> WorkerStatus:
    report = member.report
    return WorkerStatus(
        id=member.id,
        state=_state(member),
        address=member.address,
        version=report.version,
        protocol=report.protocol,
        provider=",".join(report.all_providers),
        labels=report.labels,
        sessions=report.claimed,
        capacity=report.capacity,
        pressure=report.pressure,
        memory=report.memory,
        ready=report.ready,
        waiting=report.waiting,
        epoch=member.epoch,
        lease_left_s=round(member.lease_left_s, 1),
    )


def _state(member: Member) -> str:
    if not member.alive:
        return "dead"
    if not member.compatible or member.rejects_us:
        return "incompatible"
    if member.report.leaving:
        return "stopping"
    return "draining" if member.draining else "ready"
