"""The suites where the provider e2b may differ from oci, against a server whose far side is a second Warren."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.artifact_suite import ArtifactSuite
from e2e.code_suite import CodeSuite
from e2e.command_suite import CommandSuite
from e2e.conftest import NewState
from e2e.server_time import ServerTime, TurnedTime
from e2e.terminal_suite import TerminalSuite
from far_warren import KEY, running_far_warren
from server_process import ServerProcess
from turnable_server import running_turnable


@pytest.fixture(scope="module")
def far(image_cache: Path) -> Iterator[ServerProcess]:
    with running_far_warren(image_cache) as far:
        yield far


@pytest.fixture(scope="module")
def server(new_state: NewState, far: ServerProcess) -> Iterator[ServerProcess]:
    with running_turnable(
        new_state(),
        *("--pool-size", "2"),
        provider="e2b",
        WARREN_E2B_API_URL=far.url,
        WARREN_E2B_API_KEY=KEY,
        WARREN_STREAM_KEEPALIVE_S="0.3",
        WARREN_ARTIFACT_MAX_MB="64",
    ) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return server.url


@pytest.fixture(scope="module")
def time(server: ServerProcess) -> ServerTime:
    return TurnedTime(server.state_dir)


class TestCommands(CommandSuite):
    pass


class TestCode(CodeSuite):
    pass


class TestArtifacts(ArtifactSuite):
    pass


class TestTerminals(TerminalSuite):
    pass
