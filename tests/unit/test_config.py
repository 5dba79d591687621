"""Settings: where they come from and what they refuse."""

import ast
from pathlib import Path

import pytest

import warren
from warren import config
from warren.config import read_settings
from warren.model.errors import InvalidRequest

SOURCES = sorted(Path(warren.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize(
    ("environ", "uid", "state_dir"),
    [
        ({}, 0, "/var/lib/warren"),
        ({"WARREN_STATE_DIR": "/x"}, 0, "/x"),
        ({"HOME": "/home/a"}, 1000, "/home/a/.local/state/warren"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/s"}, 1000, "/s/warren"),
        ({"WARREN_STATE_DIR": "/x", "XDG_STATE_HOME": "/s"}, 1000, "/x"),
        ({"WARREN_STATE_DIR": ""}, 0, "/var/lib/warren"),
    ],
)
def test_the_state_directory(environ: dict[str, str], uid: int, state_dir: str) -> None:
    assert str(read_settings(environ, uid=uid).state_dir) == state_dir


def test_a_relative_state_directory_is_made_absolute() -> None:
    assert read_settings({"WARREN_STATE_DIR": "x"}).state_dir == Path.cwd() / "x"


def test_defaults() -> None:
    settings = read_settings({})
    assert (settings.provider, settings.runtime, settings.docker_url, settings.debug) == ("oci", "", "", False)
    assert settings.bin_dir == Path(config.__file__).parent / "bin"


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="there is no provider 'vm'"):
        read_settings({"WARREN_PROVIDER": "vm"})


def test_every_variable_is_in_the_table() -> None:
    names = [
        node.value
        for node in ast.walk(ast.parse(Path(config.__file__).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("WARREN_")
    ]
    for name in names:
        assert name.split()[0] in (config.__doc__ or ""), name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_only_config_reads_the_environment(path: Path) -> None:
    # The attacks look for leaks of an environment, and so have to lay one out and to search one.
    if path.name != "config.py" and "attack" not in path.parts:
        assert "os.environ" not in path.read_text()
        assert "getenv" not in path.read_text()
