"""The fixture `sandbox` for the tests of other projects, by `pytest -p warren.pytest`.

    @pytest.mark.sandbox(environment="python", network={"allow": ["pypi.org"]})
    def test_it_runs(sandbox):
        assert sandbox.execute("python3 -c 'print(1)'").output == "1\\n"

Each test has a session of its own, which ends with it, so tests can run side by side. The mark takes the options of
SandboxClient; the mark of a class or a module holds for what is in it. WARREN_URL and WARREN_API_KEY say which server.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from warren.sdk.blocking.client import SandboxClient


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sandbox(**options): what the test's fixture `sandbox` is like")


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> Iterator[SandboxClient]:
    """A SandboxClient with a session of its own; `AsyncSandboxClient.attach(sandbox.session_id)` is its async twin."""
    options: dict[str, Any] = {}
    for mark in reversed([*request.node.iter_markers("sandbox")]):  # the test's own come last
        options |= mark.kwargs
    with SandboxClient(**options) as client:
        client.create_session()
        yield client
