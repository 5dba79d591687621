"""`warren serve --workers N`: sessions go on from one process to several and back, and what is killed comes back."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificates, make_certificates
from faults.host_view import sandboxes
from machine.cluster_world import wait_until
from machine.remote_cli import RemoteCli
from marks import first_of
from server_process import ServerProcess, free_port

from warren import SandboxClient
from warren.cli.serve_workers import keep_address
from warren.model.errors import Unavailable

FAILED = 125
AT = "/workspace/data"


class Server(ServerProcess):
    """A server with a key, which `start_with` starts with a number of workers."""

    def start_with(self, workers: int) -> None:
        self.environ["WARREN_SERVE_WORKERS"] = str(workers)
        self.start()

    def speak_tls(self, certificates: Certificates) -> None:
        self.environ |= {"WARREN_TLS_CERT": str(certificates.cert), "WARREN_TLS_KEY": str(certificates.key)}
        self._tls = certificates.client

    def ask(self, method: str, place: str, body: Any = None, **headers: str) -> Any:
        """Asks again, as clients do, while the answer says when to."""
        data = None if body is None else json.dumps(body).encode()
        key = json.loads(self.credentials.read_text())
        headers = {"Content-Type": "application/json", "X-API-Key": _key_in(key), **headers}
        asked = urllib.request.Request(self.url + place, data, headers, method=method)
        until = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(asked, timeout=60, context=self._tls) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as exc:
                said = exc.read().decode(errors="replace")
                exc.add_note(said)
                if exc.headers["Retry-After"] is None or time.monotonic() > until:
                    raise
            except OSError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.2)

    def output(self, session: str, command: str) -> str:
        done = self.ask("POST", f"/api/sessions/{session}/exec", {"command": command})
        assert done["exit_code"] == 0, done
        return str(done["stdout"])

    def children(self) -> dict[int, str]:
        """The processes of the unit by what they are, without those of sandboxes."""
        found = {}
        for pid in _descendants(self.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:5]
            for kind in ("redis-server", "worker", "coordinator"):
                if any(word.decode(errors="replace").split(" ")[0].endswith(kind) for word in words):
                    found[pid] = kind
                    break
        return found


def _key_in(credentials: Any) -> str:
    if isinstance(credentials, str):
        return credentials
    values = credentials.values() if isinstance(credentials, dict) else credentials
    return next(filter(None, map(_key_in, values)))


def _descendants(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)


@pytest.fixture
def server(fresh_state_dir: Path) -> Iterator[Server]:
    environ = {"WARREN_AUTH": "true", "WARREN_DEFAULT_ENVIRONMENT": "host", "WARREN_POOL_SIZE": "1"}
    server = Server(fresh_state_dir, **environ)
    yield server
    if server.alive:
        server.stop()
    server.environ["WARREN_ON_STOP"] = "destroy"
    server.start_with(3)
    assert server.stop() == 0, server.log[-3000:]


def test_sessions_go_on_from_one_process_to_several_and_back(server: Server) -> None:
    server.start_with(1)
    with_key = {"Idempotency-Key": "the-first"}
    body = {"thread_id": "old", "volumes": [{"name": "kept", "path": AT, "size_mb": 16}]}
    old = server.ask("POST", "/api/sessions", body, **with_key)["session_id"]
    server.output(old, f"echo file > file; echo volume > {AT}/file; (sleep 1000 & echo $! > pid)")
    paused = server.ask("POST", "/api/sessions", {})["session_id"]
    server.ask("POST", f"/api/sessions/{paused}/pause")
    ended = server.ask("POST", "/api/sessions", {"thread_id": "over"})["session_id"]
    server.ask("DELETE", f"/api/sessions/{ended}")
    before = server.ask("GET", f"/api/sessions/{old}")
    server.stop()

    def old_goes_on() -> None:
        assert server.output(old, f"cat file {AT}/file; kill -0 $(cat pid)") == "file\nvolume\n"
        assert server.ask("POST", "/api/sessions", body, **with_key)["session_id"] == old
        now = server.ask("GET", f"/api/sessions/{old}")
        assert now["created_at"] == before["created_at"]
        assert abs(_moment(now["expires_at"]) - _moment(before["expires_at"])) < 60
        assert server.ask("GET", f"/api/sessions/{paused}")["state"] == "paused"
        assert server.ask("GET", f"/api/sessions/{ended}")["state"] == "ended"

    server.start_with(2)
    old_goes_on()
    assert sorted(server.children().values()) == ["coordinator", "redis-server", "worker", "worker"]
    new = [server.ask("POST", "/api/sessions", {})["session_id"] for _ in range(8)]
    of_worker = {session: server.ask("GET", f"/api/sessions/{session}")["worker"] for session in new}
    assert set(of_worker.values()) == {"local", "local-2"}
    for session in new:
        server.output(session, "echo new > file")
    server.stop()

    server.start_with(1)  # the other worker still has sessions
    assert "not wanted any more and still have something: local-2" in server.log
    old_goes_on()
    for session in new:
        assert server.output(session, "cat file") == "new\n"
    added = [server.ask("POST", "/api/sessions", {})["session_id"] for _ in range(3)]
    assert {server.ask("GET", f"/api/sessions/{session}")["worker"] for session in added} == {"local"}
    for session, worker in of_worker.items():
        if worker != "local":
            server.ask("DELETE", f"/api/sessions/{session}")
    server.stop()

    server.start_with(1)
    assert "one process serves from now on; sessions that go on: " in server.log
    assert server.children() == {}
    old_goes_on()
    assert server.output(added[0], "echo here") == "here\n"
    assert not (server.state_dir / "unit" / "rows").exists()


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_what_is_killed_is_started_again_and_no_session_is_lost(server: Server) -> None:
    server.start_with(2)
    sessions = [server.ask("POST", "/api/sessions", {})["session_id"] for _ in range(4)]
    for session in sessions:
        server.output(session, "echo file > file; sleep 1000 & echo $! > pid")
    for kind in ("worker", "coordinator", "redis-server"):
        pid = next(pid for pid, its in server.children().items() if its == kind)
        number = len(server.children())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid, number=number: pid not in (now := server.children()) and len(now) == number, kind)  # type: ignore[misc]
        for session in sessions:
            assert server.output(session, "cat file; kill -0 $(cat pid)") == "file\n"
    others = list(server.children())
    server.kill()  # what it has started ends with it, and the next one waits for that
    server.start_with(2)
    for session in sessions:
        assert server.output(session, "cat file; kill -0 $(cat pid)") == "file\n"
    assert not set(others) & set(server.children())


def test_nobody_else_takes_the_state_directory_of_several_workers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start_with(2)
    sessions = [server.ask("POST", "/api/sessions", {})["session_id"] for _ in range(4)]
    for session in sessions:
        server.output(session, "echo file > file")
    server.stop()

    server.start(wait=False)  # and is stopped while it starts
    wait_until((server.state_dir / "unit/redis/redis.sock").exists, "Redis is started")
    server.send(signal.SIGTERM)
    assert server.wait_for_end(60) == 0
    assert not (server.state_dir / "sessions.db").exists()

    monkeypatch.setenv("WARREN_STATE_DIR", str(server.state_dir))
    monkeypatch.setenv("WARREN_CONFIG", "/dev/null")
    with pytest.raises(Unavailable, match="belong to several workers"), SandboxClient(mode="local"):
        pass
    cli = RemoteCli("", WARREN_STATE_DIR=str(server.state_dir), WARREN_PROVIDER="oci", WARREN_PORT=str(server.port))
    done = cli.run("serve", "--store", "memory")
    assert (done.returncode, b"belong to several workers" in done.stderr) == (FAILED, True)
    done = cli.run("serve", "--workers", "2", "--worker-id", "another")
    assert (done.returncode, b"belong to the worker 'local'" in done.stderr) == (FAILED, True)

    server.start_with(2)
    for session in sessions:
        assert server.output(session, "cat file") == "file\n"


@pytest.mark.extended
def test_what_a_unit_leaves_is_found_by_the_next_one_and_by_uninstall(server: Server, tmp_path: Path) -> None:
    certificate = make_certificates(tmp_path)
    server.environ |= {"WARREN_HOST": "0.0.0.0", "WARREN_POOL_SIZE": "4"}
    server.speak_tls(certificate)
    server.start_with(2)
    place = ("--state-dir", str(server.state_dir))
    cli = RemoteCli("", WARREN_STATE_DIR=str(server.state_dir))
    made = cli.run("keys", "create", "another", *place)
    assert made.returncode == 0, made.stderr
    wait_until(lambda: len(sandboxes(server.state_dir / "workers/local-2")) == 2, "its pool is full")
    server.kill()
    server.start_with(1)
    assert "one process serves from now on" in server.log
    assert not sandboxes(server.state_dir / "workers/local-2")
    server.stop()

    server.start_with(2)
    others = list(server.children())
    done = cli.run("uninstall", "--purge", "--yes")
    assert done.returncode == 0, done.stderr
    assert b"coordinators, which you stop yourself" not in done.stdout
    assert not server.alive
    assert not any(Path(f"/proc/{pid}").exists() for pid in others)
    assert not server.state_dir.exists()
    server.state_dir.mkdir()  # for what looks at what is left


_TAKE_PORT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
taken = socket.socket()
taken.setsockopt(socket.SOL_SOCKET, getattr(socket, sys.argv[3]), 1)
taken.bind(("127.0.0.1", int(sys.argv[1])))
taken.listen()
"""


