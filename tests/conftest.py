"""What every test may ask for: images, a state directory, a Docker engine. And at the end: nothing may be left."""

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_engine import DockerEngine
from leftovers import ours

from warren.worker.images.store import BUILDABLE, ImageStore

_CACHE = Path(__file__).parents[1] / "build" / "test-state"
_PATIENCE_S = 10.0  # the kernel takes its time with cgroups and namespaces


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def image_cache() -> Path:
    """The state directory whose images are kept from one test run to the next."""
    store = ImageStore(_CACHE)
    for name in set(BUILDABLE) - {info.name for info in store.list()}:
        store.build(name)
    return _CACHE


@pytest.fixture(scope="session")
def state_dir(image_cache: Path) -> Iterator[Path]:
    """A state directory for this run, with the kept images. Its path is short: sockets live below it."""
    path = Path(tempfile.mkdtemp(prefix="warren-test-", dir="/tmp"))
    (path / "images").symlink_to(image_cache / "images")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def image_store(state_dir: Path) -> ImageStore:
    return ImageStore(state_dir)


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[DockerEngine]:
    engine = DockerEngine()
    try:
        engine.start()
        yield engine
    finally:
        engine.close()


def pytest_sessionstart(session: pytest.Session) -> None:
    # Whoever starts the tests in the background has it ignored, and what the tests start would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    session.stash[_BEFORE] = ours()


_BEFORE = pytest.StashKey[set[str]]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while (left := ours() - session.stash[_BEFORE]) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line("")
            for line in sorted(left):
                reporter.write_line(f"LEFT BEHIND: {line}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
