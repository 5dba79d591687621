"""How many workers a cluster needs, for whoever starts and stops machines: HPA, KEDA, a script.

`DemandWatch.look` is called with every view of the workers (fleet.py). What it tells goes up when the need has lasted
for RISE_S, and down when nothing higher was needed for `settle_s`: machines are not started for a moment's queue, nor
stopped between two bursts. Every coordinator computes it from the same reports. Nothing here starts or stops anything.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from warren.interfaces.cluster import ClusterDemand, WorkerStatus

RISE_S: Final = 10.0
_LEAST_LOAD: Final = 0.05  # a machine that looks emptier tells nothing about how many sessions fill it


@dataclass(frozen=True, slots=True)
class DemandGoal:
    """`fill`: how full workers should be, up to 1. `least` and `most` workers are wanted; with 0 there is no most."""

    fill: float = 0.75
    least: int = 1
    most: int = 0
    settle_s: float = 300.0


def need(workers: Sequence[WorkerStatus], goal: DemandGoal) -> tuple[int, str]:
    """Returns how many workers are needed now, and for what: `sessions`, `room` (memory and disk), `queue` or `least`.

    Workers that are drained count with what they still have: others have to take it over when it begins anew.
    """
    there = [worker for worker in workers if worker.state in ("ready", "draining")]
    if not there:
        return max(goal.least, 0), "least"
    sessions, waiting = sum(each.sessions for each in there), sum(each.waiting for each in there)
    load = sum(map(_load, there))
    capacity = sum(each.capacity for each in there) / len(there)
    by_sessions = math.ceil(sessions / (capacity * goal.fill)) if capacity else 0
    by_room = math.ceil(round(load / goal.fill, 6))
    # Those who wait get sessions like the ones there are.
    fits = max(1.0, sessions / max(load, _LEAST_LOAD) * goal.fill)
    ready = sum(each.state == "ready" for each in there)
    by_queue = ready + math.ceil(waiting / min(fits, capacity or fits)) if waiting else 0
    wanted, why = max((by_sessions, "sessions"), (by_room, "room"), (by_queue, "queue"))
    if wanted <= goal.least:
        return goal.least, "least"
    return (min(wanted, goal.most), why) if goal.most else (wanted, why)


def _load(worker: WorkerStatus) -> float:
    return max(worker.memory, worker.pressure)


class DemandWatch:
    def __init__(self, goal: DemandGoal, now: Callable[[], float] = time.monotonic) -> None:
        self._goal, self._now = goal, now
        self._seen: deque[tuple[float, int, str]] = deque()
        self._since = now()
        self._wanted: tuple[int, str] | None = None
        self._workers: Sequence[WorkerStatus] = ()

    def __repr__(self) -> str:
        return f"<DemandWatch wants {self._wanted[0] if self._wanted else 'nothing yet'}>"

    def look(self, workers: Sequence[WorkerStatus]) -> None:
        now, self._workers = self._now(), workers
        self._seen.append((now, *need(workers, self._goal)))
        while self._seen[0][0] < now - max(self._goal.settle_s, RISE_S):
            self._seen.popleft()
        if now - self._since < self._goal.settle_s or self._wanted is None:
            # It has just begun: what was needed before nobody knows, so it wants those that are there.
            there = sum(worker.state == "ready" for worker in workers), "least"
            self._wanted = max(self._wanted or (self._goal.least, "least"), there)
        rising = min((wanted, why) for at, wanted, why in self._seen if at >= now - RISE_S)
        highest = max((wanted, why) for at, wanted, why in self._seen)
        if now - self._since >= RISE_S and rising[0] > self._wanted[0]:
            self._wanted = rising
        elif now - self._since >= self._goal.settle_s and highest[0] < self._wanted[0]:
            self._wanted = highest

    def demand(self) -> ClusterDemand:
        wanted, reason = self._wanted or (self._goal.least, "least")
        there = [worker for worker in self._workers if worker.state in ("ready", "draining")]
        return ClusterDemand(
            wanted=wanted,
            reason=reason,
            workers=sum(worker.state == "ready" for worker in there),
            sessions=sum(worker.sessions for worker in there),
            capacity=sum(worker.capacity for worker in there),
            waiting=sum(worker.waiting for worker in there),
            load=round(sum(map(_load, there)) / len(there), 3) if there else 0.0,
            may_stop=[each.id for each in there if each.state == "draining" and not each.sessions],
        )
