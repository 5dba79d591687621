"""Every Python and curl block of the five documents that this service was built after, against a real server with keys.

The blocks stand here document by document, call by call. Only this is put in: real ids for their placeholders, the
server's address for the names and ports of the documents, and a key where the documents have none: for curl by its own
configuration file, for Python by the file in which a server leaves its first key. docs/coming-from.md lists what else
differs; test_source_settings.py shows that what is set takes effect, and runs nginx as the documents do.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from docker_engine import DockerEngine
from far_warren import KEY, running_far_warren
from server_process import ServerProcess, clean_environ, running_server
from this_run import new_state_dir

from warren.config.settings import read_settings
from warren.images.store.store import ImageStore

COMPAT = Path(__file__).parents[2] / "packages" / "compat"
_NAMES = "your-vps,worker-ip,vps-ip"

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def state(image_cache: Path) -> Iterator[Path]:
    path = new_state_dir(image_cache)
    yield path
    left = list((path / "sandboxes").glob("*"))
    shutil.rmtree(path, ignore_errors=True)
    assert left == []


@pytest.fixture(scope="module")
def far(image_cache: Path) -> Iterator[ServerProcess]:
    with running_far_warren(image_cache) as far:
        yield far


@pytest.fixture(scope="module")
def server(state: Path, far: ServerProcess) -> Iterator[ServerProcess]:
    environ = {"WARREN_E2B_API_URL": far.url, "E2B_API_KEY": KEY, "WARREN_ALLOWED_HOSTS": _NAMES}
    with running_server(state, provider="oci,e2b", WARREN_AUTH="true", **environ) as server:
        yield server


@pytest.fixture(scope="module")
def curl(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a line of a shell and gives the JSON it prints; `ids` are put in for the placeholders."""
    home = tmp_path_factory.mktemp("curl")
    (key,) = json.loads(server.credentials.read_text()).values()
    settings = f'connect-to = "::127.0.0.1:{server.port}"\nheader = "X-API-Key: {key}"\n'
    (home / ".curlrc").write_text(f"{settings}silent\nshow-error\nfail-with-body\n")

    def curl(line: str, **ids: str) -> Any:
        for placeholder, real in ids.items():
            line = line.replace(placeholder.replace("_", "-"), real)
        environ = {"PATH": os.environ["PATH"], "CURL_HOME": str(home)}
        outcome = subprocess.run(
            ["bash", "-c", line], env=environ, cwd=home, capture_output=True, text=True, timeout=60
        )
        assert outcome.returncode == 0, f"{line}\n{outcome.stdout}\n{outcome.stderr}"
        return json.loads(outcome.stdout)

    return curl


@pytest.fixture
def python(server: ServerProcess, tmp_path: Path) -> Run:
    """Runs a program in a directory of its own, beside `local_script.py`, and gives what it prints.

    PORT is where programs for the first version look for their server, WARREN_PORT where those for the second do.
    """
    (tmp_path / "local_script.py").write_text("print('from the script')\n")

    def python(program: str, *flags: str, port_name: str = "WARREN_PORT", at: ServerProcess = server) -> str:
        program = re.sub(r"http://(localhost|vps-ip):\d+", f"http://localhost:{at.port}", program)
        # The three dots where the state's type belongs stand in a document: LangGraph takes them, and says so.
        warnings = ["-W", "error", "-W", "ignore:Invalid state_schema:UserWarning", *flags]
        known = {"WARREN_CREDENTIALS": str(at.credentials), port_name: str(at.port)}
        environ = {**clean_environ(), "PYTHONPATH": ":".join([str(COMPAT), *sys.path]), **known}
        argv = [sys.executable, "-X", "dev", *warnings, *(["-c", program] if program else [])]
        outcome = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert (outcome.returncode, outcome.stderr) == (0, "")
        return outcome.stdout

    return python


@pytest.fixture
def session_id(curl: Run) -> Iterator[str]:
    made = curl("curl -X POST http://localhost:8000/create_session")
    yield made["session_id"]
    curl('curl -X POST http://localhost:8000/cleanup -d \'{"session_id": "abc-123"}\'', abc_123=made["session_id"])


# -- the overview: a program in a drawing, without its import, and the way of its requests

_OVERVIEW = """\
from sandbox_client import SandboxClient
client = SandboxClient("http://vps-ip:5000")
client.create_session()
result = client.execute("bash command")
client.cleanup()
"""


