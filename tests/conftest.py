"""Fixtures for every test: images, a state directory, a Docker engine. At the end, checks that nothing is left
behind."""

import functools
import inspect
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import hypothesis
import pytest
import this_run
import warm_parent
from docker_engine import DockerEngine
from event_loops import pytest_runtest_teardown as pytest_runtest_teardown
from leftovers import SandboxIds, wait_for_leftovers

from warren.images.store.store import BUILDABLE, ImageStore

_TESTS = Path(__file__).parent
_CACHE = _TESTS.parent / "build" / "test-state"

# Without a deadline: how long an example takes depends on the machine.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=this_run.examples(100))
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def image_cache() -> Path:
    """The state directory whose images are kept from one run to the next."""
    store = ImageStore(_CACHE)
    for name in set(BUILDABLE) - {info.name for info in store.list()}:
        store.build(name)
    for name in ("python", "node"):  # tests need any image of these names; building the real ones takes minutes
        _point_at_base(_CACHE / "images" / name)
    return _CACHE


def _point_at_base(link: Path) -> None:
    target = link.with_name("base").readlink()
    if not link.is_symlink() or link.readlink() != target:
        new = link.with_name(f".{link.name}-{os.getpid()}")
        new.symlink_to(target)
        new.replace(link)


@pytest.fixture(scope="session")
def state_dir(image_cache: Path) -> Iterator[Path]:
    """A state directory for this run, with the kept images."""
    path = this_run.new_state_dir(image_cache)
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


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # One process owns the run: tests/run.py, or this one if pytest was started without it.
    if this_run.join():
        config.pluginmanager.register(_Owner())
    if config.option.basetemp is None:
        config.option.basetemp = this_run.basetemp()
    if getattr(config.option, "processes", 0) and not config.option.collectonly:
        warm_parent.start()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    warm_parent.stop()


class _Owner:
    """Checks at the end what the run has left behind."""

    def __init__(self) -> None:
        self._sandbox_ids = SandboxIds(this_run.directory())
        self._sandbox_ids.start()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        left = wait_for_leftovers(this_run.name(), self._sandbox_ids.stop(), kept=[this_run.basetemp()])
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        for line in left:
            reporter.write_line(f"LEFT BEHIND {line}", red=True)
        if left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        this_run.end()


@pytest.fixture(scope="session", autouse=True)
def _local_mode() -> Iterator[None]:
    """Ends the SDK's local mode, as the exit of a program would; the processes of a run skip that."""
    engine = sys.modules.get("warren.local.engine")
    if engine is not None:
        engine.ENGINE._process = os.getpid()  # this process was forked from one that imported it, but never used it
    yield
    engine = sys.modules.get("warren.local.engine")
    if engine is not None:
        engine.ENGINE.end()


def pytest_sessionstart() -> None:
    # A shell that starts the tests in the background ignores SIGINT, and what the tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_LONGEST = ("faults/cluster", "faults", "browser", "e2b", "e2e", "machine", "frameworks", "contract")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders the tests so that no process is left with a long group at the end, and sets their time limits."""
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit_s = this_run.patience(float(marker.args[0] if marker else item.config.getini("timeout")))
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            _end_in_its_loop(item, limit_s)
        else:
            item.add_marker(pytest.mark.timeout(limit_s), append=False)
    items.sort(key=_start_order)


def _start_order(item: pytest.Item) -> int:
    folder = item.path.parent.relative_to(_TESTS).as_posix() if item.path.is_relative_to(_TESTS) else ""
    return _LONGEST.index(folder) if folder in _LONGEST else len(_LONGEST)


_TO_BE_CANCELLED_S = 60


def _end_in_its_loop(item: pytest.Function, limit_s: float) -> None:
    """Cancels an async test at its time limit.

    The signal of pytest-timeout interrupts the event loop but leaves the coroutine in it, so the teardown of the
    fixtures would wait for it forever. If the test ignores its cancellation, the process is ended some time later.
    """
    item.obj = _limited(item.obj, limit_s)
    item.add_marker(pytest.mark.timeout(limit_s + _TO_BE_CANCELLED_S, method="thread"), append=False)


def _limited(test: Callable[..., Awaitable[None]], limit_s: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(*args: object, **kwargs: object) -> None:
        with anyio.fail_after(limit_s):
            await test(*args, **kwargs)

    return limited
