"""`warren cluster`: what an operator types, against real processes with the fake provider."""

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from machine.cluster_world import ADMIN, Nodes, new_nodes, wait_until
from machine.remote_cli import RemoteCli
from marks import first_of
from server_process import ServerProcess, clean_environ, free_port, running_server
from starlette.responses import Response
from this_run import new_state_dir

from warren.cli import processes
from warren.cli.processes import Processes, Service, pause_before_restart
from warren.http.problems import problem
from warren.model.errors import ImageBuilding

_UP_S = 120.0
FAILED = 125
NAMES = ("worker-1", "worker-2", "coordinator-1")


# status, drain, remove.


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with new_nodes() as nodes:
        nodes.worker("worker-1", "--labels", "gpu=1")
        nodes.worker("worker-2")
        nodes.coordinator()
        for process in nodes.all:
            process.start(wait=False)
        for process in nodes.all:
            process.wait_until_ready()
        yield nodes


@pytest.fixture(scope="module")
def cli(nodes: Nodes) -> RemoteCli:
    return RemoteCli(nodes.all[2].url, WARREN_API_KEY=ADMIN)


def states(cli: RemoteCli) -> dict[str, str]:
    return {worker["id"]: worker["state"] for worker in cli.document("cluster", "status")["workers"]}


def test_a_coordinator_can_gain_no_privileges_and_says_nothing_of_a_lack_of_confinement(nodes: Nodes) -> None:
    coordinator = nodes.all[2]
    assert "NoNewPrivs:\t1\n" in Path(f"/proc/{coordinator.pid}/status").read_text()
    assert "coordinator_not_confined" not in coordinator.log


def test_status_shows_the_workers_for_people_and_for_programs(cli: RemoteCli, nodes: Nodes) -> None:
    wait_until(lambda: list(states(cli).values()) == ["ready", "ready"], "two workers")
    head, first, second, _, last = cli.say("cluster", "status").splitlines()
    assert head.split()[:3] == ["WORKER", "STATE", "ADDRESS"]
    assert first.split()[:3] == ["worker-1", "ready", f"127.0.0.1:{nodes.all[0].port}"]
    assert "gpu=1" in first
    assert second.split()[:2] == ["worker-2", "ready"]
    assert last.startswith("Redis is there; answered by the coordinator ")
    found = cli.document("cluster", "status")
    assert (found["redis"], found["settled"]) == ("there", True)
    assert [worker["id"] for worker in found["workers"]] == ["worker-1", "worker-2"]
    assert found["workers"][0]["labels"]["gpu"] == "1"
    assert found["workers"][0]["provider"] == "fake"


def test_drain_and_its_undoing(cli: RemoteCli) -> None:
    assert cli.say("cluster", "drain", "worker-2") == "worker-2 is draining, with 0 sessions\n"
    assert states(cli)["worker-2"] == "draining"
    assert cli.say("cluster", "drain", "worker-2", "--undo") == "worker-2 is ready, with 0 sessions\n"
    assert cli.document("cluster", "drain", "worker-2")["state"] == "draining"
    assert cli.document("cluster", "drain", "worker-2", "--undo")["state"] == "ready"


def test_demand_is_shown_and_followed(cli: RemoteCli, tmp_path: Path) -> None:
    wait_until(lambda: cli.document("cluster", "demand")["workers"] == 2, "two workers that take sessions")
    demand = cli.document("cluster", "demand")
    assert (demand["wanted"], demand["waiting"], demand["may_stop"]) == (2, 0, [])  # it has just begun
    assert "2 workers are wanted" in cli.say("cluster", "demand")
    told = tmp_path / "told"
    program = f"echo $WARREN_WORKERS_WANTED $WARREN_WORKERS $WARREN_WORKERS_MAY_STOP >> {told}; test -e {tmp_path}/good"
    with cli.start("cluster", "demand", "--run", program, "--every", "1", stdout=subprocess.DEVNULL) as following:
        try:
            wait_until(lambda: told.exists() and told.read_text().startswith("2 2\n2 2\n"), "another try")
            (tmp_path / "good").touch()
            cli.say("cluster", "drain", "worker-2")
            wait_until(lambda: told.read_text().endswith("2 1 worker-2\n"), "a worker that may stop")
        finally:
            following.kill()
    cli.say("cluster", "drain", "worker-2", "--undo")


