"""The Python programs of the document on the sandbox system, on a server that wants a key, and without any server.

They stand here as in their document; packages/compat has the names that they import. Their E2B is another Warren.
Beside them, what else these names do.
"""

import json
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from docker_engine import DockerEngine
from far_warren import running_far_warren
from registry_server import Image, lying_registry, send, tar_of
from server_process import ServerProcess, clean_environ, free_port, running_server
from small_tree import make_small_tree
from this_run import new_state_dir, patience

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

_EVERYTHING = """\
import json
from pathlib import Path
from orchestrator.lifecycle import Lifecycle
from warren.model.errors import Conflict, InvalidRequest, SessionNotFound

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

    named = boxes.start_sandbox("mine", "Python3")
    assert named["sandbox_id"] == boxes.start_sandbox("mine", "Python3")["sandbox_id"] != box
    assert "has the environment 'Python3', not 'Node'" in refused(Conflict, boxes.start_sandbox, "mine", "Node")
    other = boxes.start_sandbox("mine", "Python3", provider="oci")
    assert other["sandbox_id"] != named["sandbox_id"] == boxes.get_sandbox(named["session_id"])["sandbox_id"]
    assert boxes.get_sandbox("mine")["sandbox_id"] == other["sandbox_id"]
    alike = boxes.start_sandbox("mine@oci", "Python3")
    assert alike["sandbox_id"] not in (named["sandbox_id"], other["sandbox_id"])
    assert boxes.stop_sandbox("mine@oci")["sandbox_id"] == alike["sandbox_id"]
    assert "has '@@' in it" in refused(InvalidRequest, boxes.start_sandbox, "mine@@oci")
    assert boxes.stop_sandbox("mine")["sandbox_id"] == other["sandbox_id"]
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
def far(image_cache: Path) -> Iterator[ServerProcess]:
    with running_far_warren(image_cache, WARREN_API_KEY=new_key()) as far:
        yield far


@pytest.fixture(scope="module")
def server(image_cache: Path, far: ServerProcess) -> Iterator[ServerProcess]:
    """It has the provider e2b beside its own."""
    path = new_state_dir(image_cache)
    e2b = {"E2B_API_URL": far.url, "E2B_API_KEY": far.environ["WARREN_API_KEY"]}
    with running_server(path, "--pool-size", "1", provider="oci,e2b", WARREN_API_KEY=new_key(), **e2b) as server:
        yield server
    left = [*(path / "sandboxes").glob("*"), *(path / "e2b").glob("*/")]
    shutil.rmtree(path)
    assert left == []


@pytest.fixture(scope="module")
def plain() -> Iterator[ServerProcess]:
    """A server without the provider e2b. It makes its first key itself."""
    path = new_state_dir()
    with running_server(path, provider="fake", WARREN_AUTH="true") as plain:
        yield plain
    shutil.rmtree(path)


def new_key() -> str:
    return f"wk_test_{secrets.token_hex(16)}"


@pytest.fixture
def on_server(server: ServerProcess, tmp_path: Path) -> Run:
    def run(program: str, key: str = server.environ["WARREN_API_KEY"], *flags: str) -> str:
        known = {"WARREN_URL": server.url, **({"WARREN_API_KEY": key} if key else {})}
        return run_program(program, tmp_path, flags, **known)

    return run


@pytest.fixture
def on_plain(plain: ServerProcess, tmp_path: Path) -> Run:
    def run(program: str, *flags: str, **environ: str) -> str:
        known = {"WARREN_URL": plain.url, "WARREN_CREDENTIALS": str(plain.credentials), **environ}
        return run_program(program, tmp_path, flags, **known)

    return run


@pytest.fixture
def without_server(image_cache: Path, tmp_path: Path) -> Iterator[Run]:
    state = new_state_dir(image_cache)

    def run(program: str, *flags: str, **environ: str) -> str:
        known = {"WARREN_STATE_DIR": str(state), "WARREN_POOL_SIZE": "1", "WARREN_PORT": str(free_port()), **environ}
        return run_program(program, tmp_path, flags, **known)

    yield run
    left = [*(state / "sandboxes").glob("*"), *(state / "e2b").glob("*/")]
    shutil.rmtree(state)
    assert left == []


def run_program(program: str, folder: Path, flags: tuple[str, ...], **environ: str) -> str:
    environ = {**clean_environ(), "PYTHONPATH": ":".join([str(COMPAT), *sys.path]), **environ}
    argv = [sys.executable, "-W", "error", *flags, "-c", program]
    outcome = subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, timeout=120)
    # Without a log, what would be in it goes to stderr: the names of events, and that an image is waited for.
    said = re.sub(r"^([a-z]+(_[a-z]+)+|the image of this environment is .*)\n", "", outcome.stderr, flags=re.MULTILINE)
    assert (outcome.returncode, said) == (0, "")
    return outcome.stdout


def check_the_flow(shown: str, folder: Path) -> None:
    session, result = json.loads(shown)
    assert result["stdout"] == "Hello World\n"
    assert {"session_id", "sandbox_id", "provider", "url"} <= set(session)
    assert (session["provider"], session["agent_config"]["type"]) == ("e2b", "code_executor")
    (kept,) = (folder / "storage" / "sessions").glob("*.json")
    assert kept.stem == session["session_id"]
    assert json.loads(kept.read_text())["state"] == "ended"


# The server has its own key for E2B, and a warning says so.
_ALLOWED = ("-W", "ignore:e2b_api_key is not used:UserWarning")


def test_the_program_works_on_a_server(on_server: Run, server: ServerProcess, tmp_path: Path) -> None:
    shown = on_server(_LIFECYCLE + _SHOW, server.environ["WARREN_API_KEY"], *_ALLOWED)
    check_the_flow(shown, tmp_path)
    assert json.loads(shown)[0]["url"].startswith(f"{server.url}/api/sessions/ses_")


def test_the_program_s_key_may_be_the_server_s(on_server: Run, server: ServerProcess, tmp_path: Path) -> None:
    program = _LIFECYCLE.replace("your_key", server.environ["WARREN_API_KEY"])
    check_the_flow(on_server(program + _SHOW, ""), tmp_path)


@pytest.mark.extended
def test_the_program_works_without_a_server_and_its_key_may_be_one_of_a_far_warren(
    without_server: Run, far: ServerProcess, tmp_path: Path
) -> None:
    program = _LIFECYCLE.replace("your_key", far.environ["WARREN_API_KEY"])
    check_the_flow(without_server(program + _SHOW, E2B_API_URL=far.url), tmp_path)
    begun = time.monotonic()
    said = without_server(tried(_LIFECYCLE), E2B_API_URL=far.url, E2B_API_KEY=far.environ["WARREN_API_KEY"])
    assert said.startswith("E2B, looking for a template: this API key is not known here"), said
    assert "check the key (e2b_api_key" in said
    assert time.monotonic() - begun < patience(25.0), "nobody waits for a sandbox that cannot come"


def tried(program: str) -> str:
    """The program, which prints the error that ends it instead of showing its traceback."""
    inside = "".join(f"    {line}\n" for line in program.splitlines())
    return f"try:\n{inside}except Exception as exc:\n    print(f'{{exc.message}} | {{exc.remedy}}')\n"


def test_e2b_is_refused_in_words_where_nobody_has_it(on_plain: Run, without_server: Run) -> None:
    program = tried("from orchestrator.lifecycle import Lifecycle\nLifecycle().start(provider='e2b')")
    said, remedy = on_plain(program).split(" | ")
    assert said == "this server has no provider 'e2b'"
    assert remedy.startswith("its operator adds it, see docs/e2b-provider.md; or leave provider out")
    said, remedy = without_server(program, WARREN_PROVIDER="fake").split(" | ")
    assert said == "E2B is asked for, and there is no key for it"
    assert remedy.startswith("give e2b_api_key, or set E2B_API_KEY; or leave provider out")


def test_a_server_whose_key_is_given_as_e2b_s_is_e2b(on_plain: Run, plain: ServerProcess) -> None:
    (key,) = json.loads(plain.credentials.read_text()).values()
    program = f"""\
