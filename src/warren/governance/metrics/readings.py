"""Values that parts of a process know anyway, and that are read only when somebody asks for the metrics."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from warren.interfaces.worker import WorkerStats
from warren.model.spec import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Values of the moment; None where this process has no such thing, or cannot read it now. `sessions` and
    `cluster_workers` are counts by state."""

    sessions: Mapping[str, int] | None = None
    worker: WorkerStats | None = None
    cluster_workers: Mapping[str, int] | None = None
    workers_wanted: int | None = None
    preview_connections: int | None = None
    lease_left_s: float | None = None


class ReadingsCollector(Collector):
    """Gives Prometheus the readings that were set last."""

    def __init__(self) -> None:
        self.readings = Readings()

    def describe(self) -> Iterator[Metric]:
        """Returns nothing: otherwise the registry would collect once only to learn the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        now = self.readings
        if now.sessions is not None:
            yield _by_label("warren_sessions", "Sessions by state", "state", now.sessions)
        if now.cluster_workers is not None:
            about = "Workers of the cluster as this coordinator sees them"
            yield _by_label("warren_cluster_workers", about, "state", now.cluster_workers)
        if now.workers_wanted is not None:
            about = "Workers that the cluster needs: to be followed by whoever starts and stops machines"
            yield GaugeMetricFamily("warren_workers_wanted", about, now.workers_wanted)
        if now.preview_connections is not None:
            about = "Connections to servers inside sandboxes"
            yield GaugeMetricFamily("warren_preview_connections", about, now.preview_connections)
        if now.lease_left_s is not None:
            about = "How long this worker may still serve if it cannot renew its lease; 0 since that has run out"
            yield GaugeMetricFamily("warren_worker_lease_seconds", about, max(0.0, now.lease_left_s))
        if now.worker is not None:
            yield from _worker(now.worker)


def _worker(stats: WorkerStats) -> Iterator[Metric]:
    pools = GaugeMetricFamily("warren_pool_sandboxes", "Sandboxes made ahead", labels=["environment", "state"])
    ready, creating = Counter[str](), Counter[str]()
    target, burst, rate = Counter[str](), Counter[str](), dict[str, float]()
    missing = Counter[tuple[str, str]]()
    for name, pool in stats.pools.items():
        environment = name.partition("@")[0]  # several providers may have pools of it
        ready[environment] += pool.ready
        creating[environment] += pool.creating
        target[environment] += pool.target
        burst[environment] += pool.learned_burst
        rate[environment] = rate.get(environment, 0.0) + pool.claim_rate
        if pool.shortage:
            missing[environment, pool.shortage] += max(pool.size, pool.target) - pool.ready
    for state, counts in (("ready", ready), ("creating", creating)):
        for environment, count in counts.items():
            pools.add_metric([environment, state], count)
    yield pools
    about = "Sandboxes that a pool lacks to what it holds in calm times"
    short = GaugeMetricFamily("warren_pool_missing", about, labels=["environment", "reason"])
    for labels, count in missing.items():
        short.add_metric(labels, count)
    yield short
    yield _by_label("warren_pool_target", "Sandboxes that should be ready", "environment", target)
    yield _by_label("warren_pool_learned_burst", "The largest burst of claims remembered", "environment", burst)
    yield _by_label("warren_pool_claim_rate", "Claims per second in the last minute", "environment", rate)
    waiting = sum(pool.waiting for pool in stats.pools.values())
    guard = stats.guard
    for name, about, value in (
        ("warren_queue_waiting", "Claims that queue for a sandbox", waiting),
        ("warren_leaks", "Sandboxes that nobody has and that are still there", stats.leaks),
        ("warren_sandboxes", "Sandboxes of this machine, those of the pools included", stats.sandboxes),
        ("warren_sandboxes_max", "Sandboxes that this machine may have", guard.max_sandboxes),
        ("warren_machine_memory_free_bytes", "Memory that is available", guard.memory_free_mb * MIB),
        ("warren_machine_memory_reserve_bytes", "Memory that must stay available", guard.memory_reserve_mb * MIB),
        ("warren_machine_disk_free_bytes", "Free space of the state directory's disk", guard.disk_free_mb * MIB),
        ("warren_machine_disk_reserve_bytes", "Space of it that must stay free", guard.disk_reserve_mb * MIB),
    ):
        yield GaugeMetricFamily(name, about, value)


def _by_label(name: str, about: str, label: str, values: Mapping[str, int] | Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
