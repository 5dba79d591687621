"""How many workers a cluster needs: what it is computed from, and that it neither jumps nor falls at once."""

from typing import Any

import pytest

from warren.cluster.demand import RISE_S, DemandGoal, DemandWatch, need
from warren.interfaces.cluster import WorkerStatus


def worker(number: int = 1, state: str = "ready", **values: Any) -> WorkerStatus:
    usual: dict[str, Any] = {"sessions": 0, "capacity": 100, "pressure": 0.0, "memory": 0.1, "waiting": 0}
    return WorkerStatus(
        id=f"w{number}",
        state=state,
        address="",
        version="",
        protocol=1,
        provider="oci",
        labels={},
        ready={},
        epoch=1,
        lease_left_s=8.0,
        **{**usual, **values},
    )


def several(count: int, **values: Any) -> list[WorkerStatus]:
    return [worker(number, **values) for number in range(count)]


@pytest.mark.parametrize(
    ("workers", "wanted"),
    [
        ([], (1, "least")),
        (several(1), (1, "least")),
        (several(4), (1, "least")),  # their own memory in use does not keep four
        (several(2, sessions=75), (2, "sessions")),
        (several(2, sessions=76), (3, "sessions")),
        (several(2, sessions=10, memory=0.75), (2, "room")),
        (several(2, sessions=10, memory=0.9), (3, "room")),
        (several(2, sessions=10, pressure=1.0), (3, "room")),  # the disk
        ([*several(2, sessions=10, memory=0.5), worker(3, sessions=10, memory=0.5, waiting=1)], (4, "queue")),
        ([*several(2, sessions=10, memory=0.5), worker(3, sessions=10, memory=0.5, waiting=40)], (6, "queue")),
        ([worker(1, waiting=3)], (4, "queue")),  # nobody knows yet how many fit: one each
        ([worker(1, sessions=60), worker(2, "draining", sessions=60)], (2, "sessions")),
        ([worker(1, sessions=60), worker(2, "dead", sessions=60)], (1, "least")),
    ],
)
def test_what_is_needed(workers: list[WorkerStatus], wanted: tuple[int, str]) -> None:
    assert need(workers, DemandGoal()) == wanted


def test_bounds_hold() -> None:
    assert need(several(9, sessions=99), DemandGoal(most=5)) == (5, "sessions")
    assert need(several(1), DemandGoal(least=3)) == (3, "least")
    assert need([], DemandGoal(least=0)) == (0, "least")


class Watched:
    def __init__(self, **goal: Any) -> None:
        self.now = 0.0
        self.watch = DemandWatch(DemandGoal(**goal), lambda: self.now)

    def after(self, seconds: float, workers: list[WorkerStatus]) -> int:
        """What is wanted when the workers have looked like this for so long."""
        for _ in range(round(seconds)):
            self.now += 1
            self.watch.look(workers)
        return self.watch.demand().wanted


def test_a_short_queue_starts_no_machine() -> None:
    seen = Watched()
    assert seen.after(60, several(1)) == 1
    assert seen.after(RISE_S - 2, several(1, waiting=5)) == 1
    assert seen.after(60, several(1)) == 1


def test_what_lasts_is_wanted_soon_and_given_up_late() -> None:
    seen = Watched(settle_s=100.0)
    assert seen.after(60, several(1, sessions=50)) == 1
    assert seen.after(RISE_S + 1, several(2, sessions=90)) == 3
    assert seen.after(90, several(3, sessions=10)) == 3
    assert seen.after(1, several(3, sessions=70)) == 3  # another burst: the time begins again
    assert seen.after(95, several(3, sessions=10)) == 3
    assert seen.after(10, several(3, sessions=10)) == 1


def test_a_coordinator_that_has_just_begun_takes_nothing_away() -> None:
    seen = Watched(settle_s=100.0)
    assert seen.after(1, several(5)) == 5
    assert seen.after(30, several(7)) == 7  # others are found a moment later
    assert seen.after(60, several(7)) == 7
    assert seen.after(20, several(7)) == 1


def test_only_drained_workers_without_sessions_may_stop() -> None:
    seen = Watched()
    seen.after(1, [worker(1), worker(2, "draining", sessions=1), worker(3, "draining"), worker(4, "dead")])
    demand = seen.watch.demand()
    assert (demand.may_stop, demand.workers, demand.sessions) == (["w3"], 1, 1)
