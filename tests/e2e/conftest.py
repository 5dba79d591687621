"""State directories and clients for the suites. The modules that run them say which server (`url`) and `hosts`."""

import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from e2e.api_client import Api, SessionApi
from server_process import ServerProcess, running_server
from this_run import new_state_dir

NewState = Callable[[], Path]


@pytest.fixture(scope="session")
def new_state(image_cache: Path) -> Iterator[NewState]:
    """Makes state directories with the kept images. Their paths are short: sockets live below them."""
    made: list[Path] = []

    def make() -> Path:
        made.append(new_state_dir(image_cache))
        return made[-1]

    yield make
    left = [sandbox for path in made for folder in ("sandboxes", "docker") for sandbox in (path / folder).glob("*")]
    told = "\n".join(map(_told_of, left))
    for path in (*left, *made):  # a state directory may have its sandboxes elsewhere, in memory
        shutil.rmtree(path, ignore_errors=True)
    assert left == [], told


def _told_of(sandbox: Path) -> str:
    """What is in the directory of a sandbox, and what the server's log says about it."""
    log = sandbox.parents[1] / "server.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    about = [line for line in lines if sandbox.name in line] or lines[-20:]
    return "\n".join([f"{sandbox}: {sorted(each.name for each in sandbox.iterdir())}", *about])


@pytest.fixture(scope="module")
def guarded(new_state: NewState) -> Iterator[ServerProcess]:
    """A server that asks for keys."""
    with running_server(new_state(), provider="fake", WARREN_AUTH="true", WARREN_MIN_FREE_MEMORY_MB="1") as server:
        yield server


@pytest.fixture
async def admin(guarded: ServerProcess) -> AsyncIterator[Api]:
    (key,) = json.loads(guarded.credentials.read_text()).values()
    async with Api(guarded.url, {"X-API-Key": key}) as api:
        yield api


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with Api(url) as api:
        yield api


@pytest.fixture
async def session(api: Api) -> AsyncIterator[SessionApi]:
    async with api.session() as session:
        yield session