def test_the_program_of_the_overview_works(python: Run) -> None:
    assert python(_OVERVIEW + "print(result['exit_code']); client.close()") == "127\n"


def test_the_requests_of_the_overview_work(curl: Run) -> None:
    made = curl("curl -X POST http://vps-ip:5000/create_session")
    body = json.dumps({"session_id": made["session_id"], "command": "ls -la"})
    done = curl(f"curl -X POST http://localhost:5000/execute -d '{body}'")
    assert (done["exit_code"], done["output"][:6]) == (0, "total ")
    body = json.dumps({"session_id": made["session_id"]})
    assert curl(f"curl -X POST http://localhost:5000/cleanup -d '{body}'") == {"status": "cleaned up"}


# -- the first version

_FIRST = """\
from sandbox_client import SandboxClient

with SandboxClient(server_url="http://localhost:5000") as sandbox:
    result = sandbox.execute("ls -la")
    print(result['output'])
"""
_FIRST_GRAPH = """\
from langgraph.graph import StateGraph
from sandbox_client import SandboxClient

def bash_node(state):
    with SandboxClient() as sandbox:
        result = sandbox.execute(state['command'])
        return {'output': result['output']}
"""
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
# What the documents leave to their readers: the rest of the graph, and a run of it.
_FIRST_REST = """\
workflow = StateGraph(dict)
workflow.add_node("execute", bash_node)
"""
_RUN = """\
workflow.set_entry_point("execute")
workflow.set_finish_point("execute")
print(workflow.compile().invoke({state!r}))
"""


def test_the_program_of_the_first_version_works(python: Run) -> None:
    assert python(_FIRST).startswith("total ")


def test_the_graph_of_the_first_version_works_at_the_port_of_its_server(python: Run) -> None:
    program = _FIRST_GRAPH + _FIRST_REST + _RUN.format(state={"command": "echo from the graph"})
    assert python(program, port_name="PORT") == "{'output': 'from the graph\\n'}\n"


def test_the_requests_of_the_first_version_work(curl: Run) -> None:
    made = curl(_CREATE)
    assert made["status"] == "created"
    done = curl(_EXECUTE, your_session_id=made["session_id"])
    assert (done["exit_code"], done["output"]) == (0, "Hello\n")
    assert curl(_CLEANUP, your_session_id=made["session_id"]) == {"status": "cleaned up"}
    assert curl(_CLEANUP) == {"status": "cleaned up"}  # with the placeholder itself it harms nothing


# -- the second version

_SECOND = """\
from sandbox_client_v2 import SandboxClient

with SandboxClient(server_url="http://localhost:8000") as sandbox:
    result = sandbox.execute("whoami")
    print(f"User: {result['output']}")

    result = sandbox.execute("python3 -c 'print(2+2)'")
    print(result['output'])
"""
_BATCH = """\
from sandbox_client_v2 import BatchSandboxClient

client = BatchSandboxClient()
results = client.execute_batch([
    "echo 'Step 1'",
    "python3 --version",
    "ls -la"
])

for result in results:
    print(result['output'])
"""
# Its import is that of the block before it.
_UPLOAD = """\
from sandbox_client_v2 import SandboxClient
with SandboxClient() as sandbox:
    sandbox.upload_file("local_script.py", "script.py")

    result = sandbox.execute("python3 script.py")
    print(result['output'])
"""
_SECOND_GRAPH = """\
from langgraph.graph import StateGraph
from sandbox_client_v2 import SandboxClient

def execute_code_node(state):
    with SandboxClient("http://localhost:8000") as sandbox:
        result = sandbox.execute(state['code'])
        return {
            'output': result['output'],
            'exit_code': result['exit_code']
        }

workflow = StateGraph(...)
workflow.add_node("execute", execute_code_node)
"""
_HEALTH = [f"curl http://{place}/health" for place in ("localhost:8000", "localhost:5000", "worker-ip:5000")]
# What a program may expect of results that its documents index like dictionaries.
_DICTIONARIES = """\
import json
from {module} import SandboxClient
client = SandboxClient("http://localhost:5000")
made, again = client.create_session(), client.create_session()
uploaded = client.upload_file("local_script.py", "deep/script.py")
results = [made, again, client.execute("exit 3"), uploaded, *client.list_files(), client.cleanup()]
client.close()
assert all(isinstance(each, dict) for each in results), results
print(json.dumps(results))
"""


