"""`warren config` as it is run, and the flags and the page made from the table of options."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import warm_parent
from click.testing import CliRunner

from warren.config.options import OPTIONS, markdown_rows, serve_options
from warren.config.settings import read_settings

PAGE = Path(__file__).parents[2] / "docs/configuration.md"


def python(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
        "WARREN_CONFIG": "/dev/null",
        **environ,
    }
    command = [sys.executable, "-m", *arguments]
    return warm_parent.run(command, capture_output=True, text=True, env=environment, timeout=60)


def config(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return python("warren.cli.main", "config", *arguments, **environ)


def test_every_option_is_shown_with_its_value_and_its_source() -> None:
    done = config(PORT="9000", WARREN_API_KEY="hunter2", MEMORY_LIMIT="1g", WARREN_ALLOWED_HOSTS="a.example,*.b.org")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["option", "value", "where", "from"]
    assert [row.split()[0] for row in rows] == list(OPTIONS)
    shown = {row.split()[0]: row.split(maxsplit=1)[1].split("  ") for row in rows}
    assert (shown["port"][0], shown["port"][-1].strip()) == ("9000", "environment PORT")
    assert (shown["memory_limit"][0], shown["host"][-1].strip()) == ("1024m", "default")
    assert shown["allowed_hosts"][0] == "a.example,*.b.org"
    assert shown["api_key"][0] == "(set)"
    assert "hunter2" not in done.stdout


def test_the_same_for_programs() -> None:
    done = config("--json", PORT="9000", WARREN_API_KEY="hunter2", MEMORY_LIMIT="1g", WARREN_PROT="1")
    found = json.loads(done.stdout)
    options = found["options"]
    assert list(options) == list(OPTIONS)
    assert options["port"] == {"value": 9000, "source": "environment PORT"}
    assert options["memory_limit"]["value"] == "1024m"
    assert options["api_key"] == {"value": "(set)", "source": "environment WARREN_API_KEY"}
    assert (options["cpus"]["value"], options["allowed_hosts"]["value"]) == (None, [])
    assert "hunter2" not in done.stdout
    assert len(found["warnings"]) == 1
    assert json.loads(config("--json").stdout)["options"]["api_key"]["value"] is None


def test_a_variable_that_is_no_option_is_a_warning() -> None:
    done = config(WARREN_PROT="1")
    assert done.returncode == 0
    assert done.stderr == (
        "warning: the environment variable WARREN_PROT is no option and does nothing; did you mean WARREN_PORT?\n"
    )


def test_the_file_may_be_named_by_a_flag_or_a_variable(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("port = 1111")
    (tmp_path / "b.toml").write_text("port = 2222")
    named = {"WARREN_CONFIG": str(tmp_path / "a.toml")}
    assert f"file {tmp_path}/a.toml" in config(**named).stdout
    assert f"file {tmp_path}/b.toml" in config("--config", str(tmp_path / "b.toml"), **named).stdout


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        ("", {"PORT": "abc"}, "warren: the environment variable PORT is 'abc': a whole number from 1 to 65535 "),
        ("", {"WARREN_PROVIDER": "vm"}, "warren: there is no provider 'vm'"),
        ("", {"POOL_SIZE": "9", "MAX_POOL_SIZE": "3"}, "but pool_max is 3 (environment MAX_POOL_SIZE)"),
        ("prot = 1", {}, "hint: did you mean port?"),
        ("port = 1\nport", {}, "line 2: this is not TOML"),
        ("api_key = 'k'", {}, "hint: chmod 600 "),
        ("port = 'x'", {}, "warren: port in "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_clear_sentence(text: str, environ: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "warren.toml").write_text(text)
    (tmp_path / "warren.toml").chmod(0o644)
    done = config("--config", str(tmp_path / "warren.toml"), **environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_the_table_of_the_documents_can_be_printed() -> None:
    assert python("warren.config.options").stdout.splitlines() == markdown_rows()


def served(*arguments: str) -> tuple[int, dict[str, object], str]:
    found: dict[str, object] = {}

    @click.command()
    @click.option("--reload", is_flag=True)
    @serve_options
    def serve(flags: dict[str, object], reload: bool) -> None:
        """Serve."""
        found.update(flags, reload=reload)

    result = CliRunner().invoke(serve, list(arguments))
    return result.exit_code, found, result.output


def test_serve_gets_one_dict_of_the_flags_that_were_given() -> None:
    assert served()[:2] == (0, {"reload": False})
    code, flags, _ = served("--port", "9000", "--environment", "Node", "--debug", "--config", "/x", "--reload")
    assert code == 0
    assert flags == {"port": "9000", "default_environment": "Node", "debug": "true", "config": "/x", "reload": True}


def test_the_flags_of_serve_become_settings() -> None:
    _, flags, _ = served("--port", "9000", "--environment", "Node", "--debug", "--max-lifetime", "2h")
    flags.pop("reload")
    settings = read_settings({"WARREN_CONFIG": "/dev/null"}, flags=flags)
    assert (settings.port, settings.default_environment, settings.debug) == (9000, "Node", True)
    assert (settings.max_lifetime_s, settings.sources["max_lifetime_s"]) == (7200, "flag --max-lifetime")


def test_the_help_of_serve_shows_every_flag_and_no_secret() -> None:
    _, _, output = served("--help")
    for option in OPTIONS.values():
        assert all(flag in output for flag in option.flag.split("/"))
        assert not (option.secret and option.flag)
    assert "--config" in output


def test_the_page_has_the_table_as_it_is() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert rows == markdown_rows(), "`python -m warren.config.options` prints the table for docs/configuration.md"


def test_the_files_that_the_page_shows_can_be_read(tmp_path: Path) -> None:
    shown = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert shown
    for text in shown:
        (tmp_path / "warren.toml").write_text(text)
        read_settings({}, config_file=tmp_path / "warren.toml")
