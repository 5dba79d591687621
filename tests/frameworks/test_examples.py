"""Every example runs as a user would run it, with its script in place of a model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from marks import first_of
from server_process import free_port

_EXAMPLES = Path(__file__).parents[2] / "examples"
_SAYS = {
    "langgraph_agent.py": "/workspace/primes\n10\n",
    "deep_agent.py": "/workspace/notes/plan.md",
    "batch_analysis.py": "north: 330 in all, most in month 2\nsouth: 120 in all, most in month 3\nwest: 21",
    "coding_agent.py": "tests pass",
    "rollouts.py": "[('right', 8), ('too slow', 4), ('wrong', 8)]",
    "data_analysis.py": "in all: 490\na chart of 4 months is in sales.svg\n",
}


def test_no_example_is_left_out() -> None:
    assert {path.name for path in _EXAMPLES.glob("*.py")} == {*_SAYS, "example_run.py", "model_choice.py"}


@pytest.mark.parametrize("name", first_of(_SAYS))
def test_an_example_runs_offline(name: str, url: str) -> None:
    environ = {**os.environ, "WARREN_URL": url, "WARREN_API_KEY": "", "MODEL": ""}
    argv = [sys.executable, str(_EXAMPLES / name)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert _SAYS[name] in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", first_of(_SAYS))
def test_an_example_without_a_server_says_so_in_one_sentence(name: str) -> None:
    environ = {**os.environ, "WARREN_URL": f"http://127.0.0.1:{free_port()}", "WARREN_API_KEY": "", "MODEL": ""}
    argv = [sys.executable, str(_EXAMPLES / name)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("The example needs a Warren server: the server at http://127.0.0.1:")
    assert "warren serve" in done.stderr
