"""All suites of one server, unchanged, against a cluster: Redis, two coordinators, three workers (oci)."""

from collections.abc import Iterator

import pytest
from cluster_processes import Cluster, running_cluster
from e2e.artifact_suite import ArtifactSuite, LinuxArtifactSuite
from e2e.code_suite import CodeSuite
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
from e2e.preview_suite import PreviewSuite, http, preview  # noqa: F401
from e2e.process_suite import LinuxProcessSuite, ProcessSuite
from e2e.secret_suite import SecretSuite
from e2e.server_suite import ServerSuite
from e2e.server_time import RealTime, ServerTime
from e2e.session_suite import LinuxSessionSuite, SessionSuite
from e2e.stream_suite import LinuxStreamSuite, SocketSuite, StreamSuite
from e2e.terminal_suite import TerminalSuite
from redis_server import RedisServer


@pytest.fixture(scope="module")
def cluster(new_state: NewState) -> Iterator[Cluster]:
    states = [new_state() for _ in range(5)]
    redis = RedisServer(states[0] / "redis", "--appendonly", "yes")
    settings = {"WARREN_STREAM_KEEPALIVE_S": "0.3", "WARREN_ARTIFACT_MAX_MB": "64", "POOL_SIZE": "2"}
    with running_cluster(Cluster(redis, states[:3], states[3:], "--cpus", "2", **settings)) as cluster:
        yield cluster


@pytest.fixture(scope="class")
def url(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """One suite asks the one coordinator, the next one the other."""
    suites = [name for name in globals() if name.startswith("Test")]
    return cluster.urls[suites.index(request.cls.__name__) % 2]


@pytest.fixture(scope="module")
def time() -> ServerTime:
    """The clocks of several processes cannot be turned at the same moment, so here it is waited for."""
    return RealTime()


@pytest.fixture(scope="module")
def hosts(cluster: Cluster) -> Hosts:
    return Hosts(*cluster.state_dirs)


@pytest.mark.extended
class TestSessions(SessionSuite, LinuxSessionSuite):
    pass


class TestOnce(OnceSuite):
    pass


@pytest.mark.extended
class TestCommands(CommandSuite, LinuxCommandSuite, UserSuite):
    pass


@pytest.mark.extended
class TestCode(CodeSuite):
    pass


@pytest.mark.extended
class TestStreams(StreamSuite, LinuxStreamSuite):
    pass


@pytest.mark.extended
class TestSockets(SocketSuite):
    pass


@pytest.mark.extended
class TestProcesses(ProcessSuite, LinuxProcessSuite):
    pass


@pytest.mark.extended
class TestFiles(FileSuite, LinuxFileSuite):
    pass


class TestLogs(LogSuite, LinuxLogSuite):
    pass


@pytest.mark.extended
class TestArtifacts(ArtifactSuite, LinuxArtifactSuite):
    pass


@pytest.mark.extended
class TestTerminals(TerminalSuite):
    pass


@pytest.mark.extended
class TestPreviews(PreviewSuite):
    pass


@pytest.mark.extended
class TestNetworks(NetworkSuite):
    pass


@pytest.mark.extended
class TestSecrets(SecretSuite):
    pass


class TestFlat(FlatSuite, E2bSuite):
    pass


class TestServer(ServerSuite):
    pass


@pytest.mark.extended
class TestExpiry(ExpirySuite):
    pass


@pytest.mark.extended
class TestLosses(LossSuite):
    pass


@pytest.mark.extended
class TestFigures(FiguresSuite, LinuxFiguresSuite):
    pass
