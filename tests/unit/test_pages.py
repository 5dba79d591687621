"""Links in the documentation lead somewhere, and options of commands exist; docs/architecture.md agrees with the code
about folders and states, and docs/trust-boundaries.md about layers, probes, tests and known holes of runtimes."""

import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from warren.cli.main import cli
from warren.doctor.parts import known_holes
from warren.model.session import STATES, SessionState, StateRules
from warren.model.spec import Layer
from warren_attack.warren.suite import PROBES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TRUST = (ROOT / "docs" / "trust-boundaries.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS: list[dict[str, Any]] = PROJECT["tool"]["importlinter"]["contracts"]
LAYERS = [layer.split(" | ") for layer in CONTRACTS[0]["layers"]]


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]


def anchors(page: Path) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def test_the_pages_become_a_site(tmp_path: Path) -> None:
    """mkdocs warns of a page that no menu leads to, and of a link that leads nowhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "tutorial.html").exists()


def test_the_page_about_the_command_line_begins_with_every_command() -> None:
    opening = (ROOT / "docs" / "cli.md").read_text().split("\n\n")[1]
    named = set(re.findall(r"`([a-z-]+)`", opening)) - {"warren"}
    assert named == set(cli.list_commands(click.Context(cli)))


def table_under(heading: str, page: str = PAGE) -> list[list[str]]:
    """The first table of a chapter, without its head."""
    chapter = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in chapter.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def layers_from(name: str) -> set[str]:
    (start,) = [number for number, layer in enumerate(LAYERS) if name in layer]
    return {each for layer in LAYERS[start:] for each in layer}


def may_import(folder: str) -> set[str]:
    """What the contracts allow."""
    allowed = layers_from(folder) - next(set(layer) for layer in LAYERS if folder in layer)
    for contract in CONTRACTS[1:]:
        if f"warren.{folder}" in contract.get("source_modules", ()):
            allowed -= {name.removeprefix("warren.") for name in contract["forbidden_modules"]}
    return allowed


def test_every_folder_is_in_the_table_with_its_layer() -> None:
    shown = [names_in(row[0]) for row in table_under("Folders")]
    assert shown == LAYERS
    source = ROOT / "src" / "warren"
    folders = {path.parent.name for path in source.glob("*/__init__.py")}
    modules = {path.stem for path in source.glob("*.py")} - {"__init__"}
    assert {name for row in shown for name in row} == folders | modules


def test_the_table_says_what_a_folder_may_import() -> None:
    for folders, job, imports in table_under("Folders"):
        assert job
        named = names_in(imports)
        shown = layers_from(named[0]) if imports.endswith("and below") else set(named)
        for folder in names_in(folders):
            assert shown == may_import(folder), folder


def test_the_table_of_states_is_that_of_the_model() -> None:
    rules = [each.name for each in fields(StateRules) if each.name != "next"]
    assert names_in(PAGE.split("| state |")[1].splitlines()[0]) == rules
    shown = {names_in(row[0])[0]: [cell == "yes" for cell in row[1:]] for row in table_under("The life of a session")}
    assert shown == {state: [getattr(STATES[state], rule) for rule in rules] for state in SessionState}


def test_the_picture_of_a_session_has_every_move() -> None:
    chapter = PAGE.split("\n## The life of a session\n")[1].split("\n## ")[0]
    shown = set(re.findall(r"^    (\w+) --> (\w+):", chapter, flags=re.M))
    assert shown == {(state, after) for state in SessionState for after in STATES[state].next if after != state}


def test_every_file_that_is_named_is_there() -> None:
    for name in re.findall(r"\b(\w+/[\w/]+\.py)\b", PAGE):
        assert (ROOT / "src" / "warren" / name).exists(), name


def test_what_stands_for_an_advisory_or_a_boundary_is_there() -> None:
    known = {layer.value for layer in Layer} | {probe.id for probe in PROBES}
    advisories = table_under("Advisories of runc and crun", TRUST)
    assert len(advisories) > 15
    for advisory, *_, evidence in advisories:
        named = re.findall(r"`([^`]+)`", evidence)
        assert named, advisory
        assert {name for name in named if "/" not in name} <= known, advisory
    for name in re.findall(r"`((?:tests|src)/[^`]+)`", TRUST):
        assert (ROOT / name).exists(), name
    groups = {str(probe.group) for probe in PROBES}
    assert set(re.findall(r"group `([^`]+)`", TRUST)) <= groups


def test_every_hole_that_the_doctor_knows_is_among_the_advisories() -> None:
    told = " ".join(check.found for check in known_holes("runc", "1.0.0"))
    holes = re.findall(r"CVE-\d+-\d+", told)
    assert holes
    assert set(holes) <= set(re.findall(r"CVE-\d+-\d+", TRUST))


_COMMAND = re.compile(r"`(?:sudo )?(?:\.venv/bin/)?warren ([^`]+)`")


def unknown_options(text: str) -> list[str]:
    """Returns the options that a command, such as "keys create NAME --scopes read", does not have."""
    words, command = text.split(), cli
    while (
        isinstance(command, click.Group) and words and (below := command.get_command(click.Context(command), words[0]))
    ):
        command, words = below, words[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    own = words[: words.index("--")] if "--" in words else words
    return [match[0] for word in own if (match := re.match("--[a-z0-9-]+", word)) and match[0] not in known]


def test_options_that_pages_and_messages_name_exist() -> None:
    assert unknown_options("keys create NAME --scope read --expires 1d -- --other") == ["--scope"]
    texts = [*PAGES, *(ROOT / "src" / "warren").rglob("*.py")]
    found = {f"{file.name}: warren {match[1]}" for file in texts for match in _COMMAND.finditer(file.read_text())
             if unknown_options(match[1])}  # fmt: skip
    assert found == set()
