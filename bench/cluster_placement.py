"""Measures how fast a worker is chosen and how evenly sessions are spread, in a simulated cluster of 1,000 workers.

    .venv/bin/python bench/cluster_placement.py            100,000 sessions each time, about a minute
    .venv/bin/python bench/cluster_placement.py --quick    a tenth of everything, to see whether it works

The workers have a capacity of 100, 200 or 400; every other one has a pool. Each sends a heartbeat every 2 s, at a time
of its own, and 5,000 sessions a second come to random coordinators. Then every tenth worker dies, and its sessions are
placed anew before the next heartbeat. Time is simulated; only the decisions are timed. Load is relative: sessions
divided by capacity. Each row ends with its target and whether this run met it; a missed target is not
an error.
"""

import os
import random
import statistics
import sys
import time
from dataclasses import replace

from sandboxes import Table

from warren.cluster.placement import DEFAULT_COORDINATORS, Candidate, Requirements, rank_workers

WORKERS = 1000
PER_WORKER = 100
PER_WORKER_S = 5
PERIOD_S = 2.0
CAPACITIES = (100, 200, 400)
POOL = 5
WANT = Requirements("base", "acme")


class Cluster:
    """A simulated cluster. `assumed` is how many coordinators each coordinator believes there are."""

    def __init__(self, workers: int, coordinators: int, assumed: int) -> None:
        self.rng = random.Random(1)
        self.capacities = [CAPACITIES[number % len(CAPACITIES)] for number in range(workers)]
        self.claimed = [0] * workers
        self.alive = [True] * workers
        self.beats = sorted((self.rng.uniform(0, PERIOD_S), number) for number in range(workers))
        self.views = [[self.candidate(number) for number in range(workers)] for _ in range(coordinators)]
        self.assumed = assumed
        self.next_beat = 0
        self.refused = 0
        self.took_s: list[float] = []

    def candidate(self, number: int) -> Candidate:
        return Candidate(
            id=str(number),
            providers=("oci",),
            labels={"arch": "x86_64"},
            capacity=self.capacities[number],
            claimed=self.claimed[number],
            by_tenant=0,
            ready={"base": POOL} if number % 2 else {},
            waiting=0,
            pressure=0.0,
            draining=False,
            alive=self.alive[number],
            assigned=0,
        )

    def receive_heartbeats(self, now: float) -> None:
        """Receives the heartbeats up to `now`."""
        while self._beat_at() <= now:
            number = self.beats[self.next_beat % len(self.beats)][1]
            fresh = self.candidate(number)
            for view in self.views:
                view[number] = fresh
            self.next_beat += 1

    def _beat_at(self) -> float:
        rounds, index = divmod(self.next_beat, len(self.beats))
        return rounds * PERIOD_S + self.beats[index][0]

    def place(self) -> None:
        """Places one session. If a worker is full and refuses it, tries the next one."""
        view, tie = self.rng.choice(self.views), self.rng.getrandbits(64)
        start = time.perf_counter()
        names = rank_workers(WANT, view, tie, coordinators=self.assumed)
        self.took_s.append(time.perf_counter() - start)
        for number in map(int, names):
            view[number] = replace(view[number], assigned=view[number].assigned + 1)
            if self.claimed[number] < self.capacities[number]:
                self.claimed[number] += 1
                return
            self.refused += 1
        raise RuntimeError("no worker took the session")

    def fill(self) -> int:
        """Places all sessions, and returns how many."""
        sessions = PER_WORKER * len(self.claimed)
        for number in range(sessions):
            self.receive_heartbeats(number / (PER_WORKER_S * len(self.claimed)))
            self.place()
        return sessions

    def kill_workers(self) -> int:
        """Kills every tenth worker, and returns how many sessions were placed anew."""
        dead = self.rng.sample(range(len(self.claimed)), len(self.claimed) // 10)
        lost = sum(self.claimed[number] for number in dead)
        for number in dead:
            self.alive[number], self.claimed[number] = False, 0
            for view in self.views:
                view[number] = self.candidate(number)
        for _ in range(lost):
            self.place()
        return lost

    def loads(self) -> list[float]:
        """Returns the loads of the live workers, as multiples of the mean load."""
        living = [number for number, alive in enumerate(self.alive) if alive]
        mean = sum(self.claimed[number] for number in living) / sum(self.capacities[number] for number in living)
        return [self.claimed[number] / self.capacities[number] / mean for number in living]


def show_times(table: Table, took_s: list[float]) -> None:
    mean, p99 = statistics.fmean(took_s), statistics.quantiles(took_s, n=100)[98]
    table.add("time for a decision, mean", f"{mean * 1000:.3f} ms", "< 1 ms", mean < 0.001)
    table.add("time for a decision, p99", f"{p99 * 1000:.3f} ms")
    table.add("decisions a second", f"{1 / mean:,.0f}")


def show_balance(table: Table, cluster: Cluster) -> None:
    loads = cluster.loads()
    table.add("fullest worker, of the mean load", f"{max(loads):.3f} x", "<= 1.2 x", max(loads) <= 1.2)
    table.add("emptiest worker, of the mean load", f"{min(loads):.3f} x", ">= 0.8 x", min(loads) >= 0.8)
    table.add("standard deviation, of the mean load", f"{statistics.pstdev(loads):.3f}")
    for capacity in CAPACITIES:
        alive = [number for number, alive in enumerate(cluster.alive) if alive]
        some = [load for load, number in zip(loads, alive, strict=True) if cluster.capacities[number] == capacity]
        table.add(f"workers with a capacity of {capacity}, of the mean load", f"{statistics.fmean(some):.3f} x")


def trial(table: Table, workers: int, coordinators: int, assumed: int) -> None:
    cluster = Cluster(workers, coordinators, assumed)
    print(f"\ncoordinators: {coordinators}, assumed by each: {assumed}", flush=True)
    print(f"  {cluster.fill():,} sessions placed on {workers:,} workers")
    show_times(table, cluster.took_s)
    show_balance(table, cluster)
    cluster.took_s.clear()
    print(f"  every tenth worker is dead, {cluster.kill_workers():,} sessions placed anew")
    show_times(table, cluster.took_s)
    show_balance(table, cluster)
    table.add("refusals by full workers", f"{cluster.refused:,}")


def run(workers: int = WORKERS) -> None:
    print(f"\n{os.cpu_count()} cores, {os.uname().machine}, Python {sys.version.split()[0]}")
    table = Table()
    trials(table, workers)
    print(f"\n{table.missed} targets missed")


def trials(table: Table, workers: int) -> None:
    trial(table, workers, coordinators=1, assumed=1)
    trial(table, workers, coordinators=3, assumed=3)
    trial(table, workers, coordinators=3, assumed=DEFAULT_COORDINATORS)


if __name__ == "__main__":
    run(WORKERS // 10 if "--quick" in sys.argv[1:] else WORKERS)