def test_the_program_of_the_second_version_works(python: Run) -> None:
    assert python(_SECOND) == "User: sandboxuser\n\n4\n\n"


def test_the_batch_works(python: Run) -> None:
    first, version, listing = python(_BATCH + "assert isinstance(result, dict)").split("\n\n", 2)
    assert (first, version[:8], listing[:6]) == ("Step 1", "Python 3", "total ")


def test_the_upload_works(python: Run) -> None:
    assert python(_UPLOAD) == "from the script\n\n"


def test_the_graph_of_the_second_version_works(python: Run) -> None:
    program = _SECOND_GRAPH + _RUN.format(state={"code": "echo from the graph; exit 3"})
    assert python(program) == "{'output': 'from the graph\\n', 'exit_code': 3}\n"


def test_the_client_tests_the_server(python: Run) -> None:
    assert " ok, 0 failed, " in python("", "-m", "sandbox_client_v2", "--test")


@pytest.mark.parametrize("module", ["sandbox_client", "sandbox_client_v2"])
def test_the_results_of_both_versions_are_dictionaries(python: Run, module: str) -> None:
    made, again, done, uploaded, listed, cleaned = json.loads(python(_DICTIONARIES.format(module=module)))
    assert (made["status"], made["user"], made["workspace"]) == ("created", "sandboxuser", "/workspace")
    assert (again["status"], again["session_id"]) == ("existing", made["session_id"])
    assert (done["exit_code"], done["output"], done["saved"]) == (3, "", None)
    assert (uploaded["status"], uploaded["filename"]) == ("uploaded", "script.py")
    assert uploaded["path"] == "/workspace/deep/script.py"
    assert (listed["name"], listed["kind"]) == ("deep", "directory")
    assert cleaned == {"status": "cleaned up"}


@pytest.mark.parametrize("line", _HEALTH)
def test_the_health_check_works(curl: Run, line: str) -> None:
    health = curl(line)
    assert (health["status"], health["worker_id"]) == ("healthy", "local")
    assert isinstance(health["pool_size"], int)


def test_health_counts_the_sessions(curl: Run, session_id: str) -> None:
    before = curl(_HEALTH[0])["active_sessions"]
    made = curl("curl -X POST http://localhost:8000/create_session")
    assert curl(_HEALTH[0])["active_sessions"] == before + 1
    curl(_CLEANUP, your_session_id=made["session_id"])
    assert curl(_HEALTH[0])["active_sessions"] == before


def test_create_session_has_every_field_of_the_reference(curl: Run) -> None:
    made = curl("curl -X POST http://localhost:8000/create_session")
    assert re.fullmatch(r"ses_[0-9a-f]{32}", made["session_id"])
    assert (made["status"], made["user"], made["workspace"]) == ("created", "sandboxuser", "/workspace")
    assert made["worker"].startswith("http://")
    curl(_CLEANUP, your_session_id=made["session_id"])


def test_execute_has_every_field_of_the_reference(curl: Run, session_id: str) -> None:
    body = {"session_id": session_id, "command": "ls -la; id", "timeout": 30}
    done = curl(f"curl -X POST http://localhost:8000/execute -d '{json.dumps(body)}'")
    assert done["exit_code"] == 0
    assert ".." in done["output"]
    assert "uid=1000(sandboxuser)" in done["output"]
    body = {"session_id": session_id, "command": "sleep 600", "timeout": 1}
    late = curl(f"curl -X POST http://localhost:8000/execute -d '{json.dumps(body)}'")
    assert (late["exit_code"] != 0, late["reason"]) == (True, "timeout")


