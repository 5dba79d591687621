"""The workers as a coordinator sees them: their addresses, whether they are alive, and how much room they have.

`run` refreshes the view from Redis every second and lets `Failover` act on it. When Redis does not respond, the last
view counts: requests still go to the workers that were alive then, and each worker decides for itself whether it may
serve. `redis_stable_s` is how long Redis has responded without a gap. Nothing is taken from a dead worker until that is
longer than any lease that may have been granted during the gap.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, overload

from warren.cluster.placement import (
    Candidate,
    Requirements,
    explain_no_worker,
    fits,
    missing_capability,
    rank_workers,
)
from warren.cluster.problem_log import ProblemLog
from warren.cluster.roster import (
    LEASE_S,
    PROTOCOL,
    ClusterSnapshot,
    LeaseStatus,
    Member,
    Peer,
    Roster,
    unknown_worker,
)
from warren.kernel.logs import get_log
from warren.model.capability import lacks
from warren.model.errors import InvalidRequest, NoCapacity, NoSpace, Unavailable, WarrenError

REFRESH_S: Final = 1.0
_MAX_GAP_S: Final = 3.0
_FRESH_S: Final = 0.1
_MAX_CLOCK_JUMP_S: Final = 1.0  # if Redis' clock was set, running leases may look as if they had run out
_AVOID_S: Final = 2.0  # how long a worker that could not be reached is placed last

_log = get_log(__name__)


class Fleet:
    """`configured_addresses`: where workers are reached, if not where they advertise. `identify` returns the id of the
    worker at an address, `is_accepted_by` whether that takes this coordinator's secret: each worker is asked once,
    while nobody waits for it, so that its operator learns of it before the callers do."""

    def __init__(
        self,
        roster: Roster,
        me: Peer,
        *,
        configured_addresses: Sequence[str] = (),
        identify: Callable[[str], Awaitable[str]] | None = None,
        is_accepted_by: Callable[[str], Awaitable[bool]] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._roster = roster
        self.me = me
        self._configured_addresses = configured_addresses
        self._identify = identify
        self._is_accepted_by = is_accepted_by
        self._accepted: dict[str, tuple[int, bool]] = {}  # worker id -> its epoch, and what it answered
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._now = now
        self._snapshot = ClusterSnapshot(False, "", 1, 0.0, ())
        self._members: dict[str, Member] = {}
        self._compatible: Sequence[Member] = ()
        self._address_of: dict[str, str] = {}  # worker id -> its configured address
        self._assigned_at: dict[str, deque[float]] = {}
        self._unreachable_at: dict[str, float] = {}
        self._refreshed_at = self._stable_since = float("-inf")
        self._seeds = itertools.count(hash(me.id) & 0xFFFF)
        self._problems = ProblemLog(_log)

    def __repr__(self) -> str:
        return f"<Fleet of {len(self._members)} workers, {'with' if self.has_redis else 'without'} Redis>"

    # -- the view

    async def run(self, on_refresh: Callable[[ClusterSnapshot], Awaitable[None]]) -> None:
        """Refreshes the view forever, and calls `on_refresh` with each one."""
        try:
            while True:
                await self._refresh_safely(on_refresh)
                await asyncio.sleep(REFRESH_S)
        finally:
            for task in list(self._asking.values()):
                task.cancel()

    async def _refresh_safely(self, on_refresh: Callable[[ClusterSnapshot], Awaitable[None]]) -> None:
        """Logs every failure: requests depend on the loop that calls this, so none may end it."""
        try:
            await self.refresh()
            await on_refresh(self._snapshot)
            self._problems.clear("cluster", "cluster_visible")
        except Exception as exc:
            unexpected = None if isinstance(exc, WarrenError) else exc
            self._problems.report("cluster", "cluster_not_visible", str(exc), unexpected)

    async def refresh(self) -> None:
        try:
            snapshot = await self._roster.watch(self.me)
        except (Unavailable, NoSpace):
            self._stable_since = float("inf")
            raise
        now = self._now()
        clock_jump_s = snapshot.redis_time - self._snapshot.redis_time - (now - self._refreshed_at)
        has_gap = self._stable_since == float("inf") or now - self._refreshed_at > _MAX_GAP_S
        if has_gap or abs(clock_jump_s) > _MAX_CLOCK_JUMP_S:
            self._stable_since = now
        self._snapshot, self._refreshed_at = snapshot, now
        await self._identify_configured()
        members = {
            member.id: replace(
                member,
                configured_address=self._address_of.get(member.id, ""),
                rejects_us=self._accepted.get(member.id) == (member.epoch, False),
            )
            for member in snapshot.workers
        }
        if not snapshot.settled or self.redis_stable_s < LEASE_S:
            # Redis was away or has lost its data: workers that were alive before may still be, and refuse if not.
            for member in self._members.values():
                if member.alive and (member.id not in members or not members[member.id].alive):
                    members[member.id] = member
        self._members = members
        self._compatible = [member for member in members.values() if member.compatible]
        self._ask_new()

    def _ask_new(self) -> None:
        """Asks the workers that have registered since whether they take our secret."""
        self._accepted = {name: known for name, known in self._accepted.items() if name in self._members}
        for member in self._members.values():
            known = self._accepted.get(member.id)
            is_new = known is None or known[0] != member.epoch
            if self._is_accepted_by and is_new and member.alive and member.compatible and member.id not in self._asking:
                task = asyncio.create_task(self._ask(member, self._is_accepted_by), name=f"asking {member.id}")
                self._asking[member.id] = task
                task.add_done_callback(lambda _, name=member.id: self._asking.pop(name, None))  # type: ignore[misc]

    async def _ask(self, member: Member, is_accepted_by: Callable[[str], Awaitable[bool]]) -> None:
        try:
            accepted = await is_accepted_by(member.address)
        except WarrenError:
            return  # it is asked again after the next look
        self._accepted[member.id] = member.epoch, accepted
        if accepted:
            self._problems.clear(f"secret of {member.id}", "worker_accepts_coordinator", worker=member.id)
        else:
            error = "their cluster secrets differ: give all processes the same WARREN_CLUSTER_SECRET"
            self._problems.report(f"secret of {member.id}", "worker_rejects_coordinator", error, worker=member.id)

    async def _identify_configured(self) -> None:
        missing = set(self._configured_addresses) - set(self._address_of.values())
        if missing and self._identify is not None:
            await asyncio.gather(*(self._identify_at(address, self._identify) for address in missing))

    async def _identify_at(self, address: str, identify: Callable[[str], Awaitable[str]]) -> None:
        try:
            self._address_of[await identify(address)] = address
        except WarrenError as exc:
            self._problems.report(address, "worker_not_found", exc.message, address=address)
        else:
            self._problems.clear(address, "worker_found", address=address)

    @property
    def has_redis(self) -> bool:
        return self._stable_since != float("inf") and self._now() - self._refreshed_at < _MAX_GAP_S

    @property
    def redis_stable_s(self) -> float:
        return self._now() - self._stable_since if self.has_redis else 0.0

    @property
    def settled(self) -> bool:
        return self._snapshot.settled

    @property
    def members(self) -> Mapping[str, Member]:
        return self._members

    def member(self, worker_id: str) -> Member:
        try:
            return self._members[worker_id]
        except KeyError:
            raise unknown_worker(worker_id) from None

    def reachable(self, worker_id: str) -> Member:
        """Returns the worker of a session. Raises Unavailable if it is dead, unknown, or has another protocol."""
        member = self._members.get(worker_id)
        if member is None or not self._is_alive(member):
            raise Unavailable(
                f"the worker {worker_id!r} of this session does not answer",
                remedy="try again: within seconds it is back, or the session is reported lost",
                retry_after_s=2,
            )
        if not member.compatible:
            raise Unavailable(
                f"the worker {worker_id!r} speaks protocol {member.report.protocol}, and this coordinator {PROTOCOL}",
                remedy="run the same version of Warren on all machines of the cluster",
            )
        return member

    async def find_reachable(self, worker_id: str) -> Member:
        """Does the same as `reachable`, but refreshes the view first if the worker may have joined since."""
        try:
            return self.reachable(worker_id)
        except Unavailable:
            if not self.has_redis or self._now() - self._refreshed_at < _FRESH_S:
                raise
            await self.refresh()
            return self.reachable(worker_id)

    def _is_alive(self, member: Member) -> bool:
        return member.lease_left_s > (self._now() - self._refreshed_at if self.has_redis else 0)

    # -- placement

    def choose_workers(self, required: Requirements) -> list[Member]:
        """Returns the workers that may take a new session, the best first. Raises NoCapacity or InvalidRequest."""
        candidates = _Candidates(self._compatible, partial(self._candidate, required.tenant))
        coordinators = max(1, self._snapshot.coordinators)
        ids = rank_workers(required, candidates, next(self._seeds), coordinators=coordinators)
        if not ids:
            raise _no_worker(required, candidates)
        now, members = self._now(), self._members
        ids.sort(
            key=lambda worker_id: (
                members[worker_id].rejects_us,
                now - self._unreachable_at.get(worker_id, float("-inf")) < _AVOID_S,
            )
        )
        return [self._members[worker_id] for worker_id in ids]

    def fits(self, worker_id: str, required: Requirements) -> bool:
        """Returns whether the worker could have the session if it had room for it; True for one that is not known."""
        member = self._members.get(worker_id)
        return member is None or fits(required, self._candidate(required.tenant, member))

    def note_assigned(self, worker_id: str) -> None:
        """Counts a new session that was sent to a worker, until the worker's next report includes it."""
        self._assigned_at.setdefault(worker_id, deque()).append(self._now())

    def avoid(self, worker_id: str) -> None:
        """Places a worker that could not be reached last for some seconds."""
        self._unreachable_at[worker_id] = self._now()

    def _candidate(self, tenant: str, member: Member) -> Candidate:
        report = member.report
        assigned_at = self._assigned_at.get(report.id, deque())
        reported_at = self._refreshed_at - (LEASE_S - member.lease_left_s)
        while assigned_at and assigned_at[0] < reported_at:
            assigned_at.popleft()
        return Candidate(
            id=report.id,
            providers=report.all_providers,
            labels=report.labels,
            capacity=report.capacity,
            claimed=report.claimed,
            by_tenant=report.tenants.get(tenant, 0),
            ready=report.ready,
            waiting=report.waiting,
            pressure=report.pressure,
            draining=member.draining or report.leaving,
            alive=self._is_alive(member),
            assigned=len(assigned_at),
            images=report.images,
            capabilities=report.capabilities,
            gpus=report.gpus,
            gpus_free=report.gpus_free,
        )

    # -- for workers that have lost Redis

    async def renew_lease(self, worker_id: str, epoch: int) -> LeaseStatus | None:
        """Passes on the heartbeat of a worker that cannot reach Redis. Returns its status, or None if Redis is away for
        us too.

        After None, nothing is taken from any worker until a lease that begins now has run out: see `redis_stable_s`.
        """
        if self._stable_since == float("inf"):
            return None  # without asking: the worker's lease may end before a frozen Redis times out
        try:
            return (await self._roster.renew(worker_id, epoch)).status
        except (Unavailable, NoSpace):
            # Before the reply: the worker goes on because of it, so we must not take its sessions from now on.
            self._stable_since = float("inf")
            return None


class _Candidates(Sequence[Candidate]):
    """The members as candidates, made as they are looked at: few are, however many there are."""

    def __init__(self, members: Sequence[Member], make: Callable[[Member], Candidate]) -> None:
        self._members, self._make = members, make

    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, at: int) -> Candidate: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, at: int | slice) -> Candidate | Sequence[Candidate]:
        return [*map(self._make, self._members[at])] if isinstance(at, slice) else self._make(self._members[at])


def _no_worker(required: Requirements, candidates: Sequence[Candidate]) -> WarrenError:
    """Returns the error. It is InvalidRequest if no worker, not even a dead one, fits: waiting would not help."""
    if missing := missing_capability(required, candidates):
        return lacks(*missing)
    reason = explain_no_worker(required, candidates)
    if candidates and not any(fits(required, worker) for worker in candidates):
        return InvalidRequest(reason, remedy="ask for what `warren cluster status` shows")
    return NoCapacity(reason, remedy="see `warren cluster status`", retry_after_s=5)
