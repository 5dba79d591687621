"""A cluster as a coordinator's own routes see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from warren.interfaces.worker import WorkerStats
from warren.model.metrics import LatestMetrics

WORKER_STATES: Final = ("ready", "draining", "stopping", "incompatible", "dead")


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as its last heartbeat described it. `state` is one of WORKER_STATES. `lease_left_s` is negative since
    the lease ran out."""

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


class ClusterControl(Protocol):
    """`drain` and `remove` raise NotFound for a worker that is not there. `figures` has the workers that answer.
    `session_metrics` asks the workers for the last points of a tenant's sessions, given by worker, and has those of the
    workers that answer."""

    def status(self) -> ClusterStatus: ...
    async def drain(self, worker_id: str, draining: bool) -> WorkerStatus: ...
    async def remove(self, worker_id: str) -> None: ...
    def check_ready(self) -> None: ...
    def pool_size(self) -> int: ...
    def claimed(self) -> int: ...
    async def figures(self) -> Mapping[str, WorkerStats]: ...
    async def session_metrics(
        self, tenant: str, session_ids: Mapping[str, Sequence[str]]
    ) -> Mapping[str, LatestMetrics]: ...
