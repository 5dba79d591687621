"""The suites where the docker provider may differ from oci, against a real server with an engine of the tests' own."""

from collections.abc import Iterator

import pytest
from docker_engine import DockerEngine
from e2e.artifact_suite import ArtifactSuite, LinuxArtifactSuite
from e2e.code_suite import CodeSuite
from e2e.command_suite import CommandSuite, LinuxCommandSuite
from e2e.conftest import NewState
from e2e.flat_suite import FlatSuite
from e2e.hosts import Hosts
from e2e.log_suite import LinuxLogSuite, LogSuite
from e2e.loss_suite import LossSuite
from e2e.pause_suite import LinuxPauseSuite
from e2e.preview_suite import PreviewSuite, http, preview  # noqa: F401
from e2e.server_time import ServerTime, TurnedTime
from e2e.snapshot_suite import SnapshotSuite
from e2e.stream_suite import LinuxStreamSuite
from e2e.terminal_suite import TerminalSuite
from server_process import ServerProcess
from turnable_server import running_turnable

pytestmark = [pytest.mark.extended, pytest.mark.group("docker")]


@pytest.fixture(scope="module")
def server(new_state: NewState, docker_engine: DockerEngine) -> Iterator[ServerProcess]:
    with running_turnable(
        new_state(),
        *("--pool-size", "3", "--cpus", "2"),
        provider="docker",
        WARREN_DOCKER_URL=docker_engine.url,
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


@pytest.fixture(scope="module")
def hosts(server: ServerProcess) -> Hosts:
    return Hosts(server.state_dir, folder="docker")


class TestCommands(CommandSuite, LinuxCommandSuite):
    pass


class TestCode(CodeSuite):
    pass


class TestStreams(LinuxStreamSuite):
    pass


@pytest.mark.extended
class TestLogs(LogSuite, LinuxLogSuite):
    pass


class TestArtifacts(ArtifactSuite, LinuxArtifactSuite):
    pass


class TestTerminals(TerminalSuite):
    pass


class TestPreviews(PreviewSuite):
    pass


class TestFlat(FlatSuite):
    pass


class TestPauses(LinuxPauseSuite):
    pass


class TestSnapshots(SnapshotSuite):
    pass


class TestLosses(LossSuite):
    pass
