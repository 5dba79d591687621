"""The Python programs of the documents that this service was built after, against a real server.

Each program stands here as in its document; packages/compat has the names that they import. Only the server's port is
put in.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from server_process import ServerProcess, running_server
from this_run import new_state_dir

COMPAT = Path(__file__).parents[2] / "packages" / "compat"

# It stands in a drawing, without an import.
_OVERVIEW = """\
from sandbox_client import SandboxClient
client = SandboxClient("http://vps-ip:5000")
client.create_session()
result = client.execute("bash command")
client.cleanup()
"""

_SIMPLE = """\
from sandbox_client import SandboxClient

# Create a sandbox and execute commands
with SandboxClient(server_url="http://localhost:5000") as sandbox:
    result = sandbox.execute("ls -la")
    print(result['output'])
"""

_SECOND = """\
from sandbox_client_v2 import SandboxClient

# Create session and execute commands
with SandboxClient(server_url="http://localhost:8000") as sandbox:
    # Verify non-root
    result = sandbox.execute("whoami")
    print(f"User: {result['output']}")  # sandboxuser
    
    # Run commands
    result = sandbox.execute("python3 -c 'print(2+2)'")
    print(result['output'])  # 4
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

# It has no import of its own in its document: it goes on from the one before it.
_UPLOAD = """\
from sandbox_client_v2 import SandboxClient
with SandboxClient() as sandbox:
    # Upload a file
    sandbox.upload_file("local_script.py", "script.py")
    
    # Execute it
    result = sandbox.execute("python3 script.py")
    print(result['output'])
"""

_SIMPLE_GRAPH = """\
from langgraph.graph import StateGraph
from sandbox_client import SandboxClient

def bash_node(state):
    with SandboxClient() as sandbox:
        result = sandbox.execute(state['command'])
        return {'output': result['output']}

# Build your graph...
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

# Build your graph...
workflow = StateGraph(...)
workflow.add_node("execute", execute_code_node)
"""

# What the documents leave to their readers: the rest of the graph, and a run of it.
_SIMPLE_REST = """\
workflow = StateGraph(dict)
workflow.add_node("execute", bash_node)
"""
_RUN = """\
workflow.set_entry_point("execute")
workflow.set_finish_point("execute")
print(workflow.compile().invoke({state!r}))
"""


@pytest.fixture(scope="module")
def server(image_cache: Path) -> Iterator[ServerProcess]:
    path = new_state_dir(image_cache)
    with running_server(path, "--pool-size", "2") as server:
        yield server
    left = list((path / "sandboxes").glob("*"))
    shutil.rmtree(path)
    assert left == []


def run(program: str, server: ServerProcess, folder: Path) -> str:
    program = re.sub(r"http://(localhost|vps-ip):\d+", server.url, program)
    # The three dots where the state's type belongs stand in a document: LangGraph takes them, and says so.
    warnings = ["-W", "error", "-W", "ignore:Invalid state_schema:UserWarning"]
    return run_python(["-X", "dev", *warnings, "-c", program], server, folder)


def run_python(arguments: Sequence[str], server: ServerProcess, folder: Path) -> str:
    path = [str(COMPAT), *sys.path]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(path), "WARREN_URL": server.url}
    argv = [sys.executable, *arguments]
    outcome = subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return outcome.stdout


def test_the_program_of_the_overview_works(server: ServerProcess, tmp_path: Path) -> None:
    assert run(_OVERVIEW + "print(result['exit_code']); client.close()", server, tmp_path) == "127\n"


def test_the_program_of_the_simple_server_works(server: ServerProcess, tmp_path: Path) -> None:
    assert run(_SIMPLE, server, tmp_path).startswith("total ")


def test_the_program_of_the_second_version_works(server: ServerProcess, tmp_path: Path) -> None:
    assert run(_SECOND, server, tmp_path) == "User: sandboxuser\n\n4\n\n"


def test_the_batch_works(server: ServerProcess, tmp_path: Path) -> None:
    first, version, listing = run(_BATCH, server, tmp_path).split("\n\n", 2)
    assert first == "Step 1"
    assert version.startswith("Python 3")
    assert listing.startswith("total ")


def test_the_upload_works(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "local_script.py").write_text("print('from the script')\n")
    assert run(_UPLOAD, server, tmp_path) == "from the script\n\n"


def test_the_graphs_work(server: ServerProcess, tmp_path: Path) -> None:
    simple = _SIMPLE_GRAPH + _SIMPLE_REST + _RUN.format(state={"command": "echo from the graph"})
    assert run(simple, server, tmp_path) == "{'output': 'from the graph\\n'}\n"
    second = _SECOND_GRAPH + _RUN.format(state={"code": "echo from the graph; exit 3"})
    assert run(second, server, tmp_path) == "{'output': 'from the graph\\n', 'exit_code': 3}\n"


def test_the_client_tests_the_server(server: ServerProcess, tmp_path: Path) -> None:
    assert " ok, 0 failed, " in run_python(["-m", "sandbox_client_v2", "--test"], server, tmp_path)
