"""All suites against a real server with the oci provider."""

from collections.abc import Iterator

import pytest
from e2e.artifact_suite import ArtifactSuite, LinuxArtifactSuite
from e2e.code_suite import CodeSuite, LinuxCodeSuite
from e2e.command_suite import CommandSuite, LinuxCommandSuite, UserSuite
from e2e.conftest import NewState
from e2e.expiry_suite import ExpirySuite
from e2e.figures_suite import FiguresSuite, LinuxFiguresSuite
from e2e.file_suite import FileSuite
from e2e.flat_suite import E2bSuite, FlatSuite
from e2e.hosts import Hosts
from e2e.linux_file_suite import LinuxFileSuite
from e2e.loss_suite import LossSuite
from e2e.network_suite import NetworkSuite
from e2e.once_suite import OnceSuite
from e2e.preview_suite import PreviewSuite, http, preview  # noqa: F401
from e2e.process_suite import LinuxProcessSuite, ProcessSuite
from e2e.secret_suite import SecretSuite
from e2e.server_suite import ServerSuite
from e2e.server_time import ServerTime, TurnedTime
from e2e.session_suite import LinuxSessionSuite, SessionSuite
from e2e.stream_suite import LinuxStreamSuite, SocketSuite, StreamSuite
from e2e.terminal_suite import TerminalSuite
from server_process import ServerProcess
from turnable_server import running_turnable


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    with running_turnable(
        new_state(), "--pool-size", "3", "--cpus", "2", WARREN_STREAM_KEEPALIVE_S="0.3", WARREN_ARTIFACT_MAX_MB="64"
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
    return Hosts(server.state_dir)


class TestSessions(SessionSuite, LinuxSessionSuite):
    pass


class TestOnce(OnceSuite):
    pass


class TestCommands(CommandSuite, LinuxCommandSuite, UserSuite):
    pass


class TestCode(CodeSuite, LinuxCodeSuite):
    pass


class TestStreams(StreamSuite, LinuxStreamSuite):
    pass


class TestSockets(SocketSuite):
    pass


class TestProcesses(ProcessSuite, LinuxProcessSuite):
    pass


class TestFiles(FileSuite, LinuxFileSuite):
    pass


class TestArtifacts(ArtifactSuite, LinuxArtifactSuite):
    pass


class TestTerminals(TerminalSuite):
    pass


class TestPreviews(PreviewSuite):
    pass


class TestNetworks(NetworkSuite):
    pass


class TestSecrets(SecretSuite):
    pass


class TestFlat(FlatSuite, E2bSuite):
    pass


class TestServer(ServerSuite):
    pass


class TestExpiry(ExpirySuite):
    pass


class TestLosses(LossSuite):
    pass


class TestFigures(FiguresSuite, LinuxFiguresSuite):
    pass