from orchestrator.lifecycle import Lifecycle
session = Lifecycle(e2b_api_key={key!r}).start(provider="e2b")
print(session["provider"])
"""
    assert on_plain(program, WARREN_CREDENTIALS="/nowhere") == "fake\n"


def test_beside_a_running_server_the_program_finds_it_and_its_key(plain: ServerProcess, tmp_path: Path) -> None:
    program = "from orchestrator.lifecycle import Lifecycle; print(Lifecycle().start()['url'])"
    known = {"WARREN_PORT": str(plain.port), "WARREN_CREDENTIALS": str(plain.credentials)}
    said = run_program(program, tmp_path, (), WARREN_STATE_DIR=str(plain.state_dir), **known)
    assert said.startswith(f"http://localhost:{plain.port}/api/sessions/ses_")


def test_a_key_that_is_not_used_is_not_shown(plain: ServerProcess) -> None:
    program = "from orchestrator.lifecycle import Lifecycle; Lifecycle(e2b_api_key='e2b_secret')"
    environ = {**clean_environ(), "PYTHONPATH": ":".join([str(COMPAT), *sys.path]), "WARREN_URL": plain.url}
    outcome = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stderr
    assert "<string>:1: UserWarning: e2b_api_key is not used: a server has its own key" in outcome.stderr
    assert "secret" not in outcome.stderr


def test_what_is_missing_is_named_with_what_to_install(without_server: Run) -> None:
    program = "from orchestrator.lifecycle import Lifecycle\nLifecycle().start()"
    said = without_server(tried(f"import sys; sys.modules['uvloop'] = None\n{program}"))
    assert said.startswith("local mode needs the packages of the server")
    assert "pip install 'warren-sandbox[server]'; or name a server: set WARREN_URL" in said


@pytest.mark.parametrize("module", ["orchestrator.lifecycle", "sandbox_client", "sandbox_client_v2"])
def test_the_package_alone_says_what_to_install(module: str) -> None:
    alone = f"import sys; sys.path[:0] = [{str(COMPAT)!r}]\nimport {module}"
    outcome = subprocess.run([sys.executable, "-I", "-S", "-c", alone], capture_output=True, text=True, timeout=60)
    assert re.search(r"^ImportError: \w+ is Warren under .*: pip install warren-sandbox$", outcome.stderr, re.M)


@pytest.mark.extended
@pytest.mark.group("docker")
def test_an_image_that_docker_lacks_is_pulled_or_it_is_said_why_not(
    docker_engine: DockerEngine, tmp_path: Path
) -> None:
    root = make_small_tree(tmp_path / "tree", "/bin/bash", "/bin/cat")
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        is_missing = not handler.path.startswith("/v2/library/tiny/")
        if is_missing:
            send(handler, b"", status=404)
        return is_missing

    program = """\