def test_upload_file_has_every_field_of_the_reference(curl: Run, session_id: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_bytes(b"some text\n")
    form = f"-F session_id={session_id} -F file=@{tmp_path}/file.txt"
    uploaded = curl(f"curl -X POST http://localhost:8000/upload_file {form}")
    assert (uploaded["status"], uploaded["filename"]) == ("uploaded", "file.txt")
    assert uploaded["path"] == "/workspace/file.txt"
    body = json.dumps({"session_id": session_id, "command": "cat file.txt; stat -c %U file.txt"})
    assert curl(f"curl http://localhost:8000/execute -d '{body}'")["output"] == "some text\nsandboxuser\n"


# -- the sandbox system with providers

_LIFECYCLE = """\
from orchestrator.lifecycle import Lifecycle

lifecycle = Lifecycle(
    storage_path="./storage",
    runtime_path="./sandbox_runtime",
    e2b_api_key="your_key"
)

session = lifecycle.start(
    agent_config={"type": "code_executor"},
    environment="Python3",
    provider="e2b"
)

result = lifecycle.sandbox_mgr.execute_code(
    session_id=session["session_id"],
    code="print('Hello World')"
)

lifecycle.stop(session["session_id"], session["sandbox_id"])
"""
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

_LOOK = """\
import json
found = [manager.stop_sandbox(session_id) for _ in range(2)]
print(json.dumps([[each["provider"], each["image"]] for each in found]))
"""

_API_CREATE = """\
curl -X POST http://localhost:8000/api/sessions \\
  -d '{"environment": "Python3", "provider": "e2b"}'"""
_API_EXECUTE = """\
curl -X POST http://localhost:8000/api/e2b/execute \\
  -d '{"session_id": "abc-123", "code": "print(42)"}'"""
_API_DESTROY = "curl -X DELETE http://localhost:8000/api/sessions/abc-123?sandbox_id=xyz"


def test_the_lifecycle_works(python: Run) -> None:
    """test_source_orchestrator.py has it with other keys, and without a server."""
    shown = "import json; print(json.dumps([session, result]))"
    # The server has its own key for E2B, and a warning says so.
    session, result = json.loads(python(_LIFECYCLE + shown, "-W", "ignore:e2b_api_key is not used:UserWarning"))
    assert {"session_id", "sandbox_id", "provider", "url"} <= set(session)
    assert (session["provider"], result["stdout"]) == ("e2b", "Hello World\n")


@pytest.mark.extended
@pytest.mark.group("docker")
def test_the_two_lines_about_providers_give_two_sandboxes(
    image_cache: Path, far: ServerProcess, docker_engine: DockerEngine, python: Run
) -> None:
    state = new_state_dir(image_cache)
    docker_engine.import_rootfs(ImageStore(state).rootfs("base").path, "python:latest")
    both = {"WARREN_E2B_API_URL": far.url, "E2B_API_KEY": KEY, "DOCKER_HOST": docker_engine.url}
    with running_server(state, "--pool-size", "0", provider="docker,e2b", WARREN_AUTH="true", **both) as server:
        said = python(_MANAGER + _PROVIDERS + _LOOK, at=server)
    assert json.loads(said) == [["docker", "python:latest"], ["e2b", "python"]]
    shutil.rmtree(state)


@pytest.mark.parametrize("provider", ["e2b", "oci"])
def test_the_requests_of_the_sandbox_system_work(curl: Run, provider: str) -> None:
    """In E2B's cloud, or whatever server takes its place; and on the machine itself."""
    made = curl(_API_CREATE.replace("e2b", provider))
    assert made["session_id"]
    assert (made["provider"], made["environment"]) == (provider, "Python3")
    assert made["url"].endswith(f"/api/sessions/{made['session_id']}")
    done = curl(_API_EXECUTE, abc_123=made["session_id"])
    assert (done["stdout"], done["stderr"], done["results"], done["artifacts"]) == ("42\n", "", [], [])
    ids = {"abc_123": made["session_id"], "xyz": made["sandbox_id"]}
    ended = curl(_API_DESTROY, **ids)
    assert (ended["session_id"], ended["state"]) == (made["session_id"], "ended")
    assert curl(_API_DESTROY, **ids) == ended


def test_the_state_of_a_session_and_its_files_can_be_read(curl: Run, session_id: str) -> None:
    shown = curl(f"curl http://localhost:8000/api/sessions/{session_id}")
    assert (shown["session_id"], shown["state"]) == (session_id, "running")
    assert shown["isolation"]["in_force"]["no_new_privs"]
    body = json.dumps({"session_id": session_id, "path": "notes.json", "content": '{"a": 1}'})
    written = curl(f"curl -X POST http://localhost:8000/api/e2b/files -d '{body}'")
    assert (written["path"], written["size"]) == ("/workspace/notes.json", 8)
    listed = curl(f"curl http://localhost:8000/api/e2b/files/{session_id}")
    assert [entry["path"] for entry in listed["files"]] == ["/workspace/notes.json"]
    assert curl(f"curl http://localhost:8000/api/e2b/files/{session_id}?path=notes.json") == {"a": 1}


def test_code_gives_results_and_artifacts(curl: Run, session_id: str, tmp_path: Path) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nopen('made.csv', 'w').write('1,2')\n6 * 7"
    (tmp_path / "body").write_text(json.dumps({"session_id": session_id, "code": code}))
    done = curl(f"curl -X POST http://localhost:8000/api/e2b/execute -d @{tmp_path}/body")
    assert (done["stdout"], done["stderr"]) == ("out\n", "err\n")
    assert [result["text"] for result in done["results"]] == ["42"]
    assert [artifact["path"] for artifact in done["artifacts"]] == ["/workspace/made.csv"]


# -- the index of the newest version has no block: threads, and when their sessions end


def test_files_of_a_thread_persist_from_one_command_to_the_next(curl: Run) -> None:
    first = curl("""curl http://localhost:8000/execute -d '{"thread_id": "conv-1", "command": "echo kept > note"}'""")
    second = curl("""curl http://localhost:8000/execute -d '{"thread_id": "conv-1", "command": "cat note"}'""")
    other = curl("""curl http://localhost:8000/execute -d '{"thread_id": "conv-2", "command": "ls"}'""")
    assert (second["output"], other["output"]) == ("kept\n", "")
    assert first["session_id"] == second["session_id"] != other["session_id"]
    shown = curl(f"curl http://localhost:8000/api/sessions/{first['session_id']}")
    assert (shown["idle_timeout_s"], shown["max_lifetime_s"]) == (1800, 3600)
    for thread in ("conv-1", "conv-2"):
        curl(f"""curl http://localhost:8000/cleanup -d '{{"thread_id": "{thread}"}}'""")


# -- what is set in files and variables

_CONSTANTS = {
    """\
SESSION_TIMEOUT = timedelta(hours=1)
MEMORY_LIMIT = "512m"
CPU_QUOTA = 50000
CONTAINER_IMAGE = "ubuntu:22.04"
""": {
        "idle_timeout_s": 3600,
        "max_lifetime_s": 3600,
        "memory_mb": 512,
        "cpus": 0.5,
        "container_image": "ubuntu:22.04",
    },
    'CONTAINER_IMAGE = "custom-sandbox:latest"': {"container_image": "custom-sandbox:latest"},
    """\
POOL_SIZE = 5
MIN_POOL_SIZE = 2
MAX_POOL_SIZE = 20
SESSION_TIMEOUT = timedelta(hours=1)
MEMORY_LIMIT = "512m"
CPU_QUOTA = 50000
""": {"pool_size": 5, "pool_min": 2, "pool_max": 20, "idle_timeout_s": 3600, "max_lifetime_s": 3600, "cpus": 0.5},
    'CONTAINER_IMAGE = "sandbox-secure:latest"': {"container_image": "sandbox-secure:latest"},
    "POOL_SIZE = 10": {"pool_size": 10},
    'POOL_SIZE = 20\nMEMORY_LIMIT = "1g"': {"pool_size": 20, "memory_mb": 1024},
}
_EXPORTS = {
    """\
export REDIS_HOST=localhost
export REDIS_PORT=6379
export WORKER_ID=worker1
export POOL_SIZE=5
export PORT=5000
""": {"redis_host": "localhost", "redis_port": 6379, "worker_id": "worker1", "pool_size": 5, "port": 5000},
    """\
export REDIS_HOST=localhost
export REDIS_PORT=6379
export WORKERS=http://w1:5000,http://w2:5000
export PORT=8000
""": {"redis_host": "localhost", "redis_port": 6379, "workers": ("w1:5000", "w2:5000"), "port": 8000},
}


@pytest.mark.parametrize("block", _CONSTANTS)
def test_the_constants_of_the_documents_are_variables_here(block: str) -> None:
    constants: dict[str, Any] = {}
    exec(block, {"timedelta": timedelta}, constants)  # noqa: S102
    shown = {name: str(value.seconds if name == "SESSION_TIMEOUT" else value) for name, value in constants.items()}
    assert_options(shown, _CONSTANTS[block])


@pytest.mark.parametrize("block", _EXPORTS)
def test_the_variables_of_the_documents_are_known(block: str) -> None:
    shown = subprocess.run(["bash", "-c", f"{block}env -0"], env={}, capture_output=True, text=True, check=True).stdout
    assert_options(dict(each.split("=", 1) for each in shown.split("\0") if each), _EXPORTS[block])


def assert_options(environ: dict[str, str], expected: dict[str, Any]) -> None:
    settings = read_settings({**environ, "WARREN_CONFIG": "/dev/null"}, uid=0)
    assert {name: getattr(settings, name) for name in expected} == expected
