"""The figures of a worker, as JSON and back, also those of a worker of another version."""

import json
from dataclasses import asdict

from warren.interfaces.worker import GuardStats, PoolStats, WorkerStats


def test_figures_come_back_from_json_as_they_were() -> None:
    pools = {"base": PoolStats(ready=3, hit_rate=0.5, last_failure="no"), "base@docker": PoolStats(waiting=1)}
    stats = WorkerStats(5, 2, 0, pools, GuardStats(memory_free_mb=7, pressure=True))
    assert WorkerStats.from_json(json.loads(json.dumps(asdict(stats)))) == stats


def test_figures_that_are_unknown_are_ignored_and_those_that_are_missing_are_zero() -> None:
    values = {"claimed": 1, "colour": "red", "pools": {"base": {"ready": 2, "mood": "good"}}, "guard": {"moon": 1}}
    assert WorkerStats.from_json(values) == WorkerStats(claimed=1, pools={"base": PoolStats(ready=2)})
    assert WorkerStats.from_json({}) == WorkerStats()
