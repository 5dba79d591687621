"""Without the packages of its extra an integration says which one is missing, and how to get it."""

import subprocess
import sys
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("deepagents", "deepagents", "langchain"),
        ("langgraph_tools", "langchain", "langchain"),
        ("middleware", "langchain", "langchain"),
        ("threads", "langgraph", "langchain"),
        ("mcp.sdk_adapter", "mcp", "mcp"),
    ],
)
def test_an_import_without_its_packages_names_the_remedy(module: str, package: str, extra: str) -> None:
    # -S: without the directory that packages are installed in.
    program = f"try:\n import warren.integrations.{module}\nexcept ImportError as exc:\n print(exc)"
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, env={"PYTHONPATH": str(_SOURCE)}, capture_output=True, text=True, timeout=60)
    assert done.stdout == (
        f"warren.integrations.{module} needs the package {package}, which is not installed: "
        f"pip install 'warren-sandbox[{extra}]'\n"
    ), done.stderr
