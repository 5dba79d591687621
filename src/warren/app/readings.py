"""Where each kind of process finds the values that its metrics are read from."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from warren.cluster.lease import Lease
from warren.governance.metrics.readings import Readings
from warren.interfaces.cluster import WORKER_STATES, ClusterControl
from warren.model.errors import WarrenError
from warren.model.session import SessionState
from warren.sessions.manager import Sessions
from warren.sessions.port_connections import PortConnections
from warren.stores.mirrored import MirroredStore
from warren.worker.worker import LocalWorker

Read = Callable[[], Awaitable[Readings]]


def server_readings(sessions: Sessions, connections: PortConnections) -> Read:
    async def read() -> Readings:
        counts = None
        with suppress(WarrenError):  # a store that does not answer must not hide the rest
            counts = _by_state(await sessions.store.count())
        assert sessions.worker is not None
        return Readings(sessions=counts, worker=sessions.worker.stats(), preview_connections=connections.total)

    return read


def worker_readings(mirror: MirroredStore, worker: LocalWorker, connections: PortConnections, lease: Lease) -> Read:
    """Counts only this worker's own sessions, so that the sum over all workers is right."""

    async def read() -> Readings:
        return Readings(
            sessions=_by_state(Counter(session.state for session in mirror.own())),
            worker=worker.stats(),
            preview_connections=connections.total,
            lease_left_s=lease.left_s,
        )

    return read


def coordinator_readings(control: ClusterControl) -> Read:
    async def read() -> Readings:
        counts = Counter(worker.state for worker in control.status().workers)
        return Readings(
            cluster_workers={state: counts[state] for state in WORKER_STATES}, workers_wanted=control.demand().wanted
        )

    return read


def _by_state(counts: Mapping[SessionState, int]) -> dict[str, int]:
    """Leaves out sessions that have ended: their rows stay for a while, but nothing runs for them."""
    return {str(state): counts.get(state, 0) for state in SessionState if state is not SessionState.ENDED}
