"""A cluster of which every process is in a network namespace of its own."""

import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cluster_processes import SECRET
from faults.cluster.cluster_world import FLAGS, POOL, ClusterWorld
from faults.world import new_state
from networks import Network, Place
from redis_server import RedisServer
from server_process import ServerProcess

API_KEY: Final = secrets.token_hex(16)
HEADERS: Final = {"Authorization": f"Bearer {API_KEY}"}
_NODE: Final = (sys.executable, "-m", "warren.cli.main")


class PlacedProcess(ServerProcess):
    """`role` is coordinator or worker."""

    def __init__(self, network: Network, place: Place, role: str, state_dir: Path, *flags: str, **environ: str) -> None:
        self._network, self.place = network, place
        where = ("--host", place.address, "--worker-id", place.namespace.rpartition("-")[2])
        super().__init__(state_dir, *where, *flags, argv=(*place.within, *_NODE, role), **environ)

    @property
    def url(self) -> str:
        return f"http://{self.place.address}:{self.port}"

    def wait_until_ready(self) -> None:
        with self._network.inside():
            super().wait_until_ready()


class NetworkedWorld(ClusterWorld):
    """Names of places: `redis`, `c1`, `c2`, `w1`, `w2`, `w3`."""

    def __init__(self, image_cache: Path, *, workers: int = 3, coordinators: int = 2) -> None:
        self.network = Network()
        try:
            names = ["redis", *_numbered("c", coordinators), *_numbered("w", workers)]
            self.places: Mapping[str, Place] = {name: self.network.place(name) for name in names}
        except BaseException:
            self.network.close()
            raise
        self._states = [new_state(image_cache) for _ in names]
        self.redis = RedisServer(
            self._states[0],
            "--appendonly",
            "yes",
            host=self.places["redis"].address,
            within=self.places["redis"].within,
        )
        environ = {"WARREN_REDIS_URL": self.redis.url, "WARREN_CLUSTER_SECRET": SECRET, "WARREN_API_KEY": API_KEY}
        nodes = [
            PlacedProcess(
                self.network,
                self.places[name],
                "worker" if name.startswith("w") else "coordinator",
                state,
                *FLAGS,
                **environ,
                **POOL,
            )
            for name, state in zip(names[1:], self._states[1:], strict=True)
        ]
        self._coordinators: list[ServerProcess] = [*nodes[:coordinators]]
        self._workers: dict[str, ServerProcess] = dict(
            zip(names[1 + coordinators :], nodes[coordinators:], strict=True)
        )

    @property
    def workers(self) -> dict[str, ServerProcess]:
        return self._workers

    @property
    def coordinators(self) -> list[ServerProcess]:
        return self._coordinators

    @property
    def urls(self) -> list[str]:
        return [coordinator.url for coordinator in self._coordinators]

    def start(self) -> None:
        self.redis.start()
        self.redis.ask("SET", "{warren}", "1")
        processes = [*self._workers.values(), *self._coordinators]
        for process in processes:
            process.start(wait=False)
        for process in processes:
            process.wait_until_ready()

    def close(self) -> None:
        try:
            for process in (*self._workers.values(), *self._coordinators):
                process.kill()
            self.redis.kill()
            self._remove_states()
        finally:
            self.network.close()

    def stats(self, worker: ServerProcess) -> dict[str, object]:
        with self.network.inside():
            return super().stats(worker)


def _numbered(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(1, count + 1)]
