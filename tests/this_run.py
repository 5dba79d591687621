"""This run of the tests: a name that everything it starts carries, and a directory that holds everything it makes.

The name is in the environment variable TEST_RUN, so that it reaches every process that is started, and it is part of
the directory's path. Hence what belongs to this run can be told from what another run, or another Warren, has on the
same machine. The process that finds no name in its environment owns the run: it cleans up and looks for leftovers.
"""

import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "TEST_RUN"
EVERYTHING: Final = "TEST_EVERYTHING"
"""The environment variable that says that the extended tests run as well."""
SLOWNESS: Final = "TEST_SLOWNESS"
"""The environment variable that says how many times slower this machine is than one that all time-outs suit."""
_WORK_S: Final = 0.1  # what `_work` takes on such a machine
_MOST_SLOWNESS: Final = 6.0  # whatever takes longer than that is stuck
_FILES_OF_PYTEST: Final = "p"  # one letter, because sockets live below it and their paths must be short


def join() -> bool:
    """Joins the run that the environment names, or begins one; true if this process owns it. Idempotent."""
    owner = not os.environ.get(VARIABLE)
    if owner:
        os.environ[VARIABLE] = f"warren-test-{secrets.token_hex(3)}"
        os.environ[SLOWNESS] = f"{_measured_slowness():.2f}"
    directory().mkdir(mode=0o755, exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(directory())
    return owner


def _measured_slowness() -> float:
    """From 1. The best of several measurements: other programs come and go."""
    return min(max(1.0, min(_work() for _ in range(5)) / _WORK_S), _MOST_SLOWNESS)


def _work() -> float:
    """Seconds that a fixed piece of work takes."""
    begun = time.perf_counter()
    sum(number * number for number in range(1_000_000))
    return time.perf_counter() - begun


def patience(seconds: float) -> float:
    """How long to wait, on this machine, for what takes at most `seconds` on an ordinary one."""
    return seconds * float(os.environ.get(SLOWNESS, "1"))


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
    del os.environ[VARIABLE], os.environ[SLOWNESS], os.environ["TMPDIR"]
    tempfile.tempdir = None
