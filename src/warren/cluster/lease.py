"""The permission of a worker to serve: a lease that it must renew.

By the worker's own clock the lease never lasts longer than by Redis' clock, because it is counted from the moment
before the renewal was requested. A coordinator that gives up a session checks the lease by Redis' time in the same
step. So there is no moment in which both may act. `Heartbeat` renews the lease, `WorkerEntrance` checks it.
"""

from warren.cluster.roster import LEASE_S
from warren.kernel.clock import Clock
from warren.model.errors import Unavailable


class Lease:
    """`clock` must keep running while the machine sleeps or the process is stopped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = float("-inf")

    def __repr__(self) -> str:
        return f"<Lease {self.left_s:.1f} s left>"

    def renew(self, requested_at: float) -> None:
        self._until = max(self._until, requested_at + LEASE_S)

    def drop(self) -> None:
        self._until = float("-inf")

    @property
    def left_s(self) -> float:
        return self._until - self._clock.now()

    def check(self) -> None:
        if self.left_s <= 0:
            raise Unavailable(
                "this worker has lost touch with its cluster, and its sessions may have been given up",
                remedy="try again: when it is back, the session goes on, or is reported lost",
                retry_after_s=2,
            )
