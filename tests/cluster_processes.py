"""A real cluster in processes of its own: Redis, coordinators and workers on free ports of loopback."""

import contextlib
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from redis_server import RedisServer
from server_process import ServerProcess
from this_run import patience

SECRET = secrets.token_hex(16)
_NODE = (sys.executable, "-m", "warren.cli.main")
_SETTLED_S = patience(40.0)


class Cluster:
    """`state_dirs`: the directories of the workers. `places`: those of the coordinators, for their logs."""

    def __init__(
        self,
        redis: RedisServer,
        state_dirs: Sequence[Path],
        places: Sequence[Path],
        *flags: str,
        provider: str = "oci",
        **environ: str,
    ) -> None:
        self.redis = redis
        environ = {"WARREN_REDIS_URL": redis.url, "WARREN_CLUSTER_SECRET": SECRET, **environ}
        self.workers = {
            f"worker-{number}": ServerProcess(
                state, "--worker-id", f"worker-{number}", *flags, provider=provider, argv=(*_NODE, "worker"), **environ
            )
            for number, state in enumerate(state_dirs, 1)
        }
        self.coordinators = [
            ServerProcess(place, "--worker-id", place.name, argv=(*_NODE, "coordinator"), provider=provider, **environ)
            for place in places
        ]

    @property
    def state_dirs(self) -> list[Path]:
        return [worker.state_dir for worker in self.workers.values()]

    @property
    def urls(self) -> list[str]:
        return [coordinator.url for coordinator in self.coordinators]

    @property
    def processes(self) -> list[ServerProcess]:
        return [*self.workers.values(), *self.coordinators]

    def start(self) -> None:
        """Starts all processes. Marks Redis as known to be empty: otherwise coordinators wait some seconds for lost
        data."""
        self.redis.ask("SET", "{warren}", "1")
        for process in self.processes:
            process.start(wait=False)
        for process in self.processes:
            process.wait_until_ready()

    def stop(self) -> None:
        for process in (*self.coordinators, *self.workers.values()):
            assert process.stop() == 0, process.log[-3000:]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def wait_until(self, holds: object, what: str, patience_s: float = _SETTLED_S) -> None:
        assert callable(holds)
        deadline = time.monotonic() + patience_s
        while not holds():
            assert time.monotonic() < deadline, f"{what} in {patience_s} s"
            time.sleep(0.05)


@contextlib.contextmanager
def running_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Starts the cluster, and stops it in order. After a failure its sandboxes may be left, and the test run reports
    them."""
    cluster.redis.start()
    try:
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        cluster.kill()
        cluster.redis.kill()
