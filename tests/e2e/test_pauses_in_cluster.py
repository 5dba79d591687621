"""Paused sessions of a cluster: coordinators find their workers, and a worker keeps them when it is drained."""

from collections.abc import Iterator

import pytest
from e2e.alone_or_cluster import Place, running
from e2e.api_client import Api
from e2e.conftest import NewState
from e2e.hosts import Hosts
from e2e.pause_suite import PauseSuite
from e2e.server_time import RealTime, ServerTime


@pytest.fixture(scope="module")
def place(new_state: NewState) -> Iterator[Place]:
    with running("cluster", new_state, "--pool-size", "1") as place:
        yield place


@pytest.fixture(scope="module")
def url(place: Place) -> str:
    return place.server.url


@pytest.fixture(scope="module")
def time() -> ServerTime:
    return RealTime()


@pytest.fixture(scope="module")
def hosts(place: Place) -> Hosts:
    return Hosts(place.server.state_dir)


class TestPauses(PauseSuite):
    async def test_a_worker_that_is_drained_keeps_what_is_paused(self, api: Api) -> None:
        async with api.session() as session:
            await session.post("/pause")
            worker = session.found["worker"]
            await api.call("PATCH", f"/api/cluster/workers/{worker}", {"draining": True})
            assert (await session.show())["state"] == "paused"
            assert (await session.exec("echo on"))["stdout"] == "on\n"
            await api.call("PATCH", f"/api/cluster/workers/{worker}", {"draining": False})
