"""What lets a worker serve: a lease that it must renew, by its own clock never longer than by Redis'.

The time of a renewal is taken before it is asked for, so what the worker believes ends before what Redis says. Who
takes over its sessions looks at Redis' time in the same step, so there is no moment in which both may act.
"""

from warren.clock import Clock
from warren.cluster.members import LEASE_S
from warren.model.errors import Unavailable


class Lease:
    """`clock` must count the time in which the machine, or this process, stood still."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = float("-inf")

    def __repr__(self) -> str:
        return f"<Lease {self.left_s:.1f} s left>"

    def renewed(self, asked_at: float) -> None:
        self._until = max(self._until, asked_at + LEASE_S)

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
