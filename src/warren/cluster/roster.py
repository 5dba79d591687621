"""The members of the cluster, in Redis: workers with their leases, coordinators with their addresses.

Workers call `register`, `beat` and `leave` (heartbeat.py). Coordinators call `watch` and `withdraw` (fleet.py), `renew`
for a worker that has lost Redis, and `set_draining` and `remove` for an operator. `warren cluster leave` calls
`mark_as_leaving` (leaving.py).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from warren.model.errors import Conflict, NotFound
from warren.stores import redis_roster_scripts as scripts
from warren.stores.redis_link import RedisLink
from warren.stores.redis_roster_scripts import LEASE_S

__all__ = ["FORGET_WORKER_S", "HEARTBEAT_S", "LEASE_S", "PROTOCOL", "RESTART_S", "Member", "Peer", "Report", "Roster"]

PROTOCOL: Final = 1  # coordinators and workers of different protocols do not work together
HEARTBEAT_S: Final = 2.0
RESTART_S: Final = 60.0
"""How long a worker that was stopped in order may take to come back to its sessions."""
FORGET_WORKER_S: Final = 86400.0
"""After so long without its lease a worker is forgotten. It serves for no longer without news of Redis."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker reports about itself with every heartbeat; the field names are part of the protocol.

    `home`: identifies its state directory.
    `ready`: warm sandboxes of each environment. `tenants`: sessions of the tenants that have the most.
    `pressure`: how full its machine is, up to 1. `leaving`: it takes no new sessions.
    `provider`: its default provider. `providers`: all of them; empty from a version that had only one.
    `capabilities`: what each provider can do; a provider that is missing here, of an earlier version, may be able to.
    `coordinators`: the ids of the coordinators it asks when it has lost Redis. Nobody else may give it up, because it
    goes on while all of these have lost Redis too.
    `memory`: how much of its memory is in use, but for the reserve, up to 1.
    `gpus`: the number of graphics processors for sandboxes. `gpus_free`: the ids of those that no sandbox has.
    `images`: the images that other workers may copy, by name with the digest of the content.
    """

    id: str
    address: str
    home: str
    version: str = ""
    protocol: int = PROTOCOL
    provider: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: int = 0
    claimed: int = 0
    ready: Mapping[str, int] = field(default_factory=dict)
    tenants: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    pressure: float = 0.0
    leaving: bool = False
    providers: tuple[str, ...] = ()
    capabilities: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coordinators: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    gpus_free: tuple[str, ...] = ()
    memory: float = 0.0

    @property
    def all_providers(self) -> tuple[str, ...]:
        return self.providers or (self.provider,)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Report":
        """Reads a report. Fields of a later version are ignored, and fields that an earlier one lacks have their
        defaults."""
        values: dict[str, Any] = json.loads(text)
        for name in ("providers", "coordinators", "gpus_free"):
            values[name] = tuple(values.get(name, ()))
        return cls(**{name: value for name, value in values.items() if name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as coordinators see it.

    `lease_left_s`: negative once the lease has run out. `draining`: an operator ordered it, or it is about to be
    stopped. `comes_back`: it will be started again at once, so its volumes stay. `configured_address`: set if the
    coordinator was told to reach the worker elsewhere than it advertises. `rejects_us`: it has another cluster
    secret than the coordinator.
    """

    report: Report
    epoch: int
    lease_left_s: float
    draining: bool = False
    comes_back: bool = False
    configured_address: str = ""
    rejects_us: bool = False

    @property
    def id(self) -> str:
        return self.report.id

    @property
    def address(self) -> str:
        return self.configured_address or self.report.address

    @property
    def alive(self) -> bool:
        return self.lease_left_s > 0

    def may_be_given_up_by(self, coordinator_id: str) -> bool:
        return not self.report.coordinators or coordinator_id in self.report.coordinators

    @property
    def compatible(self) -> bool:
        return self.report.protocol == PROTOCOL


@dataclass(frozen=True, slots=True)
class Peer:
    """A coordinator: its name, and the address at which workers reach it."""

    id: str
    address: str


