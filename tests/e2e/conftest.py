"""State directories and clients for the suites. The modules that run them say which server (`url`) and `hosts`."""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from e2e.api_client import Api, SessionApi
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
    for path in made:
        shutil.rmtree(path, ignore_errors=True)
    assert left == []


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with Api(url) as api:
        yield api


@pytest.fixture
async def session(api: Api) -> AsyncIterator[SessionApi]:
    async with api.session() as session:
        yield session
