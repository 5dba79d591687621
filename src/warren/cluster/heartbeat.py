"""A worker's place in the cluster: taken, kept with heartbeats, taken again after it was lost.

A worker that cannot reach Redis asks the coordinators it knows of. One that has Redis renews the lease for it. If all
of them have lost Redis too, there is nobody who could take the worker's sessions over, and it goes on, if its lease
was not over before; if one does not answer, that one might be able to, and the worker stops serving when its lease is
over. Whatever may have changed meanwhile is found out by `reconcile` before it serves again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from warren.clock import Clock
from warren.cluster.lease import Lease
from warren.cluster.members import HEARTBEAT_S, Peer, Report
from warren.cluster.roster import Heard, Pulse, Roster
from warren.model.errors import Conflict, NoSpace, Unavailable, WarrenError

_AGAIN_S: Final = 0.5

AskCoordinator = Callable[[Peer, str, int], Awaitable["Pulse | None"]]
"""Has a coordinator renew a worker's lease of this epoch; None if that one has lost Redis too. Raises Unavailable."""

_log = logging.getLogger("warren.cluster")


class Heartbeat:
    def __init__(
        self,
        roster: Roster,
        lease: Lease,
        clock: Clock,
        *,
        report: Callable[[], Report],
        reconcile: Callable[[], Awaitable[None]],
        ask: AskCoordinator,
        superseded: Callable[[], None] = lambda: None,
    ) -> None:
        self._roster = roster
        self._lease = lease
        self._clock = clock
        self._report = report
        self._reconcile = reconcile
        self._ask = ask
        self._superseded = superseded
        self._epoch = 0
        self._run_id = ""
        self._lengthened = False
        self._compared = True  # what is ours, with what Redis says is
        self._coordinators: tuple[Peer, ...] = ()
        self._trouble = ""

    def __repr__(self) -> str:
        return f"<Membership epoch {self._epoch}, {self._lease!r}>"

    async def join(self) -> None:
        """Before the worker looks at its sessions. Waits for Redis; Conflict if the name is another worker's."""
        while True:
            try:
                await self._take_place()
                return
            except Unavailable as exc:
                self._tell(f"waiting for the cluster: {exc.message}")
            except Conflict as exc:
                if not self._epoch:
                    raise
                self._tell(exc.message)
            await self._clock.sleep(_AGAIN_S)

    async def serve(self) -> None:
        """The sessions have been looked at: from now on the worker serves."""
        await self.beat()

    async def run(self) -> None:
        while True:
            asked_at = self._clock.now()
            try:
                await self.beat()
            except Exception as exc:
                # The worker lives by this loop, whatever a part of it raises.
                self._tell(f"the heartbeat failed: {exc}", None if isinstance(exc, WarrenError) else exc)
            await self._clock.sleep(max(0.0, HEARTBEAT_S - (self._clock.now() - asked_at)))

    async def beat(self) -> None:
        asked_at = self._clock.now()
        try:
            heard: Heard | None = await self._roster.beat(self._report(), self._epoch)
        except (Unavailable, NoSpace) as exc:
            self._tell(f"Redis is away: {exc.message}")
            heard = await self._through_others()
        if heard is None:
            return
        if heard.pulse is Pulse.OK:
            await self._renewed(heard, asked_at)
        elif heard.pulse is Pulse.SUPERSEDED:
            self._lease.drop()
            _log.error("another process has taken the place of this worker: it ends")
            self._superseded()
        else:
            await self._come_back(heard.pulse)

    async def _renewed(self, heard: Heard, asked_at: float) -> None:
        restarted = heard.run_id not in ("", self._run_id)
        if self._trouble and heard.run_id:
            _log.info("the cluster is there again")
            self._trouble = ""
        if heard.coordinators:
            self._coordinators = heard.coordinators
        if restarted and self._run_id:
            _log.warning("Redis was restarted, or another one is used: what it knows is compared")
            self._compared = False
        if heard.run_id or self._lease.left_s <= 0:  # who has no way to Redis has nothing to compare with
            await self._compare()
        self._run_id = heard.run_id or self._run_id
        self._lengthened = not heard.run_id
        self._lease.renewed(asked_at)

    async def _come_back(self, pulse: Pulse) -> None:
        """Nobody is served until it is known what is still ours; but for the rest of a lease that was lengthened while
        nobody had Redis: then nobody could take anything either."""
        if not self._lengthened:
            self._lease.drop()
        self._compared = False
        _log.warning("the lease is %s: sessions are compared with the cluster's", pulse)
        asked_at = self._clock.now()
        await self._take_place()
        await self._compare()
        self._run_id = ""
        heard = await self._roster.beat(self._report(), self._epoch)
        if heard.pulse is Pulse.OK:
            await self._renewed(heard, asked_at)

    async def _compare(self) -> None:
        """Tried again with the next heartbeat if it fails."""
        if not self._compared:
            await self._reconcile()
            self._compared = True

    async def _take_place(self) -> None:
        self._epoch = await self._roster.enter(self._report(), self._epoch)

    async def _through_others(self) -> Heard | None:
        """Asks all coordinators at once, and waits for no other when one knows; None if nothing is known. If none of
        them has Redis, nobody has taken anything since then; what was taken before, after the lease was over, they
        could not say."""
        if not self._coordinators:
            return None
        request_context = [asyncio.ensure_future(self._asked(peer)) for peer in self._coordinators]
        nobody_can = True
        try:
            for answered in asyncio.as_completed(request_context):
                answer = await answered
                if isinstance(answer, Pulse):
                    return Heard(answer)
                nobody_can = nobody_can and answer is None
        finally:
            for task in request_context:
                task.cancel()
        return Heard(Pulse.OK) if nobody_can and self._lease.left_s > 0 else None

    async def _asked(self, peer: Peer) -> Pulse | Unavailable | None:
        try:
            return await self._ask(peer, self._report().id, self._epoch)
        except Unavailable as exc:
            return exc

    async def leave(self) -> None:
        """After the last heartbeat: what is here stays, for a while, for the next process."""
        self._lease.drop()
        try:
            await self._roster.leave(replace(self._report(), leaving=True), self._epoch)
        except WarrenError as exc:
            _log.warning("the cluster could not be told that this worker stops: %s", exc)

    def _tell(self, what: str, exc: BaseException | None = None) -> None:
        if what != self._trouble:
            self._trouble = what
            _log.warning("%s", what, exc_info=exc)

    @property
    def coordinators(self) -> Sequence[Peer]:
        return self._coordinators
