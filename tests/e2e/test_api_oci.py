"""All suites against a real server with the oci provider. What the fake provider can do as well is extended."""

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
from e2e.log_suite import LinuxLogSuite, LogSuite
from e2e.loss_suite import LossSuite
from e2e.network_suite import NetworkSuite
from e2e.once_suite import OnceSuite
from e2e.pause_suite import LinuxPauseSuite
from e2e.preview_suite import PreviewSuite, http, preview  # noqa: F401
from e2e.process_suite import LinuxProcessSuite, ProcessSuite
from e2e.secret_suite import SecretSuite
from e2e.server_suite import ServerSuite
from e2e.server_time import ServerTime, TurnedTime
from e2e.session_suite import LinuxSessionSuite, SessionSuite
from e2e.snapshot_suite import SnapshotSuite
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


@pytest.mark.extended
class TestSessions(SessionSuite):
    pass


class TestLinuxSessions(LinuxSessionSuite):
    pass


@pytest.mark.extended
class TestOnce(OnceSuite):
    pass


@pytest.mark.extended
class TestCommands(CommandSuite):
    pass


class TestLinuxCommands(LinuxCommandSuite, UserSuite):
    pass


@pytest.mark.extended
class TestCode(CodeSuite):
    pass


class TestLinuxCode(LinuxCodeSuite):
    pass


@pytest.mark.extended
class TestStreams(StreamSuite):
    pass


class TestLinuxStreams(LinuxStreamSuite):
    pass


@pytest.mark.extended
class TestSockets(SocketSuite):
    pass


@pytest.mark.extended
class TestPauses(LinuxPauseSuite):
    pass


@pytest.mark.extended
class TestSnapshots(SnapshotSuite):
    pass


class TestProcesses(ProcessSuite):
    pass


class TestLinuxProcesses(LinuxProcessSuite):
    pass


@pytest.mark.extended
class TestFiles(FileSuite):
    pass


class TestLinuxFiles(LinuxFileSuite):
    pass


class TestLogs(LogSuite, LinuxLogSuite):
    pass


@pytest.mark.extended
class TestArtifacts(ArtifactSuite):
    pass


class TestLinuxArtifacts(LinuxArtifactSuite):
    pass


class TestTerminals(TerminalSuite):
    pass


class TestPreviews(PreviewSuite):
    pass


class TestNetworks(NetworkSuite):
    pass


class TestSecrets(SecretSuite):
    pass


@pytest.mark.extended
class TestFlat(FlatSuite):
    pass


class TestE2b(E2bSuite):
    pass


@pytest.mark.extended
class TestServer(ServerSuite):
    pass


@pytest.mark.extended
class TestExpiry(ExpirySuite):
    pass


class TestLosses(LossSuite):
    pass


@pytest.mark.extended
class TestFigures(FiguresSuite):
    pass


class TestLinuxFigures(LinuxFiguresSuite):
    pass
