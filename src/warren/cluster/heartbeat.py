"""A worker's membership in the cluster: it registers, renews its lease with heartbeats, and registers again when lost.

A worker that cannot reach Redis asks the coordinators it knows. A coordinator that has Redis renews the lease. If all
of them have lost Redis too, nobody can take over the worker's sessions, so it goes on, provided that its lease had not
run out before. If a coordinator does not respond, that one might have Redis, so the worker stops serving when its lease
runs out. Before it serves again, `reconcile` finds out what has changed meanwhile.

Each reply of Redis names the coordinators, and the next heartbeat reports them back. Only a coordinator that was
reported back may give up the worker. The worker asks the reported ones and those named since, so it asks every
coordinator that may give it up.

`WorkerService` calls `join` before it looks at its sessions, `beat` after that, `run` until it stops, and `leave` at
the end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from warren.cluster.lease import Lease
from warren.cluster.problem_log import ProblemLog
from warren.cluster.roster import (
    FORGET_WORKER_S,
    HEARTBEAT_S,
    LEASE_S,
    HeartbeatReply,
    LeaseStatus,
    Peer,
    Report,
    Roster,
)
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.errors import Conflict, NoSpace, Unavailable, WarrenError

_RETRY_S: Final = 0.5

RenewThrough = Callable[[Peer, str, int], Awaitable["LeaseStatus | None"]]
"""Asks a coordinator to renew the lease of a worker id and epoch; None if it has lost Redis too. Raises Unavailable."""

_log = get_log(__name__)


class Heartbeat:
    def __init__(
        self,
        roster: Roster,
        lease: Lease,
        clock: Clock,
        *,
        report: Callable[[], Report],
        reconcile: Callable[[], Awaitable[None]],
        renew_through: RenewThrough,
        on_superseded: Callable[[], None] = lambda: None,
    ) -> None:
        self._roster = roster
        self._lease = lease
        self._clock = clock
        self._report = report
        self._reconcile = reconcile
        self._renew_through = renew_through
        self._on_superseded = on_superseded
        self._epoch = 0
        self._run_id = ""
        self._renewed_without_redis = False
        self._is_reconciled = True  # our sessions were compared with those in Redis
        self._redis_known_at = float("-inf")  # when the last request that Redis answered was sent
        self._named: tuple[Peer, ...] = ()  # coordinators in the last reply of Redis
        self._reported: tuple[Peer, ...] = ()  # those that the last acknowledged heartbeat reported back
        self._problems = ProblemLog(_log)

    def __repr__(self) -> str:
        return f"<Heartbeat epoch {self._epoch}, {self._lease!r}>"

    @property
    def coordinators(self) -> Sequence[Peer]:
        """The coordinators to ask when Redis is away."""
        return tuple({peer.id: peer for peer in (*self._reported, *self._named)}.values())

    async def join(self) -> None:
        """Registers the worker, waiting for Redis if need be. Raises Conflict if another worker has the name."""
        while True:
            try:
                await self._register()
                return
            except Unavailable as exc:
                self._problems.report("cluster", "waiting_for_cluster", exc.message)
            except Conflict as exc:
                if not self._epoch:
                    raise
                self._problems.report("cluster", "worker_name_taken", exc.message)
            await self._clock.sleep(_RETRY_S)

    async def run(self) -> None:
        while True:
            started_at = self._clock.now()
            try:
                await self.beat()
            except Exception as exc:
                # The worker serves only while this loop runs, so no failure may end it.
                unexpected = None if isinstance(exc, WarrenError) else exc
                self._problems.report("cluster", "heartbeat_failed", str(exc), unexpected)
            await self._clock.sleep(max(0.0, HEARTBEAT_S - (self._clock.now() - started_at)))

    async def beat(self) -> None:
        requested_at = self._clock.now()  # before the request: the lease must not outlast the one that Redis counts
        try:
            reply: HeartbeatReply | None = await self._beat_in_redis()
        except (Unavailable, NoSpace) as exc:
            self._problems.report("cluster", "redis_unavailable", exc.message)
            reply = await self._beat_through_coordinators()
        if reply is None:
            return
        if reply.status is LeaseStatus.OK:
            await self._renew_lease(reply, requested_at)
        elif reply.status is LeaseStatus.SUPERSEDED:
            self._lease.drop()
            _log.error("worker_superseded", epoch=self._epoch, action="stop")
            self._on_superseded()
        else:
            await self._rejoin(reply.status)

    async def leave(self) -> None:
        """Tells Redis that the worker stops; called after the last heartbeat. Its sandboxes are kept for a while for
        the next process."""
        self._lease.drop()
        try:
            await self._roster.leave(replace(self._report_with_coordinators(), leaving=True), self._epoch)
        except WarrenError as exc:
            _log.warning("worker_leave_not_saved", error=exc)

    async def _renew_lease(self, reply: HeartbeatReply, requested_at: float) -> None:
        if reply.run_id:
            self._problems.clear("cluster", "cluster_available")
        if self._run_id and reply.run_id not in ("", self._run_id):
            _log.warning("redis_changed", reason="run_id_differs", action="reconcile")
            self._is_reconciled = False
        # Before the renewal, because we must not serve sessions that were taken from us. Through a coordinator (without
        # run_id) there is nothing to compare with, and nothing was taken while our lease ran.
        if reply.run_id or self._lease.left_s <= 0:
            await self._reconcile_once()
        self._run_id = reply.run_id or self._run_id
        self._renewed_without_redis = not reply.run_id
        self._lease.renew(requested_at)

    async def _rejoin(self, status: LeaseStatus) -> None:
        """Registers again, and serves nobody until the sessions were compared.

        A lease that was last renewed while nobody had Redis may still be used up: nobody could take a session then.
        """
        if not self._renewed_without_redis:
            self._lease.drop()
        self._is_reconciled = False
        _log.warning("lease_lost", status=status, action="reconcile")
        requested_at = self._clock.now()
        await self._register()
        await self._reconcile_once()
        self._run_id = ""
        reply = await self._beat_in_redis()
        if reply.status is LeaseStatus.OK:
            await self._renew_lease(reply, requested_at)

    async def _reconcile_once(self) -> None:
        """Compares the sessions unless that was done. If it fails, the next heartbeat tries again."""
        if not self._is_reconciled:
            await self._reconcile()
            self._is_reconciled = True

    async def _register(self) -> None:
        self._epoch = await self._roster.register(self._report_with_coordinators(), self._epoch)

    async def _beat_in_redis(self) -> HeartbeatReply:
        requested_at = self._clock.now()
        reply = await self._roster.beat(self._report_with_coordinators(), self._epoch)
        if reply.status is LeaseStatus.OK:
            self._redis_known_at = requested_at
            self._reported, self._named = self._named, reply.coordinators or self._named
        return reply

    def _report_with_coordinators(self) -> Report:
        return replace(self._report(), coordinators=tuple(peer.id for peer in self._named))

    async def _beat_through_coordinators(self) -> HeartbeatReply | None:
        """Asks all coordinators at once and returns the first status; None if there is none.

        If all of them have lost Redis, nobody has taken a session since then. They cannot tell what was taken before,
        so a lease that has run out is not renewed.
        """
        if not self.coordinators:
            return None
        requested_at = self._clock.now()
        requests = [asyncio.ensure_future(self._ask_coordinator(peer)) for peer in self.coordinators]
        all_without_redis = True
        try:
            for request in asyncio.as_completed(requests):
                answer = await request
                if isinstance(answer, LeaseStatus):
                    if answer is LeaseStatus.OK:
                        self._redis_known_at = requested_at
                    return HeartbeatReply(answer)
                all_without_redis = all_without_redis and answer is None
        finally:
            for task in requests:
                task.cancel()
        may_serve = all_without_redis and self._may_serve_without_redis(requested_at)
        return HeartbeatReply(LeaseStatus.OK) if may_serve else None

    def _may_serve_without_redis(self, now: float) -> bool:
        """Returns whether only the coordinators that we asked may give us up, and Redis has not forgotten us yet."""
        is_remembered = now - self._redis_known_at < FORGET_WORKER_S - LEASE_S
        return bool(self._reported) and is_remembered and self._lease.left_s > 0

    async def _ask_coordinator(self, peer: Peer) -> LeaseStatus | Unavailable | None:
        try:
            return await self._renew_through(peer, self._report().id, self._epoch)
        except Unavailable as exc:
            return exc
