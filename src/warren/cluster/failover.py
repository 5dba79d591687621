"""Gives up the sessions of dead workers. Every coordinator runs it; each change is made once.

A worker is dead when its lease has run out, and it has been away for `away_s` more.

Redis takes a session from its worker in one step, which also checks that the worker's lease has run out by Redis'
clock, and that the worker knows this coordinator. A worker that does not know us would not ask us before it goes on
without Redis. A worker that comes back meanwhile keeps the sessions that were not taken yet, and finds out which were.
`Fleet.run` calls `tick` after each refresh; `ClusterOperator` calls `sweep` when a worker is removed.
"""

from collections.abc import Iterable
from typing import Final

from warren.cluster.fleet import Fleet
from warren.cluster.roster import FORGET_WORKER_S, LEASE_S, ClusterSnapshot, Member, Roster
from warren.kernel.logs import get_log
from warren.model.errors import WarrenError
from warren.model.session import EndReason, Session, SessionState
from warren.sessions.lifecycle import Lifecycle
from warren.stores.redis_store import RedisStore

_SWEEP_S: Final = 15.0
_PURGE_S: Final = 60.0

_log = get_log(__name__)


class Failover:
    def __init__(
        self,
        fleet: Fleet,
        roster: Roster,
        store: RedisStore,
        lifecycle: Lifecycle,
        *,
        retention_s: float,
        away_s: float = 0.0,
    ) -> None:
        self._fleet = fleet
        self._roster = roster
        self._store = store
        self._ending = lifecycle.ending
        self._reports = lifecycle.reports
        self._clock = lifecycle.basis.clock
        self._retention_s = retention_s
        self._away_s = away_s
        self._away: frozenset[str] = frozenset()
        self._dead: frozenset[str] = frozenset()
        self._swept_at = self._purged_at = float("-inf")

    async def tick(self, snapshot: ClusterSnapshot) -> None:
        if not snapshot.settled:
            return
        # A worker may have been granted a lease while Redis was away. It must run out before we take anything.
        is_stable = self._fleet.redis_stable_s >= LEASE_S
        if is_stable:
            await self._sweep_if_due(snapshot)
        errors = await self._ending.retry_ends()
        if is_stable:
            await self._purge_if_due(snapshot)
        if errors:
            raise errors[0]

    async def _sweep_if_due(self, snapshot: ClusterSnapshot) -> None:
        now = self._clock.now()
        dead = frozenset(member.id for member in snapshot.workers if self._is_dead(member))
        self._report_away(snapshot, dead)
        newly_dead = dead - self._dead
        if newly_dead or now - self._swept_at >= _SWEEP_S:
            for member in snapshot.workers:
                if member.id in newly_dead:
                    self._report_dead(member)
            await self.sweep(snapshot.workers)
            self._dead, self._swept_at = dead, now
        self._dead &= dead

    def _is_dead(self, member: Member) -> bool:
        return member.lease_left_s <= -self._away_s

    def _report_away(self, snapshot: ClusterSnapshot, dead: frozenset[str]) -> None:
        away = frozenset(member.id for member in snapshot.workers if not member.alive) - dead
        for name in sorted(away - self._away):
            _log.warning("worker_away", worker=name, action="keep_sessions", for_s=self._away_s)
        self._away = away

    def _report_dead(self, member: Member) -> None:
        if member.may_be_given_up_by(self._fleet.me.id):
            _log.warning("worker_dead", worker=member.id, action="give_up_sessions")
        else:
            _log.warning(
                "worker_dead",
                worker=member.id,
                action="leave_it_to_the_coordinators_it_knows",
                remedy=f"if it is off and none of them is left: `warren cluster remove {member.id}`",
            )

    async def _purge_if_due(self, snapshot: ClusterSnapshot) -> None:
        now = self._clock.now()
        if now - self._purged_at >= _PURGE_S:
            self._purged_at = now
            await self._store.purge(self._clock.epoch, now - self._retention_s)
            await self._forget_workers(snapshot)

    async def sweep(self, members: Iterable[Member]) -> None:
        """Gives up every session whose worker is dead, or none of them."""
        kept = {member.id for member in members if not self._is_dead(member)}
        for session in await self._store.active():
            if session.worker not in kept:
                await self._give_up(session)

    async def _give_up(self, session: Session) -> None:
        if session.state.can_be_lost:
            detail = f"its worker {session.worker!r} does not answer any more"
            clocks = session.clocks_at(self._clock.now())
            lost = session.moved_to(SessionState.LOST, reason=EndReason.LOST, detail=detail, **clocks)
            if await self._store.swap_of_dead(lost, self._fleet.me.id):
                self._reports.lost(lost)
        elif session.state is SessionState.CREATING and session.saved:
            await self._store.swap_of_dead(self._ending.hibernated_again(session), self._fleet.me.id)
        elif session.state.is_in_transition:
            reason = session.reason or EndReason.UNDONE
            ended = self._ending.ended(session, reason, session.detail)
            await self._store.swap_of_dead(ended, self._fleet.me.id)
        elif (why := session.expiry(self._clock.now())) is not None:
            await self._ending.end(
                session, EndReason.LOST if session.state is SessionState.LOST else why, session.detail
            )

    async def _forget_workers(self, snapshot: ClusterSnapshot) -> None:
        for member in snapshot.workers:
            if member.lease_left_s < -FORGET_WORKER_S:
                try:
                    await self._roster.remove(member.id)
                except WarrenError as exc:
                    _log.info("worker_not_forgotten", worker=member.id, error=exc)
