"""Where the tests of the dashboard run: a server by itself, and two coordinators of one cluster, both with keys."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cluster_processes import Cluster, running_cluster
from e2e.api_client import Api
from e2e.conftest import NewState
from marks import first_of
from redis_server import RedisServer
from server_process import ServerProcess, running_server

KINDS = first_of(("alone", "cluster"))
ADMIN = "the-operator-has-this-key"
HOST = "warren.example.com"
EMBEDDER = "https://operator.example"
_SETTINGS = {
    "WARREN_API_KEY": ADMIN,
    "WARREN_MIN_FREE_MEMORY_MB": "1",
    "WARREN_ALLOWED_HOSTS": HOST,
    "WARREN_STREAM_KEEPALIVE_S": "0.3",
    "WARREN_EMBED_ORIGINS": f"{EMBEDDER}/, http://LOCALHOST:3000",
}


@dataclass(frozen=True)
class Place:
    """The same server twice, or two coordinators of one cluster."""

    server: ServerProcess
    other: ServerProcess


@contextlib.contextmanager
def running_place(kind: str, new_state: NewState) -> Iterator[Place]:
    if kind == "alone":
        with running_server(new_state(), provider="fake", **_SETTINGS) as server:
            yield Place(server, server)
        return
    states = [new_state() for _ in range(3)]
    redis = RedisServer(states[0] / "redis")
    made = Cluster(redis, states[:1], states[1:], "--on-stop", "destroy", provider="fake", **_SETTINGS)
    with running_cluster(made) as cluster:
        yield Place(*cluster.coordinators)


async def new_key(admin: Api, tenant: str = "acme", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = await admin.post("/api/admin/keys", {"name": "x", "tenant": tenant, **more}, status=201)
    return made


def policy_of(headers: Any) -> dict[str, str]:
    rules = (rule.strip().partition(" ") for rule in headers["Content-Security-Policy"].split(";"))
    return {name: value for name, _, value in rules}
