"""The cluster as its operator sees it: status, draining, removing; and what a coordinator says of it in passing."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from warren.cluster.failover import Failover
from warren.cluster.fleet import Fleet
from warren.cluster.members import LEASE_S, Member
from warren.cluster.roster import Roster
from warren.interfaces.cluster import ClusterStatus, WorkerStatus
from warren.interfaces.worker import WorkerStats
from warren.model.errors import Unavailable


class ClusterOperator:
    """`stats` asks the worker at an address what it has to say of itself."""

    def __init__(
        self, fleet: Fleet, roster: Roster, failover: Failover, stats: Callable[[str], Awaitable[WorkerStats]]
    ) -> None:
        self._fleet = fleet
        self._roster = roster
        self._failover = failover
        self._stats = stats

    def status(self) -> ClusterStatus:
        fleet = self._fleet
        redis = "there" if fleet.has_redis else "away"
        workers = [_status_of(member) for member in fleet.members.values()]
        return ClusterStatus(fleet.me.id, redis, fleet.settled, workers)

    async def drain(self, worker_id: str, draining: bool) -> WorkerStatus:
        await self._roster.drain(worker_id, draining)
        await self._fleet.look()
        return _status_of(self._fleet.member(worker_id))

    async def remove(self, worker_id: str) -> None:
        """A dead worker is forgotten, and its sessions are given up now. Not before workers that have done without
        Redis have had the time to be heard of again: see `Fleet.steady_s`."""
        await self._fleet.look()
        known_s = self._fleet.steady_s if self._fleet.settled else 0.0
        if not self._fleet.member(worker_id).alive and known_s < LEASE_S:
            raise Unavailable(
                "this coordinator has not seen the cluster for long enough to know who is dead", retry_after_s=LEASE_S
            )
        await self._roster.remove(worker_id)
        await self._fleet.look()
        await self._failover.sweep({member.id for member in self._fleet.members.values() if member.alive})

    def check_ready(self) -> None:
        """Running sessions are served without Redis; without any worker nothing is."""
        if not any(member.alive and member.compatible for member in self._fleet.members.values()):
            raise Unavailable("no worker of the cluster is there", retry_after_s=2)

    def pool_size(self) -> int:
        return sum(sum(member.report.ready.values()) for member in self._fleet.members.values() if member.alive)

    def claimed(self) -> int:
        return sum(member.report.claimed for member in self._fleet.members.values() if member.alive)

    async def figures(self) -> Mapping[str, WorkerStats]:
        """Of every worker that answers, what it says now."""
        alive = [member for member in self._fleet.members.values() if member.alive]
        found = await asyncio.gather(*(self._stats(member.address) for member in alive), return_exceptions=True)
        return {member.id: stats for member, stats in zip(alive, found, strict=True) if isinstance(stats, WorkerStats)}


def _status_of(member: Member) -> WorkerStatus:
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
        ready=report.ready,
        waiting=report.waiting,
        epoch=member.epoch,
        lease_left_s=round(member.left_s, 1),
    )


def _state(member: Member) -> str:
    if not member.alive:
        return "dead"
    if not member.compatible:
        return "incompatible"
    if member.report.leaving:
        return "stopping"
    return "draining" if member.draining else "ready"
