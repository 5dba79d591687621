"""The requests of the documents that this service was built after, against a real server with real sandboxes.

Each line is run by a shell as it stands in its document. Only two things are put in: real ids for the placeholders,
and, by curl's own configuration file, the server's address for the names and ports of the documents.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warm_parent
from far_warren import KEY, running_far_warren
from server_process import ServerProcess, running_server
from this_run import new_state_dir, patience

from warren.sandboxes.host.record import SandboxRecord

_NAMES = "your-vps,worker-ip,vps-ip"
_PATIENCE_S = patience(60.0)

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def state(image_cache: Path) -> Iterator[Path]:
    yield from _new_state(image_cache)


@pytest.fixture
def fresh_state(image_cache: Path) -> Iterator[Path]:
    yield from _new_state(image_cache)


def _new_state(image_cache: Path) -> Iterator[Path]:
    path = new_state_dir(image_cache)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def far(image_cache: Path) -> Iterator[ServerProcess]:
    with running_far_warren(image_cache) as far:
        yield far


@pytest.fixture(scope="module")
def server(state: Path, far: ServerProcess) -> Iterator[ServerProcess]:
    environ = {"WARREN_E2B_API_URL": far.url, "E2B_API_KEY": KEY, "WARREN_ALLOWED_HOSTS": _NAMES}
    with running_server(state, provider="oci,e2b", **environ) as server:
        yield server


@pytest.fixture(scope="module")
def run(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a shell line and gives the JSON it prints; `ids` are put in for the placeholders."""
    home = tmp_path_factory.mktemp("curl")
    (home / ".curlrc").write_text(f'connect-to = "::127.0.0.1:{server.port}"\nsilent\nshow-error\nfail-with-body\n')

    def run(line: str, **ids: str) -> Any:
        for placeholder, real in ids.items():
            line = line.replace(placeholder.replace("_", "-"), real)
        environ = {"PATH": os.environ["PATH"], "CURL_HOME": str(home)}
        outcome = subprocess.run(
            ["bash", "-c", line], env=environ, cwd=home, capture_output=True, text=True, timeout=60
        )
        assert outcome.returncode == 0, f"{line}\n{outcome.stdout}\n{outcome.stderr}"
        return json.loads(outcome.stdout)

    return run


@pytest.fixture
def session_id(run: Run) -> Iterator[str]:
    made = run("curl -X POST http://localhost:8000/create_session")
    yield made["session_id"]
    run('curl -X POST http://localhost:8000/cleanup -d \'{"session_id": "abc-123"}\'', abc_123=made["session_id"])


# -- the simple server: three requests, by the name your-vps

_CREATE = "curl -X POST http://your-vps:5000/create_session"
_EXECUTE = """\
curl -X POST http://your-vps:5000/execute \\
  -H "Content-Type: application/json" \\
  -d '{
    "session_id": "your-session-id",
    "command": "echo Hello"
  }'"""
_CLEANUP = """\
curl -X POST http://your-vps:5000/cleanup \\
  -H "Content-Type: application/json" \\
  -d '{"session_id": "your-session-id"}'"""


def test_the_three_requests_of_the_simple_server_work_as_written(run: Run) -> None:
    made = run(_CREATE)
    assert made["status"] == "created"
    done = run(_EXECUTE, your_session_id=made["session_id"])
    assert (done["exit_code"], done["output"]) == (0, "Hello\n")
    assert run(_CLEANUP, your_session_id=made["session_id"]) == {"status": "cleaned up"}


def test_cleaning_up_as_written_with_the_placeholder_itself_harms_nothing(run: Run) -> None:
    assert run(_CLEANUP) == {"status": "cleaned up"}


def test_the_flow_of_the_architecture_document_works(run: Run) -> None:
    made = run("curl -X POST http://vps-ip:5000/create_session")
    body = json.dumps({"session_id": made["session_id"], "command": "ls -la"})
    done = run(f"curl -X POST http://localhost:5000/execute -d '{body}'")
    assert done["exit_code"] == 0
    assert done["output"].startswith("total ")
    body = json.dumps({"session_id": made["session_id"]})
    assert run(f"curl -X POST http://localhost:5000/cleanup -d '{body}'") == {"status": "cleaned up"}


# -- the second version: health, and the reference of the HTTP API field by field


@pytest.mark.parametrize(
    "line",
    [
        "curl http://localhost:8000/health",
        "curl http://localhost:5000/health",
        "curl http://worker-ip:5000/health",
    ],
)
def test_health_answers_as_written(run: Run, line: str) -> None:
    health = run(line)
    assert health["status"] == "healthy"
    assert isinstance(health["pool_size"], int)
    assert isinstance(health["active_sessions"], int)
    assert health["worker_id"] == "local"


