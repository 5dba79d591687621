"""This run of the tests: a name that everything it starts carries, and a directory that holds everything it makes.

The name is in the environment variable TEST_RUN, so that it reaches every process that is started, and it is part of
the directory's path. Hence what belongs to this run can be told from what another run, or another Warren, has on the
same machine. The process that finds no name in its environment owns the run: it cleans up and looks for leftovers.
"""

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final

VARIABLE: Final = "TEST_RUN"
EVERYTHING: Final = "TEST_EVERYTHING"
"""The environment variable that says that the extended tests run as well."""
_FILES_OF_PYTEST: Final = "p"  # one letter, because sockets live below it and their paths must be short


def join() -> bool:
    """Joins the run that the environment names, or begins one; true if this process owns it. Idempotent."""
    owner = not os.environ.get(VARIABLE)
    if owner:
        os.environ[VARIABLE] = f"warren-test-{secrets.token_hex(3)}"
    directory().mkdir(mode=0o755, exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(directory())
    return owner


def name() -> str:
    return os.environ[VARIABLE]


def directory() -> Path:
    return Path("/tmp") / name()


def basetemp() -> Path:
    """Where pytest makes what `tmp_path` gives."""
    return directory() / _FILES_OF_PYTEST


def new_state_dir(image_cache: Path | None = None) -> Path:
    """A new state directory, with the kept images if they are named. Its path is short: sockets live below it."""
    path = Path(tempfile.mkdtemp(prefix="", dir=directory()))
    if image_cache is not None:
        (path / "images").symlink_to(image_cache / "images")
    return path


def examples(count: int) -> int:
    """How many examples of so many a costly test of random values tries: all of them with the extended tests."""
    return count if EVERYTHING in os.environ else count // 3


def end() -> None:
    """Removes the directory, and the name, so that another run may begin in this process."""
    shutil.rmtree(directory(), ignore_errors=True)
    del os.environ[VARIABLE], os.environ["TMPDIR"]
    tempfile.tempdir = None
