"""A real server with the oci provider for all tests of the integrations."""

from collections.abc import Iterator

import pytest
from e2e.conftest import NewState, new_state
from e2e.hosts import Hosts
from server_process import ServerProcess, running_server

__all__ = ["new_state"]


@pytest.fixture(scope="session")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    with running_server(new_state(), "--pool-size", "3") as server:
        yield server


@pytest.fixture(scope="session")
def url(server: ServerProcess) -> str:
    return server.url


@pytest.fixture(scope="session")
def hosts(server: ServerProcess) -> Hosts:
    return Hosts(server.state_dir)