@pytest.mark.parametrize(
    ("user", "how", "can"),
    first_of([(65534, "SO_REUSEADDR", False), (65534, "SO_REUSEPORT", False), (0, "SO_REUSEPORT", True)]),
)
def test_an_address_is_kept_from_others_while_nobody_listens_there(user: int, how: str, *, can: bool) -> None:
    with keep_address("127.0.0.1", port := free_port()):
        argv = [sys.executable, "-c", _TAKE_PORT, *map(str, (port, user, how))]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert (done.returncode == 0, "Address already in use" in done.stderr) == (can, not can), done


@pytest.mark.extended
@pytest.mark.parametrize("environ", first_of([{"WARREN_STORE": "memory"}, {"WARREN_REDIS_URL": "redis://127.0.0.1:1"}]))
def test_what_several_workers_cannot_have_is_refused(fresh_state_dir: Path, environ: dict[str, str]) -> None:
    cli = RemoteCli("", WARREN_STATE_DIR=str(fresh_state_dir), WARREN_PROVIDER="fake", **environ)
    done = cli.run("serve", "--workers", "2")
    assert done.returncode == FAILED
    assert b"several workers" in done.stderr
    with contextlib.suppress(FileNotFoundError):
        assert not list((fresh_state_dir / "unit").glob("redis*"))
