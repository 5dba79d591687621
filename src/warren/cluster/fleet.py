"""The workers as a coordinator sees them: who is there, where, with how much room.

It looks every second. When Redis does not answer, what was seen last counts: those who were alive then are asked, and
say themselves whether they still may serve. `steady_s` tells for how long Redis has answered without a gap; what is
done about the dead waits until that is longer than any lease that was held meanwhile.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from warren.cluster.members import LEASE_S, PROTOCOL, Member, Peer
from warren.cluster.placement import Candidate, Want, fits, ranked, why_none
from warren.cluster.roster import Pulse, Roster, Sight, unknown_worker
from warren.model.errors import InvalidRequest, NoCapacity, NoSpace, Unavailable, WarrenError

WATCH_S: Final = 1.0
_GAP_S: Final = 3.0
_FRESH_S: Final = 0.1
_JUMP_S: Final = 1.0  # if the clock of Redis was set, leases look over that are not
_SHUNNED_S: Final = 2.0  # a worker that could not be reached is asked last for so long

_log = logging.getLogger("warren.cluster")


class Fleet:
    """`find` asks at an address which worker is there; `addresses` are those that were named in advance."""

    def __init__(
        self,
        roster: Roster,
        me: Peer,
        *,
        addresses: Sequence[str] = (),
        find: Callable[[str], Awaitable[str]] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._roster = roster
        self.me = me
        self._addresses = addresses
        self._find = find
        self._now = now
        self._sight = Sight(False, "", 1, 0.0, ())
        self._members: dict[str, Member] = {}
        self._named: dict[str, str] = {}  # worker id -> an address that was named in advance
        self._sent: dict[str, deque[float]] = {}
        self._shunned: dict[str, float] = {}
        self._looked_at = self._steady_since = float("-inf")
        self._count = itertools.count(hash(me.id) & 0xFFFF)
        self._trouble = ""

    def __repr__(self) -> str:
        return f"<Fleet of {len(self._members)} workers, {'with' if self.has_redis else 'without'} Redis>"

    # -- looking

    async def run(self, then: Callable[[Sight], Awaitable[None]]) -> None:
        """Looks again and again, and does `then` about what it has seen."""
        while True:
            try:
                await self.look()
                await then(self._sight)
                self._tell("")
            except Exception as exc:
                # Requests depend on this loop: it outlives whatever a part of it raises.
                self._tell(f"the cluster cannot be seen: {exc}", None if isinstance(exc, WarrenError) else exc)
            await asyncio.sleep(WATCH_S)

    async def look(self) -> None:
        try:
            sight = await self._roster.watch(self.me)
        except (Unavailable, NoSpace):
            self._steady_since = float("inf")
            raise
        now = self._now()
        jumped_s = sight.redis_time - self._sight.redis_time - (now - self._looked_at)
        if self._steady_since == float("inf") or now - self._looked_at > _GAP_S or abs(jumped_s) > _JUMP_S:
            self._steady_since = now
        self._sight, self._looked_at = sight, now
        await self._look_where_named()
        seen = {one.id: replace(one, at=self._named.get(one.id, "")) for one in sight.workers}
        if not sight.settled or self.steady_s < LEASE_S:
            # Redis was away, or has lost its data: who was there may be there still, and says so itself.
            kept = {one.id: one for one in self._members.values() if one.alive}
            seen |= {name: one for name, one in kept.items() if name not in seen or not seen[name].alive}
        self._members = seen

    async def _look_where_named(self) -> None:
        missing = set(self._addresses) - set(self._named.values())
        if not missing or self._find is None:
            return
        for address, found in zip(missing, await asyncio.gather(*map(self._found, missing)), strict=True):
            if found:
                self._named[found] = address

    async def _found(self, address: str) -> str:
        assert self._find is not None
        try:
            return await self._find(address)
        except WarrenError as exc:
            self._tell(f"no worker at {address}: {exc.message}")
            return ""

    @property
    def has_redis(self) -> bool:
        return self._steady_since != float("inf") and self._now() - self._looked_at < _GAP_S

    @property
    def steady_s(self) -> float:
        return self._now() - self._steady_since if self.has_redis else 0.0

    @property
    def settled(self) -> bool:
        return self._sight.settled

    @property
    def members(self) -> Mapping[str, Member]:
        return self._members

    def member(self, worker_id: str) -> Member:
        try:
            return self._members[worker_id]
        except KeyError:
            raise unknown_worker(worker_id) from None

    def reachable(self, worker_id: str) -> Member:
        """The worker, if there is any sense in asking it. Raises Unavailable."""
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

    async def found(self, worker_id: str) -> Member:
        """As `reachable`; one that is not known as such may have come since the last look."""
        try:
            return self.reachable(worker_id)
        except Unavailable:
            if not self.has_redis or self._now() - self._looked_at < _FRESH_S:
                raise
            await self.look()
            return self.reachable(worker_id)

    def _is_alive(self, member: Member) -> bool:
        return member.left_s > (self._now() - self._looked_at if self.has_redis else 0)

    # -- placing

    def placed(self, want: Want) -> list[Member]:
        """Where a new session may go, the best first. Raises NoCapacity."""
        candidates = [self._candidate(member, want.tenant) for member in self._members.values() if member.compatible]
        chosen = ranked(want, candidates, next(self._count), coordinators=max(1, self._sight.coordinators))
        if not chosen:
            raise _nowhere(want, candidates)
        now = self._now()
        chosen.sort(key=lambda worker_id: now - self._shunned.get(worker_id, float("-inf")) < _SHUNNED_S)
        return [self._members[worker_id] for worker_id in chosen]

    def sent(self, worker_id: str) -> None:
        """A new session was sent there; its next report does not know of it yet."""
        self._sent.setdefault(worker_id, deque()).append(self._now())

    def shun(self, worker_id: str) -> None:
        self._shunned[worker_id] = self._now()

    def _candidate(self, member: Member, tenant: str) -> Candidate:
        report = member.report
        sent = self._sent.get(report.id, deque())
        reported_at = self._looked_at - (LEASE_S - member.left_s)
        while sent and sent[0] < reported_at:
            sent.popleft()
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
            assigned=len(sent),
        )

    # -- for workers that have lost Redis

    async def renewed(self, worker_id: str, epoch: int) -> Pulse | None:
        """What Redis says to the heartbeat of a worker that cannot reach it; None if we cannot either. Then nothing is
        taken from any worker before a lease that begins now is over: see `steady_s`."""
        if self._steady_since == float("inf"):
            return None  # at once: the worker's lease may not last until a Redis that is frozen has been asked again
        try:
            return (await self._roster.renew(worker_id, epoch)).pulse
        except (Unavailable, NoSpace):
            self._steady_since = float("inf")
            return None

    def _tell(self, what: str, exc: BaseException | None = None) -> None:
        if what != self._trouble:
            self._trouble = what
            if what:
                _log.warning("%s", what, exc_info=exc)
            else:
                _log.info("the cluster is seen again")


def _nowhere(want: Want, candidates: Sequence[Candidate]) -> WarrenError:
    """What no worker has, dead ones included, will not be there later either."""
    why = why_none(want, candidates)
    if candidates and not any(fits(want, worker) for worker in candidates):
        return InvalidRequest(why, remedy="ask for what `warren cluster status` shows")
    return NoCapacity(why, remedy="see `warren cluster status`", retry_after_s=5)
