"""Every command that README and docs show is run, as it stands there. One that this file does not know fails."""

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# `make test` cannot run in itself, and what leads to it is run by it: these are looked up in the Makefile.
GOALS = ("make test", "make check", "make setup")


def commands(page: Path) -> list[str]:
    """Lines of code blocks, fenced or indented, without their comments. Files of options (toml) are no commands."""
    text = re.sub(r"^```toml\n.*?^```", "", page.read_text(), flags=re.M | re.S)
    text = re.sub(
        r"^```\w*\n(.*?)^```", lambda block: re.sub("^", "    ", block[1], flags=re.M), text, flags=re.M | re.S
    )
    lines = re.findall(r"^(?: {4}|\t)(\S.*)$", text, flags=re.M)
    found = [re.sub(r"\s+#.*$", "", line).strip() for line in lines]
    return [line for line in found if line]


SHOWN = [(page, line) for page in PAGES for line in commands(page)]


@pytest.fixture(scope="module")
def environment(state_dir: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), "WARREN_STATE_DIR": str(state_dir)}


def test_the_two_commands_are_shown() -> None:
    assert {"./quickstart.sh", "make test"} <= {line for page, line in SHOWN if page.name == "README.md"}


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=[f"{page.name}: {line}" for page, line in SHOWN])
def test_a_shown_command_works(page: Path, line: str, environment: dict[str, str]) -> None:
    if line.startswith(GOALS):
        goal = line.split()[1]
        assert re.search(rf"^{goal}:", (ROOT / "Makefile").read_text(), flags=re.M)
        return
    if line == "./quickstart.sh":
        plain = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
        outcome = subprocess.run([line], cwd=ROOT, env=plain, capture_output=True, text=True, timeout=300)
        assert outcome.returncode == 0, outcome.stderr
        assert "Hello from sandbox: sandboxuser in /workspace" in outcome.stdout
        return
    words = shlex.split(line)
    assert words[:2] == ["sudo", ".venv/bin/warren"], f"{page.name} shows a command that nothing here can run: {line}"
    code, said = in_a_terminal([sys.executable, "-m", "warren.cli.main", *words[2:]], environment)
    assert code == 0, said


def in_a_terminal(argv: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Runs it as a person would, who types `exit` if asked for something."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"})
    os.close(theirs)
    os.write(ours, b"exit\n")
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    return process.wait(timeout=60), said.decode(errors="replace")
