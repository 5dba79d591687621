"""What every test may ask for: images, a state directory, a Docker engine. And at the end: nothing may be left."""

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
import selection
import this_run
from docker_engine import DockerEngine
from event_loops import pytest_runtest_teardown as pytest_runtest_teardown
from leftovers import SandboxIds, wait_for_leftovers
from xdist.scheduler import LoadScopeScheduling

from warren.images.store.store import BUILDABLE, ImageStore

_CACHE = Path(__file__).parents[1] / "build" / "test-state"

hypothesis.settings.register_profile("untimed", deadline=None)  # how long a test takes depends on the machine
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def image_cache() -> Path:
    """The state directory whose images are kept from one test run to the next."""
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
    # Only one process of a run owns it: tests/run.py, or this one if it was started without.
    if this_run.join():
        config.pluginmanager.register(_Owner())
    if config.option.basetemp is None:
        config.option.basetemp = this_run.basetemp()


class _Owner:
    """Looks at the end for what the run has left behind."""

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


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Ends the SDK's local mode, as the end of a program does: the processes of xdist end without that."""
    engine = sys.modules.get("warren.local.engine")
    if engine is not None:
        engine.ENGINE.end()


def pytest_sessionstart() -> None:
    # Whoever starts the tests in the background has it ignored, and what the tests start would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests before pytest chooses by mark; the groups that take longest come first."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if is_whole and (idle := selection.idle_patterns(item.nodeid for item in items)):
        raise pytest.UsageError(f"no test has a name that tests/selection.py expects: {idle}")
    for item, mark in selection.marks(items):
        item.add_marker(mark)
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            _end_in_its_loop(item)
    items.sort(key=lambda item: selection.start_order(item.nodeid))


_TO_BE_CANCELLED_S = 60


def _end_in_its_loop(item: pytest.Function) -> None:
    """Cancels an async test at its time limit.

    The signal of pytest-timeout interrupts the event loop but leaves the coroutine in it, so the fixtures' teardown
    would wait for it forever. For a test that does not heed its cancellation the process ends some time later.
    """
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    item.obj = _limited(item.obj, limit_s)
    item.add_marker(pytest.mark.timeout(limit_s + _TO_BE_CANCELLED_S, method="thread"), append=False)


def _limited(test: Callable[..., Awaitable[None]], limit_s: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(*args: object, **kwargs: object) -> None:
        with anyio.fail_after(limit_s):
            await test(*args, **kwargs)

    return limited


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # else it begins with the groups of most tests, not with the longest
    return _GroupScheduling(config, log)


class _GroupScheduling(LoadScopeScheduling):
    """Gives whole groups to the processes, so that what a group's tests share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        return selection.group(nodeid)
