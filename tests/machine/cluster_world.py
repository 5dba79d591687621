"""Processes of a cluster one by one, for tests of how they take to each other."""

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cluster_processes import SECRET
from redis_server import RedisServer
from server_process import ServerProcess
from this_run import new_state_dir, patience

ADMIN = "the-operator-of-the-cluster-has-this-key"
PATIENCE_S = patience(60.0)


class Nodes:
    """A Redis, and whatever is started on it; all of it is gone at the end. Coordinators want the key ADMIN."""

    def __init__(self, redis: RedisServer, make_state: Callable[[], Path]) -> None:
        self.redis = redis
        self._make_state = make_state
        self.all: list[ServerProcess] = []

    def worker(self, name: str, *flags: str, state: Path | None = None, **environ: Any) -> ServerProcess:
        return self._node("worker", state or self._make_state(), "--worker-id", name, *flags, **environ)

    def coordinator(self, *flags: str, state: Path | None = None, **environ: Any) -> ServerProcess:
        return self._node("coordinator", state or self._make_state(), *flags, **{"WARREN_API_KEY": ADMIN, **environ})

    def _node(self, kind: str, state: Path, *flags: str, **environ: Any) -> ServerProcess:
        environ = {"WARREN_REDIS_URL": self.redis.url, "WARREN_CLUSTER_SECRET": SECRET, "POOL_SIZE": "1", **environ}
        environ = {"provider": "fake", **environ}
        program = (sys.executable, "-m", "warren.cli.main", kind)
        process = ServerProcess(state, *flags, argv=program, **environ)
        self.all.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(process.log for process in self.all if process.log_path.exists())


@contextlib.contextmanager
def nodes_on(redis: RedisServer, images: Path | None = None) -> Iterator[Nodes]:
    """Redis is said to have been empty always: then nobody waits for sessions that workers may have."""
    made: list[Path] = []

    def make_state() -> Path:
        made.append(new_state_dir())
        if images is not None:
            (made[-1] / "images").symlink_to(images)
        return made[-1]

    nodes = Nodes(redis, make_state)
    redis.start()
    redis.ask("SET", "{warren}", "1")
    try:
        yield nodes
    finally:
        for process in nodes.all:
            process.kill()
        redis.kill()
        for path in made:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def new_nodes(images: Path | None = None) -> Iterator[Nodes]:
    with (
        tempfile.TemporaryDirectory(prefix="warren-redis-") as place,
        nodes_on(RedisServer(Path(place)), images) as all_,
    ):
        yield all_


def wait_until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
