"""What becomes of the sessions of workers that are dead. Every coordinator does this; each change is made once.

A session is taken from its worker in one step with a look at the worker's lease, by Redis' clock: a worker that has
come back in the meantime keeps what was not taken yet, and finds out what was.
"""

import logging
from typing import Final

from warren.cluster.fleet import Fleet
from warren.cluster.members import LEASE_S
from warren.cluster.roster import Roster, Sight
from warren.model.errors import WarrenError
from warren.model.session import EndReason, Session, SessionState
from warren.sessions.lifecycle import Lifecycle
from warren.stores.redis_store import RedisStore

_SWEEP_S: Final = 15.0
_PURGE_S: Final = 60.0
_FORGOTTEN_S: Final = 86400.0

_log = logging.getLogger("warren.cluster")


class Failover:
    def __init__(
        self, fleet: Fleet, roster: Roster, store: RedisStore, lifecycle: Lifecycle, *, retention_s: float
    ) -> None:
        self._fleet = fleet
        self._roster = roster
        self._store = store
        self._lifecycle = lifecycle
        self._clock = lifecycle.clock
        self._retention_s = retention_s
        self._dead: frozenset[str] = frozenset()
        self._swept = self._purged = float("-inf")

    async def tick(self, sight: Sight) -> None:
        if not sight.settled or self._fleet.steady_s < LEASE_S:
            return
        now = self._clock.now()
        dead = frozenset(member.id for member in sight.workers if not member.alive)
        if dead - self._dead or now - self._swept >= _SWEEP_S:
            for worker_id in dead - self._dead:
                _log.warning("the worker %s is dead: its sessions are given up", worker_id)
            await self.sweep({member.id for member in sight.workers if member.alive})
            self._dead, self._swept = dead, now
        self._dead &= dead
        await self._lifecycle.retry()
        if now - self._purged >= _PURGE_S:
            self._purged = now
            await self._store.purge(self._clock.epoch, now - self._retention_s)
            await self._forget_workers(sight)

    async def sweep(self, alive: set[str]) -> None:
        for session in await self._store.active():
            if session.worker not in alive:
                await self._give_up(session)

    async def _give_up(self, session: Session) -> None:
        why = f"its worker {session.worker!r} does not answer any more"
        if session.state.can_be_lost:
            lost = session.moved_to(SessionState.LOST, reason=EndReason.LOST, detail=why)
            if await self._store.swap_of_dead(lost):
                self._lifecycle.tell_lost(lost)
        elif session.state.is_in_transition:
            reason = session.reason or EndReason.UNDONE
            names = dict.fromkeys(session.env, "")
            await self._store.swap_of_dead(
                session.moved_to(SessionState.ENDED, reason=reason, ended=self._clock.now(), env=names)
            )
        elif session.expiry(self._clock.now()) is not None:
            await self._lifecycle.end(session, EndReason.LOST, session.detail)

    async def _forget_workers(self, sight: Sight) -> None:
        for member in sight.workers:
            if member.left_s < -_FORGOTTEN_S:
                try:
                    await self._roster.remove(member.id)
                except WarrenError as exc:
                    _log.info("the worker %s is not forgotten: %s", member.id, exc)
