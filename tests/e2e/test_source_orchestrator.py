"""The Python programs of the document on the sandbox system, on a server that wants a key, and without any server.

They stand here as in their document; packages/compat has the names that they import. Beside them, what else these
names do.
"""

import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess, clean_environ, running_server
from this_run import new_state_dir

COMPAT = Path(__file__).parents[2] / "packages" / "compat"
DOCS = Path(__file__).parents[2] / "docs"

_LIFECYCLE = """\
from orchestrator.lifecycle import Lifecycle

lifecycle = Lifecycle(
    storage_path="./storage",
    runtime_path="./sandbox_runtime",
    e2b_api_key="your_key"
)

# Start session
session = lifecycle.start(
    agent_config={"type": "code_executor"},
    environment="Python3",
    provider="e2b"
)

# Execute code
result = lifecycle.sandbox_mgr.execute_code(
    session_id=session["session_id"],
    code="print('Hello World')"
)

# Cleanup
lifecycle.stop(session["session_id"], session["sandbox_id"])
"""
_SHOW = "import json; print(json.dumps([session, result]))"

_PROVIDERS = """\
# Same API, different providers
manager.start_sandbox(session_id, "Python3", provider="e2b")
manager.start_sandbox(session_id, "python:latest", provider="docker")
"""
# What the document leaves to its readers.
_MANAGER = """\
from orchestrator.unified_manager import UnifiedSandboxManager
manager, session_id = UnifiedSandboxManager(), "mine"
"""

_EVERYTHING = """\
import json
from pathlib import Path
from orchestrator.lifecycle import Lifecycle
from warren.model.errors import Conflict, SessionNotFound

def refused(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as exc:
        return exc.message
    raise AssertionError(f"{call} was not refused")

with Lifecycle("store") as lifecycle:
    boxes = lifecycle.sandbox_mgr
    session = lifecycle.start(environment="Python3")
    id, box = session["session_id"], session["sandbox_id"]
    assert lifecycle.status(id)["state"] == "running"

    Path("in.txt").write_text("from here")
    assert boxes.upload(id, "in.txt", "deep/in.txt")["path"] == "/workspace/deep/in.txt"
    code = "import os; print(os.environ['A']); open('out.txt', 'w').write('made')"
    done = boxes.execute_code(id, code, envs={"A": "1"})
    assert (done["stdout"], done["exit_code"]) == ("1\\n", 0), done
    assert [each["path"] for each in done["artifacts"]] == ["/workspace/out.txt"]
    again = boxes.execute_code(id, "open('out.txt', 'a').write(' twice'); open('b', 'w')")
    assert [each["path"] for each in boxes.artifacts(id)] == [each["path"] for each in again["artifacts"]]
    failed = boxes.execute_code(id, "kept = 41\\n1 / 0")
    assert (failed["exit_code"], failed["error"]["name"]) == (1, "ZeroDivisionError")
    assert "ZeroDivisionError" in failed["stderr"]
    value = boxes.execute_code(id, "kept + 1")
    assert (value["results"], value["context_id"]) == ([{"text": "42", "is_main_result": True}], "ctx_python")
    assert boxes.execute_code(id, "import time; time.sleep(60)", timeout=1)["reason"] == "timeout"
    kept = boxes.download(id, "../workspace/./out.txt")
    assert (kept, kept.read_text()) == (Path(f"store/artifacts/{id}/out.txt"), "made twice")
    assert boxes.download(id, "/etc/../etc/hostname").relative_to(f"store/artifacts/{id}") == Path("etc/hostname")
    assert boxes.download(id, "deep/in.txt", "back.txt").read_text() == "from here"
    assert {each["name"] for each in boxes.list_files(id)} == {"deep", "out.txt", "b"}
    boxes.write_file(id, "c", "text")
    boxes.delete_file(id, "deep", recursive=True)
    assert boxes.read_file(id, "c") == b"text"
    assert boxes.set_network(id).allow == boxes.network(id).allow == []

    named = boxes.start_sandbox("mine", "Python3", provider="e2b")
    assert named["sandbox_id"] == boxes.start_sandbox("mine", "Python3")["sandbox_id"] != box
    assert boxes.execute_code("mine", "print(2); open('d', 'w')")["stdout"] == "2\\n"
    assert [each["path"] for each in boxes.artifacts("mine")] == ["/workspace/d"]
    assert boxes.artifacts("nobody") == []
    assert refused(SessionNotFound, boxes.execute_code, "nobody", "1")
    assert refused(Conflict, lifecycle.stop, id, named["sandbox_id"])
    assert json.loads(Path(f"store/sessions/{id}.json").read_text())["state"] == "running"
    assert boxes.stop_sandbox("mine")["state"] == "ended"
    assert lifecycle.stop(id, box)["state"] == "ended"
    assert lifecycle.stop(id, box)["state"] == "ended"
    (known,) = lifecycle.session_mgr.list_sessions()
    assert (known["session_id"], known["state"], known["reason"]) == (id, "ended", "deleted")
"""

