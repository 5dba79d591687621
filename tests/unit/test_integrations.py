"""What `warren integrations` says is what is there, and what the tests run."""

import json
import re
import tomllib
from pathlib import Path

from click.testing import CliRunner

from warren.cli.main import cli
from warren.integrations.catalogue import INTEGRATIONS, Integration

ROOT = Path(__file__).parents[2]
ADAPTERS = ROOT / "tests" / "adapters"


def _tested(folder: Path, integration: Integration) -> tuple[str, ...]:
    pin = re.compile(rf"^{re.escape(integration.distribution)}(?:\[\w+\])?==(\S+)", flags=re.M)
    return tuple(pin.search((folder / f"{name}.txt").read_text())[1] for name in ("oldest", "newest"))  # type: ignore[index]


def test_the_releases_are_those_that_are_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    folders = {path.name: path for path in ADAPTERS.iterdir() if (path / "newest.txt").exists()}
    for each in INTEGRATIONS:
        assert any(requirement.startswith(each.distribution) for requirement in extras[each.extra])
        assert (ROOT / "src" / Path(*each.module.split("."))).with_suffix(".py").exists()
        assert (ROOT / "docs" / each.page).exists()
        if each.extra != "langchain":  # tests/frameworks and scripts/old-deepagents
            folder = folders.pop("inspect" if each.extra == "inspect" else each.module.rpartition(".")[2])
            assert _tested(folder, each) == (each.oldest, each.newest)
    assert folders == {}


def test_what_is_installed_is_shown() -> None:
    said = CliRunner().invoke(cli, ["integrations"]).output
    assert re.search(r"^LangGraph, Deep Agents +0\.\S+ +0\.6\.12 to 0\.7 +langchain ", said, flags=re.M)
    assert re.search(r"^agno +- ", said, flags=re.M)
    values = json.loads(CliRunner().invoke(cli, ["integrations", "--json"]).output)
    assert {each["extra"]: each["page"] for each in values}["agno"] == "integrations/agno.md"
