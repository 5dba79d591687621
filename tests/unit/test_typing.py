"""The package has types: what mypy and pyright say about a program that uses the clients, and one that misuses them."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import warren
from warren.sdk import results

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "data" / "typed"
WRONG = {
    number
    for number, line in enumerate((PROGRAMS / "misuses_sdk.py").read_text().splitlines(), 1)
    if line.endswith("# wrong")
}
CHECKERS = {
    "mypy": [
        "--strict",
        "--no-error-summary",
        "--config-file=",
        "--cache-dir={folder}",
        "--python-executable={python}",
    ],
    "pyright": ["--pythonpath={python}"],
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment into which Warren is installed as a package, and what it needs."""
    venv = tmp_path_factory.mktemp("typing") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "warren.pth").write_text(f"{ROOT / 'src'}\n{Path(click.__file__).parents[1]}\n")
    return venv / "bin" / "python"


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.timeout(600)
@pytest.mark.extended
def test_a_checker_finds_what_is_wrong_and_nothing_else(checker: str, python: Path, tmp_path: Path) -> None:
    options = [option.format(python=python, folder=tmp_path) for option in CHECKERS[checker]]
    argv = [sys.executable, "-m", checker, *options, "uses_sdk.py", "misuses_sdk.py"]
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(argv, cwd=PROGRAMS, env=environ, capture_output=True, text=True, check=False)
    found = {(file, int(line)) for file, line in re.findall(r"(\w+\.py):(\d+)(?=:).*error", done.stdout)}
    assert found == {("misuses_sdk.py", line) for line in WRONG}, done.stdout + done.stderr


def public_things() -> list[tuple[str, object]]:
    kinds = [getattr(warren, name) for name in warren.__all__]
    kinds += [kind for kind in vars(results).values() if isinstance(kind, type) and kind.__module__ == results.__name__]
    named = {kind.__name__: kind for kind in kinds}
    methods = {
        f"{kind.__name__}.{name}": inspect.getattr_static(kind, name)
        for kind in kinds
        for name in dir(kind)
        if not name.startswith("_") and getattr(inspect.getattr_static(kind, name), "__module__", "") != "builtins"
    }
    return sorted({**named, **methods}.items())


def test_everything_public_says_what_it_does() -> None:
    kinds = (property, classmethod, staticmethod)
    spoken = [(name, thing) for name, thing in public_things() if isinstance(thing, kinds) or callable(thing)]
    assert [name for name, thing in spoken if not inspect.getdoc(thing)] == []


def test_no_public_method_takes_just_any_keyword() -> None:
    for name, thing in public_things():
        function = thing.__func__ if isinstance(thing, classmethod) else thing
        function = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters.values()
            assert not any(each.kind is each.VAR_KEYWORD and each.annotation is Any for each in parameters), name