class LeaseStatus(StrEnum):
    """The reply of Redis to a heartbeat. The values are part of the protocol.

    LAPSED: the heartbeat came too late, and coordinators may have given up the worker's sessions. UNKNOWN: Redis does
    not know the worker. SUPERSEDED: a later process has registered as this worker.
    """

    OK = "ok"
    LAPSED = "lapsed"
    UNKNOWN = "unknown"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """`run_id` changes when Redis is restarted or another server takes its place."""

    status: LeaseStatus
    run_id: str = ""
    coordinators: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The cluster at one moment. It is not `settled` while Redis has lost its data and workers publish theirs again."""

    settled: bool
    run_id: str
    coordinators: int
    redis_time: float
    workers: tuple[Member, ...]


class Roster:
    """Every call raises Unavailable when Redis is away; the change may or may not have been made then."""

    def __init__(self, link: RedisLink) -> None:
        self._run = link.run

    async def register(self, report: Report, known_epoch: int) -> int:
        """Gives a worker its lease and returns its new epoch. Raises Conflict if another worker has the name."""
        result, value = await self._run(scripts.ENTER, report.id, report.home, report.to_json(), known_epoch)
        if result == b"taken":
            other = Report.from_json(value)
            raise Conflict(
                f"there is another worker called {report.id!r}, at {other.address}",
                remedy="give this one another name with --worker-id or WORKER_ID",
            )
        return int(value)

    async def beat(self, report: Report, epoch: int) -> HeartbeatReply:
        return _read_reply(await self._run(scripts.BEAT, report.id, epoch, report.to_json()))

    async def renew(self, worker_id: str, epoch: int) -> HeartbeatReply:
        """Renews the lease of a worker that cannot reach Redis itself."""
        return _read_reply(await self._run(scripts.BEAT, worker_id, epoch, ""))

    async def leave(self, report: Report, epoch: int) -> None:
        """Called by a worker that stops in order: its sessions are kept for RESTART_S, longer than a lease."""
        await self._run(scripts.LEAVE, report.id, epoch, report.to_json(), RESTART_S)

    async def watch(self, me: Peer) -> ClusterSnapshot:
        """Announces this coordinator and returns the members of the cluster."""
        settled, run_id, coordinators, now, *workers = await self._run(scripts.WATCH, me.id, me.address)
        members = sorted((_read_member(*values) for values in workers), key=lambda member: member.id)
        return ClusterSnapshot(bool(settled), run_id.decode(), coordinators, float(now), tuple(members))

    async def withdraw(self, me: Peer) -> None:
        """Called by a coordinator that stops."""
        await self._run(scripts.GO, me.id)

    async def set_draining(self, worker_id: str, draining: bool) -> None:
        if not await self._run(scripts.DRAIN, worker_id, "1" if draining else ""):
            raise unknown_worker(worker_id)

    async def mark_as_leaving(self, worker_id: str, *, for_good: bool) -> Member:
        """Drains a worker until it registers again, and returns it. What an operator has ordered stays."""
        mark = scripts.FOR_GOOD if for_good else scripts.UNTIL_STARTED
        found = await self._run(scripts.MARK_AS_LEAVING, worker_id, mark)
        if not found:
            raise unknown_worker(worker_id)
        return _read_member(*found)

    async def remove(self, worker_id: str) -> None:
        """Forgets a dead worker."""
        result = await self._run(scripts.REMOVE, worker_id)
        if result == b"unknown":
            raise unknown_worker(worker_id)
        if result == b"alive":
            raise Conflict(
                f"the worker {worker_id!r} is alive",
                remedy="drain it, wait until its sessions have ended, stop it; then remove it",
            )


def unknown_worker(worker_id: str) -> NotFound:
    return NotFound(f"there is no worker {worker_id!r}", remedy="`warren cluster status` lists those there are")


def _read_reply(values: Sequence[bytes]) -> HeartbeatReply:
    status = LeaseStatus(values[0].decode())
    if status is not LeaseStatus.OK:
        return HeartbeatReply(status)
    ids_and_addresses = [value.decode() for value in values[2:]]
    peers = tuple(map(Peer, ids_and_addresses[::2], ids_and_addresses[1::2]))
    return HeartbeatReply(status, values[1].decode(), peers)


def _read_member(report: bytes, epoch: bytes, lease_left_s: bytes, draining: bytes) -> Member:
    comes_back = draining.decode() == scripts.UNTIL_STARTED
    return Member(Report.from_json(report), int(epoch), float(lease_left_s), bool(draining), comes_back)
