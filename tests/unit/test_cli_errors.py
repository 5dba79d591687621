"""The command line: every mistake is one sentence, a hint and the right exit code; never a stack trace."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import warm_parent

from warren.cli.main import cli
from warren.cli.output import printable


def warren(*arguments: str, state: Path, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
        "WARREN_STATE_DIR": str(state),
        **environ,
    }
    command = [sys.executable, "-m", "warren.cli.main", *arguments]
    done = warm_parent.run(command, input=stdin, capture_output=True, env=environment, timeout=60)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["xyzzy"], 2, "No such command 'xyzzy'. `warren --help` lists them."),
        (["exce"], 2, "No such command 'exce'. Did you mean exec?"),
        (["sp"], 2, "No such command 'sp'. Did you mean ps?"),
        (["env"], 2, "No such command 'env'. Did you mean environments?"),
        (["keys", "rotaet"], 2, "No such command 'rotaet'. Did you mean rotate?"),
        (["keys", "xyzzy"], 2, "No such command 'xyzzy'. `warren keys --help` lists them."),
        (["ps", "--url", "http://no.invalid"], 125, "hint: check the name in its address"),
        (["run"], 2, "Missing argument"),
        (["run", "--nope", "--", "true"], 2, "No such option"),
        (["run", "--timeout", "x", "--", "true"], 2, "not a valid float"),
        (["run", "-e", "NAME", "--", "true"], 2, "expected K=V"),
        (["shell"], 2, "needs a terminal"),
        (["run", "--env", "nope", "--", "true"], 125, "there are: base, code-interpreter, e2b"),
        (["run", "--image", "nope", "--", "true"], 125, "there is no image 'nope'"),
        (["run", "--image", "../x", "--", "true"], 125, "is not an image name"),
        (["run", "--provider", "vm", "--", "true"], 125, "there is no provider 'vm'"),
        (["run", "--memory", "3", "--", "true"], 125, "memory_mb is 3"),
        (["run", "--cpus", "0", "--", "true"], 125, "cpus is 0"),
        (["run", "--timeout", "-1", "--", "true"], 125, "time-out of -1.0 s cannot be"),
        (["run", "-e", "A B=1", "--", "true"], 125, "not a name for an environment variable"),
        (["run", "--require", "nope", "--", "true"], 125, "there is no layer 'nope'"),
        (["run", "--", ""], 125, "is empty"),
        (["image", "build", "nope"], 125, "no recipe for an image 'nope'"),
        (["image", "pull", "localhost:1/x", "--name", "environment/x"], 125, "are those of environments"),
        (["image", "remove", "nope"], 125, "there is no image 'nope'"),
        (["image", "import", "/nope.tar"], 125, "there is no file or directory"),
        (["image", "import", "-"], 2, "needs a --name"),
        (["image", "import", "-", "--name", "x"], 125, "not a tar archive"),
        (["image", "import", "/etc"], 125, "is not a root filesystem"),
        (["image", "import", "docker:x"], 125, "Docker engine"),
    ],
)
def test_a_mistake_is_one_clear_sentence(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    done = warren(*arguments, state=tmp_path, DOCKER_HOST=f"unix://{tmp_path}/no.sock")
    assert message in done.stderr
    assert done.returncode == code
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "images").exists() or os.listdir(tmp_path / "images") == []


def commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*words, name))


def test_every_help_text_fits_into_a_terminal_and_has_an_example() -> None:
    """No summary is cut off, every command has an example, and every option says what it takes."""
    for words, command in commands(cli, ("warren",)):
        shown = command.get_help(click.Context(command, info_name=" ".join(words), terminal_width=80))
        assert not re.search(r"\w\.\.\.$", shown.partition("\n")[2], re.MULTILINE), shown
        assert not re.search(r"--\S+ (INTEGER|FLOAT|DURATION)", shown), shown
        has_options_only = words[1:] in {(), ("serve",), ("cluster",), ("service",)}
        assert has_options_only or "Example: " in shown, shown


def test_a_setting_that_cannot_be_is_said() -> None:
    done = warren("run", "--", "true", state=Path("/x"), WARREN_PROVIDER="vm")
    assert (done.returncode, done.stderr.splitlines()[0]) == (125, "warren: there is no provider 'vm'")


def test_a_state_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = warren("image", "build", "host", state=tmp_path / "file")
    assert done.returncode == 125
    assert "Traceback" not in done.stderr


def test_lists_are_there_for_programs(tmp_path: Path) -> None:
    assert json.loads(warren("image", "list", "--json", state=tmp_path).stdout) == []
    assert warren("image", "build", "host", state=tmp_path).returncode == 0
    (found,) = json.loads(warren("image", "list", "--json", state=tmp_path).stdout)
    assert (found["name"], found["host_usr"]) == ("host", True)
    assert found["version"] in warren("image", "build", "host", "--if-missing", state=tmp_path).stderr
    assert json.loads(warren("image", "list", "--json", state=tmp_path).stdout) == [found]


def test_help_and_version(tmp_path: Path) -> None:
    assert warren("--version", state=tmp_path).stdout.startswith("warren ")
    assert "run" in warren("--help", state=tmp_path).stdout


def test_the_command_line_imports_little(tmp_path: Path) -> None:
    code = "import sys, warren.cli.main; print([m for m in sys.modules if m in ('aiodocker', 'asyncio', 'yaml')])"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_a_state_directory_that_cannot_be_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "server.lock").mkdir(parents=True)
    for state in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "taken"):
        done = warren("serve", "--provider", "fake", "--port", "1", state=state)
        assert done.returncode == 125
        assert f"the state directory {state} cannot be used" in done.stderr
        assert "--state-dir" in done.stderr


def test_what_is_in_a_sandbox_does_not_move_the_cursor() -> None:
    assert printable("a\x1b[2J\x9b1m\tb\r\n\udcff", keep="\t") == "a?[2J?1m\tb???"


def test_an_environment_whose_image_nothing_makes_is_told_what_can(tmp_path: Path) -> None:
    (tmp_path / "registry" / "environments").mkdir(parents=True)
    (tmp_path / "registry" / "environments" / "odd.yaml").write_text("name: odd\nimage: nosuchimage\n")
    done = warren("environments", "build", "odd", state=tmp_path, WARREN_REGISTRY_DIR=str(tmp_path / "registry"))
    assert done.returncode == 125
    assert "Warren has no recipe for an image 'nosuchimage'" in done.stderr
    assert "an environment's file may say how its image is made" in done.stderr
    assert "--python" not in done.stderr


@pytest.mark.parametrize("words", ["warren run -E code", "warren environments build code"])
def test_environments_of_this_machine_are_completed(words: str, tmp_path: Path) -> None:
    asked = {"_WARREN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"}
    assert warren(state=tmp_path, **asked).stdout == "plain,code-interpreter\n"