from orchestrator.unified_manager import UnifiedSandboxManager
manager = UnifiedSandboxManager()
manager.start_sandbox("mine", "tiny:latest", provider="docker")
"""
    state = new_state_dir()  # not that of the kept images, which would keep this one
    with lying_registry(Image(tar_of(files)), answer) as hub:
        known = {"WARREN_PROVIDER": "docker", "DOCKER_HOST": docker_engine.url, "WARREN_POOL_SIZE": "0"}
        known["WARREN_PORT"] = str(free_port())
        known |= {"WARREN_IMAGE_MIRRORS": f"docker.io={hub.host}", "WARREN_STATE_DIR": str(state)}
        done = "print(manager.stop_sandbox('mine')['provider'])"
        assert run_program(f"{program}\n{done}", tmp_path, (), **known) == "docker\n"
        said = run_program(tried(program.replace("tiny", "nosuch")), tmp_path, (), **known)
    assert "nosuch:latest" in said, said
    assert hub.host in said, said
    shutil.rmtree(state)


def test_everything_else_works_on_a_server(on_server: Run) -> None:
    on_server(_EVERYTHING)


@pytest.mark.extended
def test_everything_else_works_without_a_server(without_server: Run) -> None:
    without_server(_EVERYTHING)


@pytest.mark.extended
def test_sandboxes_that_nobody_stopped_end_with_their_program(without_server: Run) -> None:
    without_server("from orchestrator.lifecycle import Lifecycle; Lifecycle().start(environment='host')")
