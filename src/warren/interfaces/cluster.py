"""The cluster, as the coordinator's own routes see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from warren.interfaces.worker import WorkerStats
from warren.model.metrics import LatestMetrics

WORKER_STATES: Final = ("ready", "draining", "stopping", "incompatible", "dead")


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as its last heartbeat described it. `state` is one of WORKER_STATES. `lease_left_s` is negative once the
    lease has run out."""

    id: str
    state: str
    address: str
    version: str
    protocol: int
    provider: str
    labels: Mapping[str, str]
    sessions: int
    capacity: int
    pressure: float
    memory: float
    ready: Mapping[str, int]
    waiting: int
    epoch: int
    lease_left_s: float


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """`settled` is False after Redis has lost its data, until the workers have published theirs again."""

    coordinator: str
    redis: str
    settled: bool
    workers: Sequence[WorkerStatus]


@dataclass(frozen=True, slots=True)
class ClusterDemand:
    """How many workers are `wanted`, and why: `sessions`, `room`, `queue` or `least`. `workers` are those that take new
    sessions. `load` is how full the machines are in the mean, up to 1. `may_stop`: workers that are drained and have no
    session any more."""

    wanted: int
    reason: str
    workers: int
    sessions: int
    capacity: int
    waiting: int
    load: float
    may_stop: Sequence[str]


class ClusterControl(Protocol):
    """`drain` and `remove` raise NotFound for an unknown worker. `figures` returns the figures of the workers that
    answer. `session_metrics` asks workers for the latest metrics of a tenant's sessions, whose ids are given by worker;
    sessions of workers that do not answer are left out."""

    def status(self) -> ClusterStatus: ...
    def demand(self) -> ClusterDemand: ...
    async def drain(self, worker_id: str, draining: bool) -> WorkerStatus: ...
    async def remove(self, worker_id: str) -> None: ...
    def check_ready(self) -> None: ...
    def pool_size(self) -> int: ...
    def claimed(self) -> int: ...
    async def figures(self) -> Mapping[str, WorkerStats]: ...
    async def session_metrics(
        self, tenant: str, session_ids: Mapping[str, Sequence[str]]
    ) -> Mapping[str, LatestMetrics]: ...