def test_what_cannot_be_done_is_told_in_words(cli: RemoteCli) -> None:
    for arguments, words in (
        (("remove", "worker-1"), b"the worker 'worker-1' is alive"),
        (("remove", "ghost"), b"there is no worker 'ghost'"),
        (("drain", "ghost"), b"there is no worker 'ghost'"),
        (("drain", "../../keys"), b"not"),
    ):
        done = cli.run("cluster", *arguments)
        assert (done.returncode, done.stdout) == (FAILED, b"")
        assert words in done.stderr
        assert b"Traceback" not in done.stderr
    assert cli.run("cluster", "drain").returncode == 2


def test_a_worker_that_has_died_can_be_removed(cli: RemoteCli, nodes: Nodes) -> None:
    doomed = nodes.worker("doomed")
    doomed.start()
    wait_until(lambda: states(cli).get("doomed") == "ready", "the worker is seen")
    doomed.kill()
    wait_until(lambda: states(cli)["doomed"] == "dead", "the worker is seen to be dead")
    wait_until(lambda: cli.run("cluster", "remove", "doomed", "--json").returncode == 0, "the worker is removed")
    assert set(states(cli)) == {"worker-1", "worker-2"}


def test_a_worker_whose_port_is_taken_does_not_join(cli: RemoteCli, nodes: Nodes) -> None:
    late = nodes.worker("late", "--port", str(nodes.all[2].port))
    late.start(wait=False)
    assert late.wait_for_end() == FAILED
    assert f"port {nodes.all[2].port} is taken" in late.log
    time.sleep(1.5)  # a coordinator looks every second
    assert "late" not in states(cli)


def test_a_worker_with_another_secret_is_shown_and_logged_and_gets_no_sessions(cli: RemoteCli, nodes: Nodes) -> None:
    stranger = nodes.worker("stranger", WARREN_CLUSTER_SECRET="another-secret-than-the-one-of-the-cluster")
    stranger.start()
    wait_until(lambda: states(cli).get("stranger") == "incompatible", "the worker is seen to have another secret")
    log = nodes.all[2].log
    assert log.count('worker_rejects_coordinator worker=stranger error="their cluster secrets differ: give all ') == 1
    for _ in range(6):
        cli.say("kill", cli.say("create").strip())
    stranger.stop()


def test_without_the_right_key_nothing_is_shown(nodes: Nodes) -> None:
    done = RemoteCli(nodes.all[2].url, WARREN_API_KEY="wrong").run("cluster", "status")
    assert (done.returncode, done.stdout) == (FAILED, b"")


def test_a_server_that_runs_by_itself_says_that_it_does() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="warren-test-") as state,
        running_server(Path(state), provider="fake") as server,
    ):
        done = RemoteCli(server.url).run("cluster", "status")
    assert done.returncode == FAILED
    assert b"this server runs by itself" in done.stderr


def test_v2_s_variables_start_a_cluster_on_one_machine_which_makes_its_secret_and_names_a_session_s_worker() -> None:
    with new_nodes() as nodes:
        redis = {"WARREN_REDIS_URL": "", "REDIS_HOST": "localhost", "REDIS_PORT": str(nodes.redis.port)}
        given = {**redis, "REDIS_PASSWORD": nodes.redis.password, "WARREN_CLUSTER_SECRET": ""}
        first = nodes.worker("worker1", **given)
        state = first.state_dir
        second = nodes.worker("worker2", state=state, **given)
        workers = ",".join(f"http://localhost:{worker.port}" for worker in (first, second))
        coordinator = nodes.coordinator(state=state, WORKERS=workers, **given)
        first.start()
        for process in (second, coordinator):
            process.start(wait=False)
        for process in (second, coordinator):
            process.wait_until_ready()
        cli = RemoteCli(coordinator.url, WARREN_API_KEY=ADMIN)
        wait_until(lambda: states(cli) == {"worker1": "ready", "worker2": "ready"}, "two workers")
        secret = state / "cluster-secret"
        assert secret.stat().st_mode & 0o777 == 0o600
        assert f"The secret of this cluster is in {secret}." in coordinator.log
        assert secret.read_text() not in nodes.logs()
        assert f"works on 127.0.0.1:{second.port} (provider fake, state in {state}/workers/worker2)" in second.log
        assert (state / "workers" / "worker2" / "images").resolve() == state / "images"
        asked = urllib.request.Request(f"{coordinator.url}/create_session", b"{}", {"X-API-Key": ADMIN})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            body = answer.read()
        assert json.loads(body)["worker"] in (first.url, second.url)
        assert body.endswith(b"\n")


