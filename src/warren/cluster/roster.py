"""Who belongs to the cluster, as Redis has it: workers with their leases, coordinators with their addresses."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from warren.cluster.members import RESTART_S, Member, Peer, Report
from warren.model.errors import Conflict, NotFound
from warren.stores import redis_roster_scripts as scripts
from warren.stores.redis_link import RedisLink


class Pulse(StrEnum):
    """What became of a heartbeat. LAPSED: it came too late, others may have taken what the worker had. UNKNOWN: Redis
    knows no such worker (any more). SUPERSEDED: a later process of this worker has its place."""

    OK = "ok"
    LAPSED = "lapsed"
    UNKNOWN = "unknown"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Heard:
    """`run_id` is another one after Redis was restarted, or another server took its place."""

    pulse: Pulse
    run_id: str = ""
    coordinators: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True)
class Sight:
    """What a coordinator sees. Not `settled`: Redis has lost its data, workers are publishing theirs again."""

    settled: bool
    run_id: str
    coordinators: int
    redis_time: float
    workers: tuple[Member, ...]


class Roster:
    """Every call raises Unavailable when Redis is away; the caller then knows nothing."""

    def __init__(self, link: RedisLink) -> None:
        self._run = link.run

    async def enter(self, report: Report, known_epoch: int) -> int:
        """A worker takes its place, and with it its lease; the epoch it has from now on. Conflict if the place is
        another worker's."""
        which, value = await self._run(scripts.ENTER, report.id, report.home, report.encoded(), known_epoch)
        if which == b"taken":
            other = Report.decoded(value)
            raise Conflict(
                f"there is another worker called {report.id!r}, at {other.address}",
                remedy="give this one another name with --worker-id or WORKER_ID",
            )
        return int(value)

    async def beat(self, report: Report, epoch: int) -> Heard:
        return _heard(await self._run(scripts.BEAT, report.id, epoch, report.encoded()))

    async def renew(self, worker_id: str, epoch: int) -> Heard:
        """For a worker that cannot reach Redis itself."""
        return _heard(await self._run(scripts.BEAT, worker_id, epoch, ""))

    async def leave(self, report: Report, epoch: int) -> None:
        """A worker stops in order: its sessions wait for it, longer than for one that has died."""
        await self._run(scripts.LEAVE, report.id, epoch, report.encoded(), RESTART_S)

    async def watch(self, me: Peer) -> Sight:
        """Says that this coordinator is there, and sees who else is."""
        settled, run_id, coordinators, now, *workers = await self._run(scripts.WATCH, me.id, me.address)
        members = sorted((_member(*values) for values in workers), key=lambda one: one.id)
        return Sight(bool(settled), run_id.decode(), coordinators, float(now), tuple(members))

    async def go(self, me: Peer) -> None:
        await self._run(scripts.GO, me.id)

    async def drain(self, worker_id: str, draining: bool) -> None:
        if not await self._run(scripts.DRAIN, worker_id, "1" if draining else ""):
            raise unknown_worker(worker_id)

    async def remove(self, worker_id: str) -> None:
        """Forgets a worker that is dead."""
        which = await self._run(scripts.REMOVE, worker_id)
        if which == b"unknown":
            raise unknown_worker(worker_id)
        if which == b"alive":
            raise Conflict(
                f"the worker {worker_id!r} is alive",
                remedy="drain it, wait until its sessions have ended, stop it; then remove it",
            )


def unknown_worker(worker_id: str) -> NotFound:
    return NotFound(f"there is no worker {worker_id!r}", remedy="`warren cluster status` lists those there are")


def _heard(answer: Sequence[bytes]) -> Heard:
    pulse = Pulse(answer[0].decode())
    if pulse is not Pulse.OK:
        return Heard(pulse)
    names = [part.decode() for part in answer[2:]]
    return Heard(pulse, answer[1].decode(), tuple(map(Peer, names[::2], names[1::2])))


def _member(report: bytes, epoch: bytes, left: bytes, draining: bytes) -> Member:
    return Member(Report.decoded(report), int(epoch), float(left), bool(draining))
