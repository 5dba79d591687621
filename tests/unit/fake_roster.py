"""A roster without Redis, on a clock that stands still: it keeps the same contract (contract/roster_contract.py)."""

from dataclasses import dataclass, replace

from warren.cluster.roster import (
    LEASE_S,
    ClusterSnapshot,
    HeartbeatReply,
    LeaseStatus,
    Member,
    Peer,
    Report,
    Roster,
    unknown_worker,
)
from warren.model.errors import Conflict, Unavailable
from warren.stores.redis_roster_scripts import COORDINATOR_S
from warren.testing.manual_clock import ManualClock


@dataclass(frozen=True, slots=True)
class _Entry:
    report: Report
    epoch: int
    until: float
    draining: bool = False
    leaving: bool = False
    comes_back: bool = False

    def as_member(self, now: float) -> Member:
        draining = self.draining or self.leaving
        return Member(self.report, self.epoch, self.until - now, draining, self.comes_back and not self.draining)


class FakeRoster(Roster):
    """`away`: it answers nobody. `seen_at` are the coordinators, and when each was heard of last."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.away = False
        self.settled = True
        self.run_id = "run-1"
        self.entries: dict[str, _Entry] = {}
        self.seen_at: dict[Peer, float] = {}
        self.beats = 0
        self.empty_since = float("inf")

    async def register(self, report: Report, known_epoch: int) -> int:
        self._check_available()
        old = self.entries.get(report.id)
        if old and old.report.home != report.home and old.until > self.clock.now():
            raise Conflict(
                f"there is another worker called {report.id!r}, at {old.report.address}", remedy="use --worker-id"
            )
        epoch = max(old.epoch if old else 0, known_epoch) + 1
        draining = bool(old and old.draining)
        self.entries[report.id] = _Entry(report, epoch, self.clock.now() + LEASE_S, draining)
        self._settle()
        return epoch

    async def beat(self, report: Report, epoch: int) -> HeartbeatReply:
        self._check_available()
        self.beats += 1
        return self._renew(report.id, epoch, report)

    async def renew(self, worker_id: str, epoch: int) -> HeartbeatReply:
        self._check_available()
        return self._renew(worker_id, epoch, None)

    async def leave(self, report: Report, epoch: int) -> None:
        self._check_available()
        old = self.entries.get(report.id)
        if old is not None and old.epoch == epoch:
            self.entries[report.id] = replace(old, report=report)

    async def watch(self, me: Peer) -> ClusterSnapshot:
        self._check_available()
        self.seen_at = {peer: at for peer, at in self.seen_at.items() if peer.id != me.id}
        self.seen_at[me] = self.clock.now()
        self._settle()
        now = self.clock.now()
        members = [one.as_member(now) for one in self.entries.values()]
        members.sort(key=lambda member: member.id)
        return ClusterSnapshot(self.settled, self.run_id, len(self._coordinators()), now, tuple(members))

    async def withdraw(self, me: Peer) -> None:
        self._check_available()
        self.seen_at = {peer: at for peer, at in self.seen_at.items() if peer.id != me.id}

    async def set_draining(self, worker_id: str, draining: bool) -> None:
        self._check_available()
        if worker_id not in self.entries:
            raise unknown_worker(worker_id)
        self.entries[worker_id] = replace(self.entries[worker_id], draining=draining)

    async def mark_as_leaving(self, worker_id: str, *, for_good: bool) -> Member:
        self._check_available()
        if worker_id not in self.entries:
            raise unknown_worker(worker_id)
        self.entries[worker_id] = replace(self.entries[worker_id], leaving=True, comes_back=not for_good)
        return self.entries[worker_id].as_member(self.clock.now())

    async def remove(self, worker_id: str) -> None:
        self._check_available()
        if worker_id not in self.entries:
            raise unknown_worker(worker_id)
        if self.entries[worker_id].until > self.clock.now():
            raise Conflict(f"the worker {worker_id!r} is alive")
        del self.entries[worker_id]

    def lose_data(self) -> None:
        self.entries.clear()
        self.seen_at.clear()
        self.settled, self.empty_since = False, float("inf")

    def _check_available(self) -> None:
        if self.away:
            raise Unavailable("Redis is away")

    def _renew(self, worker_id: str, epoch: int, report: Report | None) -> HeartbeatReply:
        old = self.entries.get(worker_id)
        if old is None:
            return HeartbeatReply(LeaseStatus.UNKNOWN)
        if old.epoch != epoch:
            return HeartbeatReply(LeaseStatus.SUPERSEDED)
        if old.until < self.clock.now():
            return HeartbeatReply(LeaseStatus.LAPSED)
        self.entries[worker_id] = replace(old, report=report or old.report, until=self.clock.now() + LEASE_S)
        self._settle()
        return HeartbeatReply(LeaseStatus.OK, self.run_id, self._coordinators())

    def _settle(self) -> None:
        if self.settled:
            return
        now = self.clock.now()
        self.empty_since = min(self.empty_since, now)
        self.settled = now - self.empty_since > LEASE_S

    def _coordinators(self) -> tuple[Peer, ...]:
        now = self.clock.now()
        self.seen_at = {peer: at for peer, at in self.seen_at.items() if now - at <= COORDINATOR_S}
        return tuple(self.seen_at)
