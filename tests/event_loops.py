"""An event loop that cannot be closed fails only the test that left it open. conftest.py imports the hook."""

import gc
from collections.abc import Generator

import anyio.pytest_plugin as plugin
import pytest
from _pytest.unraisableexception import collect_unraisable


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Forgets a loop that could not be closed. When warnings are errors, uvloop refuses to close a loop with an open
    connection. anyio would run all later tests of the process in that loop, and a later test would be blamed for the
    connection."""
    try:
        return (yield)
    finally:
        if plugin._current_runner is not None and not plugin._runner_leases:
            plugin._runner_stack = plugin._current_runner = None
            gc.collect()
            collect_unraisable(item.config)