# up.


class Up:
    """`warren cluster up` in a directory of the test's own."""

    started: ClassVar[list["Up"]] = []

    def __init__(self, directory: Path, *, port: int = 0, **environ: str) -> None:
        self.directory = directory
        self.port = port or free_port()
        known = {"WARREN_PROVIDER": "fake", "WARREN_AUTH": "false", "POOL_SIZE": "1"}
        known |= {"WARREN_STATE_DIR": str(directory / "state"), "WARREN_CREDENTIALS": str(directory / "credentials")}
        flags = ("--workers", "2", "--coordinators", "1", "--port", str(self.port), "--directory", str(directory))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "warren.cli.main", "cluster", "up", *flags],
            env={**clean_environ(), **known, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        Up.started.append(self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until_up(self) -> None:
        assert self._process.stdout is not None
        output = ""
        for line in self._process.stdout:
            output += line
            if line.startswith("The cluster is up: "):
                assert self.url in line
                return
        raise AssertionError(f"it ended with {self._process.wait()}: {output}")

    def send(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def forget(self) -> None:
        """Ends it if it still runs, and closes what it said."""
        self._process.kill()
        self._process.communicate()

    def end(self) -> tuple[int, str]:
        said, _ = self._process.communicate(timeout=_UP_S)
        return self._process.returncode, said

    def ask(self, method: str, place: str, body: Any = None) -> Any:
        """Asks again, as clients do, for up to ten seconds while the answer says when to: where disks are slow, Redis
        may be silent for seconds. What was answered is told."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + place, data, {"Content-Type": "application/json"}, method=method)
        deadline = time.monotonic() + 10
        while True:
            try:
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as exc:
                said = exc.read().decode(errors="replace")
                exc.add_note(said)
                if exc.headers["Retry-After"] is None or time.monotonic() > deadline:
                    raise
                print(f"{method} {place}: {exc.code} {said}", file=sys.stderr)
                time.sleep(1)

    def works(self) -> bool:
        try:
            return bool(
                self.ask("POST", "/execute", {"thread_id": "t", "command": "echo works"})["output"] == "works\n"
            )
        except OSError:
            return False

    def with_mark(self, mark: bytes) -> set[int]:
        """The processes, other than `up` itself, whose command line or environment has the mark."""
        return {pid for pid, told in self._told().items() if mark in told} - {self._process.pid}

    def processes(self) -> set[int]:
        """All that have to do with the directory, `up` itself too."""
        return set(self._told())

    def _told(self) -> dict[int, bytes]:
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
                if os.fsencode(self.directory) in told:
                    found[int(process.name)] = told
        return found


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short: a socket lives in it. Whatever a failed test has left there ends with it."""
    path = new_state_dir()
    yield path
    left = [pid for pid in _about(path) if pid != os.getpid()]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while Up.started:
        Up.started.pop().forget()
    shutil.rmtree(path, ignore_errors=True)
    assert left == []


def _about(path: Path) -> set[int]:
    up = Up.__new__(Up)
    up.directory = path
    return up.processes()


@pytest.mark.parametrize("number", first_of([signal.SIGINT, signal.SIGTERM]))
def test_a_cluster_is_up_works_and_is_gone_after_ctrl_c(directory: Path, number: int) -> None:
    # What a shell has set for a single server is not for every process of a cluster.
    single = {"WARREN_PORT": str(free_port()), "WARREN_WORKER_ID": "alone", "WARREN_ADVERTISE": "127.0.0.1:1"}
    up = Up(directory, **single, WARREN_LOG_FILE=str(directory / "logs.txt"))
    up.wait_until_up()
    assert len(up.processes()) == 5  # itself, Redis, two workers, a coordinator
    wait_until(lambda: len(up.ask("GET", "/api/cluster")["workers"]) == 2, "two workers")
    assert {path.name for path in directory.glob("logs*")} == {f"logs-{name}.txt" for name in NAMES}
    ids = [up.ask("POST", "/create_session", {})["session_id"] for _ in range(4)]
    for session_id in ids:
        done = up.ask("POST", "/execute", {"session_id": session_id, "command": "echo works"})
        assert done["output"] == "works\n"
    (directory / "state" / "cluster").symlink_to(directory)  # where the files are without --directory
    cli = RemoteCli("", WARREN_STATE_DIR=str(directory / "state"))
    verify = ("audit", "verify", "--cluster")
    wait_until(lambda: cli.document(*verify)["entries"] > 4, "the entries, which are written a moment later")
    assert cli.document(*verify)["whole"] is True
    assert {log.stat().st_mode & 0o777 for log in directory.glob("*.log")} == {0o600}
    up.send(number)
    code, said = up.end()
    assert code == 0, said
    assert up.processes() == set()
    assert (directory / "secret").stat().st_mode & 0o777 == 0o600
    secret = (directory / "secret").read_text()
    assert not [log for log in directory.glob("*.log") if secret in log.read_text(errors="replace")]


@pytest.mark.extended
def test_a_second_start_in_the_same_directory_goes_on_with_what_is_there(directory: Path) -> None:
    first = Up(directory)
    first.wait_until_up()
    key = first.ask("POST", "/api/admin/keys", {"name": "kept"})["id"]
    secret = (directory / "secret").read_text()
    again = Up(directory)
    code, said = again.end()
    assert (code, "another server uses the state directory" in said) == (FAILED, True), said
    assert first.ask("GET", "/ready")["status"] == "ready"
    first.send(signal.SIGINT)
    assert first.end()[0] == 0
    second = Up(directory)
    second.wait_until_up()
    assert [one["id"] for one in second.ask("GET", "/api/admin/keys")["keys"]] == [key]
    assert (directory / "secret").read_text() == secret
    done = second.ask("POST", "/execute", {"thread_id": "t", "command": "echo again"})
    assert done["output"] == "again\n"
    second.send(signal.SIGINT)
    assert second.end()[0] == 0


def test_a_process_of_it_that_ends_is_started_again_and_it_says_which(directory: Path) -> None:
    up = Up(directory)
    up.wait_until_up()
    for mark in (b"WORKER_ID=worker-1\0", b"WORKER_ID=coordinator-1\0", b"redis-server"):
        [pid] = up.with_mark(mark)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda mark=mark, pid=pid: up.with_mark(mark) - {pid}, "it is started again")  # type: ignore[misc]
    wait_until(up.works, "the cluster works as before")
    up.send(signal.SIGINT)
    code, said = up.end()
    assert code == 0
    for name in ("worker-1", "coordinator-1", "redis"):
        assert f"{name} has ended (-9); its log is {directory}/{name}.log\n{name} is started again" in said
    assert up.processes() == set()


def test_a_process_that_ends_again_and_again_is_started_ever_less_often() -> None:
    pauses = [0.0]
    for ran_s in (0.1, 59.0, 0.0, 0.0, 0.0, 0.0, 61.0, 0.0):
        pauses.append(pause_before_restart(ran_s, pauses[-1]))
    assert pauses == [0.0, 1.0, 3.0, 7.0, 15.0, 30.0, 30.0, 0.0, 1.0]


def test_a_process_that_cannot_be_started_now_is_tried_again_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, hidden = tmp_path / "program", tmp_path / "hidden"
    shutil.copy("/bin/true", program)
    service = Service("worker-1", [str(program)], {}, tmp_path / "log")
    service.process.wait()
    program.rename(hidden)
    now = time.monotonic()
    for later_s in (0, 40, 80):
        service.revive(now + later_s)
    hidden.rename(program)
    service.revive(now + 160)
    assert service.process.wait() == 0
    said = capsys.readouterr().err
    assert said.count("worker-1 cannot be started: ") == 2, said
    assert said.endswith("worker-1 is started again\n")


def test_a_log_that_has_become_long_begins_anew_and_the_process_writes_on(tmp_path: Path) -> None:
    log, go = tmp_path / "worker-1.log", tmp_path / "go"
    os.mkfifo(go)
    script = f"head -c 17000000 /dev/zero; echo ready >&2; read < {go}; echo more"
    service = Service("worker-1", ["/bin/bash", "-c", script], {}, log)
    wait_until(lambda: log.stat().st_size == 17_000_006, "all is written")
    service.shorten_log()
    service.shorten_log()
    go.write_text("\n")
    assert service.process.wait() == 0
    assert log.read_text() == "more\n"
    before = tmp_path / "worker-1.1.log"
    assert (before.stat().st_size, before.stat().st_mode & 0o777) == (17_000_006, 0o600)


def test_a_second_signal_kills_what_does_not_stop(tmp_path: Path) -> None:
    processes, before = Processes(tmp_path), signal.getsignal(signal.SIGTERM)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(1000)"
    processes.start_program("worker-1", [sys.executable, "-c", deaf], {})
    wait_until(lambda: "ready" in (tmp_path / "worker-1.log").read_text(), "it ignores the first one")
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    processes.stop(patience_s=600)
    assert processes._services["worker-1"].process.returncode == -signal.SIGKILL
    assert signal.getsignal(signal.SIGTERM) == before


class Worker(http.server.BaseHTTPRequestHandler):
    """A worker that makes its image while it is asked three times."""

    asked = 0

    def do_GET(self) -> None:
        Worker.asked += 1
        building = ImageBuilding("the image is being built", step=f"step {self.asked} of 3", fraction=0.5)
        answer = problem(building) if self.asked <= 3 else Response("{}")
        self.send_response(answer.status_code)
        self.end_headers()
        self.wfile.write(bytes(answer.body))

    def log_message(self, *_: object) -> None:
        """Says nothing: the test reads stderr."""


def test_a_worker_whose_image_is_being_made_is_waited_for_with_its_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_START_S", 0.6)  # three answers take longer
    started = Processes(tmp_path)
    started.start_program("worker-1", ["/bin/sleep", "60"], {})
    with http.server.HTTPServer(("127.0.0.1", 0), Worker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            started.wait_until_ready("worker-1", f"http://127.0.0.1:{server.server_port}/ready")
        finally:
            server.shutdown()
            started.stop()
    said = capsys.readouterr().err
    assert said.startswith("warren: the image is being built\n"), said
    assert [line.split("  ")[-1] for line in said.splitlines()[1:]] == [f"step {number} of 3" for number in (1, 2, 3)]


def test_without_redis_on_the_machine_it_says_so(directory: Path) -> None:
    (directory / "nothing").mkdir()
    up = Up(directory, PATH=str(directory / "nothing"))
    code, said = up.end()
    assert code == FAILED
    assert "there is no redis-server on this machine" in said
    assert "apt-get install redis-server" in said
    assert up.processes() == set()


def test_beside_a_running_server_nothing_is_started_and_its_key_stays(directory: Path) -> None:
    alone = directory / "alone"
    alone.mkdir()
    with running_server(alone, provider="fake", WARREN_AUTH="true") as server:
        key = json.loads(server.credentials.read_text())
        cli = RemoteCli(server.url, WARREN_CREDENTIALS=str(server.credentials))
        up = Up(directory, port=server.port, WARREN_AUTH="true", WARREN_CREDENTIALS=str(server.credentials))
        code, said = up.end()
        assert (code, f"port {up.port} is taken" in said) == (FAILED, True), said
        assert json.loads(server.credentials.read_text()) == key
        assert cli.say("whoami")
    assert not (directory / "redis").exists()
    assert not list(directory.glob("*.log"))


@pytest.mark.extended
def test_a_cluster_on_the_port_of_a_stopped_server_takes_the_key_that_clients_have(directory: Path) -> None:
    server = ServerProcess(directory / "alone", provider="fake", WARREN_AUTH="true")
    server.state_dir.mkdir()
    server.start()
    cli = RemoteCli(server.url, WARREN_CREDENTIALS=str(server.credentials))
    cli.say("whoami")
    server.stop()
    up = Up(directory, port=server.port, WARREN_AUTH="true", WARREN_CREDENTIALS=str(server.credentials))
    up.wait_until_up()
    cli.say("whoami")
    up.send(signal.SIGINT)
    assert up.end()[0] == 0
    server.start()
    cli.say("whoami")
    server.stop()


def test_settings_that_cannot_be_are_told_before_anything_is_started(directory: Path) -> None:
    began = time.monotonic()
    up = Up(directory, POOL_SIZE="many")
    code, said = up.end()
    assert code == FAILED
    assert "POOL_SIZE" in said
    assert not (directory / "redis").exists()
    assert time.monotonic() - began < _UP_S
