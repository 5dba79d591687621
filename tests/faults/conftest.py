"""State directories that are one test's alone, and servers on them that may be killed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.faulty_server import ARGV, FAULT
from faults.world import FLAGS, new_state, remove_state
from server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


@pytest.fixture
def own_state(image_cache: Path) -> Iterator[Path]:
    """A state directory with the kept images, and at the end without any sandbox."""
    path = new_state(image_cache)
    yield path
    remove_state(path)


@pytest.fixture
def start_server(own_state: Path) -> Iterator[StartServer]:
    """Starts the server that can be told where to die."""
    servers: list[ServerProcess] = []

    def start(*flags: str, provider: str = "oci", **environ: str) -> ServerProcess:
        server = ServerProcess(own_state, *FLAGS, *flags, provider=provider, argv=ARGV, **environ)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        (own_state / FAULT).unlink(missing_ok=True)
        server.kill()