Run = Callable[..., str]


@pytest.fixture(scope="module")
def server(image_cache: Path) -> Iterator[ServerProcess]:
    path, key = new_state_dir(image_cache), f"wk_test_{secrets.token_hex(16)}"
    with running_server(path, "--pool-size", "1", WARREN_API_KEY=key) as server:
        yield server
    left = list((path / "sandboxes").glob("*"))
    shutil.rmtree(path)
    assert left == []


@pytest.fixture
def on_server(server: ServerProcess, tmp_path: Path) -> Run:
    def run(program: str, key: str = server.environ["WARREN_API_KEY"], *flags: str) -> str:
        known = {"WARREN_URL": server.url, **({"WARREN_API_KEY": key} if key else {})}
        return run_program(program, tmp_path, flags, **known)

    return run


@pytest.fixture
def without_server(image_cache: Path, tmp_path: Path) -> Iterator[Run]:
    state = new_state_dir(image_cache)

    def run(program: str, *flags: str) -> str:
        return run_program(program, tmp_path, flags, WARREN_STATE_DIR=str(state), WARREN_POOL_SIZE="1")

    yield run
    left = list((state / "sandboxes").glob("*"))
    shutil.rmtree(state)
    assert left == []


def run_program(program: str, folder: Path, flags: tuple[str, ...], **environ: str) -> str:
    environ = {**clean_environ(), "PYTHONPATH": ":".join([str(COMPAT), *sys.path]), **environ}
    argv = [sys.executable, "-W", "error", *flags, "-c", program]
    outcome = subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, timeout=120)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return outcome.stdout


def check_the_flow(shown: str, folder: Path) -> None:
    session, result = json.loads(shown)
    assert result["stdout"] == "Hello World\n"
    assert {"session_id", "sandbox_id", "provider", "url"} <= set(session)
    assert (session["provider"], session["agent_config"]["type"]) == ("oci", "code_executor")
    (kept,) = (folder / "storage" / "sessions").glob("*.json")
    assert kept.stem == session["session_id"]
    assert json.loads(kept.read_text())["state"] == "ended"


# The program's key is none of Warren's, and a warning says so.
_ALLOWED = ("-W", "ignore:e2b_api_key is not used:UserWarning")


def test_the_program_works_on_a_server(on_server: Run, server: ServerProcess, tmp_path: Path) -> None:
    shown = on_server(_LIFECYCLE + _SHOW, server.environ["WARREN_API_KEY"], *_ALLOWED)
    check_the_flow(shown, tmp_path)
    assert json.loads(shown)[0]["url"].startswith(f"{server.url}/api/sessions/ses_")


def test_the_program_s_key_may_be_one_of_warren_s(on_server: Run, server: ServerProcess, tmp_path: Path) -> None:
    program = _LIFECYCLE.replace("your_key", server.environ["WARREN_API_KEY"])
    check_the_flow(on_server(program + _SHOW, ""), tmp_path)


def test_the_program_works_without_a_server(without_server: Run, tmp_path: Path) -> None:
    check_the_flow(without_server(_LIFECYCLE + _SHOW, *_ALLOWED), tmp_path)


def test_a_key_that_is_none_of_warren_s_is_not_used_and_not_shown() -> None:
    program = "from orchestrator.lifecycle import Lifecycle; Lifecycle(e2b_api_key='e2b_secret')"
    environ = {**clean_environ(), "PYTHONPATH": ":".join([str(COMPAT), *sys.path])}
    outcome = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stderr
    assert "<string>:1: UserWarning: e2b_api_key is not used: keys of Warren begin with wk_" in outcome.stderr
    assert "secret" not in outcome.stderr


def test_a_provider_that_a_server_does_not_have_is_refused(on_server: Run) -> None:
    first, second = _PROVIDERS.splitlines()[1:]
    tried = f"try:\n    {second}\nexcept Exception as exc:\n    print(exc)\n"
    said = on_server(f"{_MANAGER}{first}\nmanager.stop_sandbox(session_id)\n{tried}")
    assert said.startswith("this server has no provider 'docker'")


def test_everything_else_works_on_a_server(on_server: Run) -> None:
    on_server(_EVERYTHING)


@pytest.mark.extended
def test_everything_else_works_without_a_server(without_server: Run) -> None:
    without_server(_EVERYTHING)


@pytest.mark.extended
def test_sandboxes_that_nobody_stopped_end_with_their_program(without_server: Run) -> None:
    without_server("from orchestrator.lifecycle import Lifecycle; Lifecycle().start(environment='host')")
