"""The suites that the fake provider can do, against a real server: quick."""

from collections.abc import Iterator

import pytest
from e2e.artifact_suite import ArtifactSuite
from e2e.code_suite import CodeSuite
from e2e.command_suite import CommandSuite
from e2e.conftest import NewState
from e2e.expiry_suite import ExpirySuite
from e2e.figures_suite import FiguresSuite
from e2e.file_suite import FileSuite
from e2e.flat_suite import FlatSuite
from e2e.hosts import Hosts
from e2e.log_suite import LogSuite
from e2e.once_suite import OnceSuite
from e2e.pause_suite import PauseSuite
from e2e.process_suite import ProcessSuite
from e2e.server_suite import ServerSuite
from e2e.server_time import ServerTime, TurnedTime
from e2e.session_suite import SessionSuite
from e2e.snapshot_suite import SnapshotSuite
from e2e.stream_suite import SocketSuite, StreamSuite
from server_process import ServerProcess
from turnable_server import running_turnable


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    with running_turnable(new_state(), "--pool-size", "3", provider="fake", WARREN_STREAM_KEEPALIVE_S="0.3") as server:
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


class TestSessions(SessionSuite):
    pass


class TestOnce(OnceSuite):
    pass


class TestCommands(CommandSuite):
    pass


class TestCode(CodeSuite):
    pass


class TestStreams(StreamSuite):
    pass


class TestSockets(SocketSuite):
    pass


class TestExpiry(ExpirySuite):
    pass


class TestPauses(PauseSuite):
    pass


class TestProcesses(ProcessSuite):
    pass


class TestLogs(LogSuite):
    pass


class TestArtifacts(ArtifactSuite):
    pass


class TestFiles(FileSuite):
    pass


class TestFlat(FlatSuite):
    pass


class TestServer(ServerSuite):
    pass


class TestFigures(FiguresSuite):
    pass


class TestSnapshots(SnapshotSuite):
    pass