def test_create_session_has_every_field_of_the_reference(run: Run) -> None:
    made = run("curl -X POST http://localhost:8000/create_session")
    assert re.fullmatch(r"ses_[0-9a-f]{32}", made["session_id"])
    assert made["status"] == "created"
    assert made["user"] == "sandboxuser"
    assert made["workspace"] == "/workspace"
    assert made["worker"].startswith("http://")
    run(_CLEANUP, your_session_id=made["session_id"])


def test_execute_takes_a_timeout_and_has_every_field_of_the_reference(run: Run, session_id: str) -> None:
    body = json.dumps({"session_id": session_id, "command": "ls -la", "timeout": 30})
    done = run(f"curl -X POST http://localhost:8000/execute -d '{body}'")
    assert done["exit_code"] == 0
    assert ".." in done["output"]


def test_execute_ends_a_command_after_the_timeout_it_was_given(run: Run, session_id: str) -> None:
    body = json.dumps({"session_id": session_id, "command": "sleep 600", "timeout": 1})
    done = run(f"curl -X POST http://localhost:8000/execute -d '{body}'")
    assert done["exit_code"] != 0
    assert done["reason"] == "timeout"


def test_upload_file_has_every_field_of_the_reference(run: Run, session_id: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_bytes(b"some text\n")
    form = f"-F session_id={session_id} -F file=@{tmp_path}/file.txt"
    uploaded = run(f"curl -X POST http://localhost:8000/upload_file {form}")
    assert uploaded["status"] == "uploaded"
    assert uploaded["filename"] == "file.txt"
    assert uploaded["path"] == "/workspace/file.txt"
    body = json.dumps({"session_id": session_id, "command": "cat file.txt; stat -c %U file.txt"})
    assert run(f"curl http://localhost:8000/execute -d '{body}'")["output"] == "some text\nsandboxuser\n"


def test_health_counts_the_sessions(run: Run, session_id: str) -> None:
    before = run("curl http://localhost:8000/health")["active_sessions"]
    made = run("curl -X POST http://localhost:8000/create_session")
    assert run("curl http://localhost:8000/health")["active_sessions"] == before + 1
    run(_CLEANUP, your_session_id=made["session_id"])
    assert run("curl http://localhost:8000/health")["active_sessions"] == before


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("whoami", "sandboxuser\n"),
        ("python3 -c 'print(2+2)'", "4\n"),
        ("echo 'Step 1'", "Step 1\n"),
        ("id -u", "1000\n"),
    ],
)
def test_the_examples_commands_say_what_the_document_says(
    run: Run, session_id: str, tmp_path: Path, command: str, output: str
) -> None:
    (tmp_path / "body").write_text(json.dumps({"session_id": session_id, "command": command}))
    assert run(f"curl http://localhost:8000/execute -d @{tmp_path}/body")["output"] == output


# -- the sandbox system with providers: /api/sessions and /api/e2b

_API_CREATE = """\
curl -X POST http://localhost:8000/api/sessions \\
  -d '{"environment": "Python3", "provider": "e2b"}'"""
_API_EXECUTE = """\
curl -X POST http://localhost:8000/api/e2b/execute \\
  -d '{"session_id": "abc-123", "code": "print(42)"}'"""
_API_DESTROY = "curl -X DELETE http://localhost:8000/api/sessions/abc-123?sandbox_id=xyz"


@pytest.mark.parametrize("provider", ["e2b", "oci"])
def test_the_rest_api_works_as_written(run: Run, provider: str) -> None:
    """In E2B's cloud, or whatever server takes its place; and on the machine itself."""
    made = run(_API_CREATE.replace("e2b", provider))
    assert made["session_id"]
    assert made["sandbox_id"]
    assert made["provider"] == provider
    assert made["url"].endswith(f"/api/sessions/{made['session_id']}")
    assert made["environment"] == "Python3"
    done = run(_API_EXECUTE, abc_123=made["session_id"])
    assert done["stdout"] == "42\n"
    assert done["stderr"] == ""
    assert done["results"] == []
    assert done["artifacts"] == []
    ended = run(_API_DESTROY, abc_123=made["session_id"], xyz=made["sandbox_id"])
    assert (ended["session_id"], ended["state"]) == (made["session_id"], "ended")


def test_a_destroyed_session_can_be_destroyed_again_as_written(run: Run, session_id: str) -> None:
    sandbox_id = run(f"curl http://localhost:8000/api/sessions/{session_id}")["sandbox_id"]
    first = run(_API_DESTROY, abc_123=session_id, xyz=sandbox_id)
    assert run(_API_DESTROY, abc_123=session_id, xyz=sandbox_id) == first


def test_the_state_of_a_session_can_be_read(run: Run, session_id: str) -> None:
    shown = run(f"curl http://localhost:8000/api/sessions/{session_id}")
    assert (shown["session_id"], shown["state"]) == (session_id, "running")
    assert shown["isolation"]["in_force"]["no_new_privs"]


