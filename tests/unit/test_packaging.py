"""The package says what it needs, and brings what it needs."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import warren

ROOT = Path(__file__).parents[2]
SOURCES = sorted(Path(warren.__file__).parent.rglob("*.py"))
ATTACKS = sorted((ROOT / "packages/attack").rglob("*.py"))
DISTRIBUTIONS = {
    "agents": "openai-agents",
    "autogen_core": "autogen-core",
    "deepagents_code": "deepagents-code",
    "google": "google-adk",
    "inspect_ai": "inspect-ai",
    "jwt": "pyjwt",
    "langchain_core": "langchain-core",
    "minisweagent": "mini-swe-agent",
    "openhands": "openhands-sdk",
    "opentelemetry": "opentelemetry-sdk",
    "PIL": "pillow",
    "prometheus_client": "prometheus-client",
    "pydantic_ai": "pydantic-ai-slim",
    "pydantic_core": "pydantic-core",
    "python_multipart": "python-multipart",
    "strands": "strands-agents",
    "swerex": "swe-rex",
    "tree_sitter": "tree-sitter",
    "tree_sitter_bash": "tree-sitter-bash",
    "warren_attack": "warren-attack",
    "yaml": "pyyaml",
}


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"warren"}


def test_every_import_is_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = names(project["dependencies"])
    extras = set().union(*(names(extra) for extra in project["optional-dependencies"].values()))
    # What runners import is in the image of a sandbox, or is not needed.
    own = [path for path in SOURCES if "runners" not in path.relative_to(ROOT / "src/warren").parts]
    used = {DISTRIBUTIONS.get(name, name) for path in own for name in imported(path)}
    assert used <= declared | extras


def test_the_client_needs_nothing_of_the_server() -> None:
    """What a user's program imports: the SDK, the vocabulary, and nothing that only a server needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    client = [path for path in SOURCES if {"sdk", "model"} & set(path.relative_to(ROOT / "src/warren").parts)]
    used = {DISTRIBUTIONS.get(name, name) for path in client for name in imported(path)}
    assert used <= names(project["dependencies"])


def test_the_attacks_are_of_the_same_version_and_need_no_package() -> None:
    """They use what is inside Warren where it is installed, and are a program of their own where it is not."""
    project = tomllib.loads((ROOT / "packages/attack/pyproject.toml").read_text())["project"]
    assert (project["version"], project["dependencies"]) == (warren.__version__, [])
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["attack"]
    assert f"warren-attack=={warren.__version__}" in extra


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!\[]", text)[0].strip().lower() for text in requirements}


@pytest.mark.parametrize("path", [*SOURCES, *ATTACKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_say_what_they_are_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_the_command_that_continuous_integration_runs_is_there() -> None:
    for name in (".ci/run", "quickstart.sh", "scripts/system-packages", "scripts/find-python"):
        assert (ROOT / name).stat().st_mode & 0o111, name


def test_the_lock_has_hashes_of_everything_a_server_needs() -> None:
    entries = (ROOT / "requirements.lock").read_text().replace("\\\n", "").splitlines()[1:]
    locked = {entry.partition("==")[0]: entry.partition("==")[2].partition("--hash") for entry in entries}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for text in [*wanted, *project["project"]["optional-dependencies"]["server"]]:
        requirement = Requirement(text)
        version, _, marker = locked[requirement.name][0].partition(";")
        hashes = "".join(locked[requirement.name][1:]).split()
        assert requirement.specifier.contains(version.strip()), f"{text}: run scripts/lock.py"
        assert Requirement(f"x;{marker}" if marker else "x").marker == requirement.marker
        assert all(word.startswith("--hash=sha256:") and len(word) == 78 for word in hashes)
        assert hashes
