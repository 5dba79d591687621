"""One server by itself, or the coordinator of a small cluster: for tests that hold for both, route by route."""

import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from cluster_processes import Cluster, running_cluster
from e2e.conftest import NewState
from marks import first_of
from redis_server import RedisServer
from server_process import ServerProcess, running_server
from this_run import patience

from warren.cluster.roster import Report

KINDS = first_of(("alone", "cluster"))
DEAD = "worker-dead"
_PATIENCE_S = patience(60.0)


@dataclass(frozen=True)
class Place:
    """Who answers: a server that runs by itself, or a coordinator with one worker. `redis` is the cluster's."""

    server: ServerProcess
    redis: RedisServer | None = None

    def bury(self) -> None:
        """The cluster remembers a dead worker now, which may be removed."""
        if self.redis is None:
            return
        report = Report(DEAD, "127.0.0.1:9", "elsewhere", provider="fake", capacity=1)
        values = {"report": report.to_json(), "home": report.home, "epoch": "1", "until": "1.000000"}
        pairs = [part for pair in values.items() for part in pair]
        self.redis.ask("HSET", f"{{warren}}:worker:{len(DEAD)}:{DEAD}", *pairs)
        self.redis.ask("SADD", "{warren}:workers", DEAD)

    def wait_until_workers_can_be_removed(self, key: str) -> None:
        """The coordinator must have seen Redis for as long as a lease lasts."""
        deadline = time.monotonic() + _PATIENCE_S
        url, headers = f"{self.server.url}/api/cluster/workers/{DEAD}", {"X-API-Key": key} if key else {}
        while True:
            self.bury()
            asked = urllib.request.Request(url, method="DELETE", headers=headers)
            with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(asked, timeout=10):
                return
            assert time.monotonic() < deadline, self.server.log[-2000:]
            time.sleep(0.1)


@contextlib.contextmanager
def running(kind: str, new_state: NewState, *flags: str, **environ: str) -> Iterator[Place]:
    """With the fake provider. Sessions that are left at the end are destroyed."""
    if kind == "alone":
        with running_server(new_state(), *flags, provider="fake", **environ) as server:
            yield Place(server)
        return
    states = [new_state(), new_state()]
    redis = RedisServer(states[0] / "redis")
    cluster = Cluster(redis, states[:1], states[1:], *flags, "--on-stop", "destroy", provider="fake", **environ)
    with running_cluster(cluster):
        place = Place(cluster.coordinators[0], redis)
        place.wait_until_workers_can_be_removed(environ.get("WARREN_API_KEY", ""))
        yield place