def test_code_gives_results_and_artifacts(run: Run, session_id: str, tmp_path: Path) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nopen('made.csv', 'w').write('1,2')\n6 * 7"
    (tmp_path / "body").write_text(json.dumps({"session_id": session_id, "code": code}))
    done = run(f"curl -X POST http://localhost:8000/api/e2b/execute -d @{tmp_path}/body")
    assert (done["stdout"], done["stderr"]) == ("out\n", "err\n")
    assert [result["text"] for result in done["results"]] == ["42"]
    assert [artifact["path"] for artifact in done["artifacts"]] == ["/workspace/made.csv"]


def test_files_can_be_written_listed_and_read(run: Run, session_id: str) -> None:
    body = json.dumps({"session_id": session_id, "path": "notes.json", "content": '{"a": 1}'})
    written = run(f"curl -X POST http://localhost:8000/api/e2b/files -d '{body}'")
    assert (written["path"], written["size"]) == ("/workspace/notes.json", 8)
    listed = run(f"curl http://localhost:8000/api/e2b/files/{session_id}")
    assert [entry["path"] for entry in listed["files"]] == ["/workspace/notes.json"]
    assert run(f"curl http://localhost:8000/api/e2b/files/{session_id}?path=notes.json") == {"a": 1}


# -- threads, as the document on thread-scoped sessions has them


def test_files_of_a_thread_persist_from_one_command_to_the_next(run: Run) -> None:
    first = run("""curl http://localhost:8000/execute -d '{"thread_id": "conv-1", "command": "echo kept > note"}'""")
    second = run("""curl http://localhost:8000/execute -d '{"thread_id": "conv-1", "command": "cat note"}'""")
    other = run("""curl http://localhost:8000/execute -d '{"thread_id": "conv-2", "command": "ls"}'""")
    assert second["output"] == "kept\n"
    assert first["session_id"] == second["session_id"] != other["session_id"]
    assert other["output"] == ""
    for thread in ("conv-1", "conv-2"):
        run(f"""curl http://localhost:8000/cleanup -d '{{"thread_id": "{thread}"}}'""")


def test_a_session_lives_half_an_hour_idle_and_one_hour_in_all(run: Run, session_id: str) -> None:
    shown = run(f"curl http://localhost:8000/api/sessions/{session_id}")
    assert (shown["idle_timeout_s"], shown["max_lifetime_s"]) == (1800, 3600)


# -- the environment variables of the documents


class AsTheDocumentsStartIt(ServerProcess):
    """Without a flag that a variable could be hidden by."""

    def __init__(self, state_dir: Path, **environ: str) -> None:
        super().__init__(state_dir, **environ)
        self._argv = [sys.executable, "-m", "warren.cli.main", "serve", "--on-stop", "destroy"]
        self.environ |= {"WARREN_STATE_DIR": str(state_dir), "PORT": str(self.port)}


def ask(server: ServerProcess, path: str, body: dict[str, Any] | None = None) -> Any:
    data = [] if body is None else ["-d", json.dumps(body)]
    argv = ["curl", "-sS", "--fail-with-body", f"{server.url}{path}", *data]
    outcome = warm_parent.run(argv, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return json.loads(outcome.stdout)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"in {_PATIENCE_S} s it did not come to be: {what}"
        time.sleep(0.1)


def test_the_variables_of_the_documents_take_effect(fresh_state: Path) -> None:
    server = AsTheDocumentsStartIt(
        fresh_state,
        POOL_SIZE="3",
        WORKER_ID="worker1",
        SESSION_TIMEOUT="2h",
        MEMORY_LIMIT="128m",
        CPU_QUOTA="25000",
        CONTAINER_IMAGE="host",
    )
    try:
        server.start()  # PORT: it is reached there
        until(lambda: ask(server, "/health")["pool_size"] == 3, "a pool of three")
        assert ask(server, "/health")["worker_id"] == "worker1"
        session_id = ask(server, "/create_session", {})["session_id"]
        shown = ask(server, f"/api/sessions/{session_id}")
        assert (shown["max_lifetime_s"], shown["idle_timeout_s"]) == (7200, 7200)
        assert "128 MiB" in shown["isolation"]["in_force"]["memory_limit"]
        record = SandboxRecord.load(fresh_state / "sandboxes" / shown["sandbox_id"])
        assert record is not None
        assert (record.spec.image, record.spec.limits.cpus) == ("host", 0.25)
        greedy = {"session_id": session_id, "command": "python3 -c 'print(len(bytearray(300 << 20)))'"}
        assert ask(server, "/execute", greedy)["reason"] == "oom"
    finally:
        server.stop()


def test_a_session_ends_when_the_session_timeout_is_over(fresh_state: Path) -> None:
    server = AsTheDocumentsStartIt(fresh_state, SESSION_TIMEOUT="2", POOL_SIZE="1")
    try:
        server.start()
        session_id = ask(server, "/create_session", {})["session_id"]
        until(lambda: ask(server, f"/api/sessions/{session_id}")["state"] == "ended", "the end of the session")
        assert ask(server, f"/api/sessions/{session_id}")["reason"] == "lifetime"
    finally:
        server.stop()
