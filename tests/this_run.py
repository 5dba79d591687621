"""This run of the tests: a name that everything it starts carries, and a directory that holds everything it makes.

The name is in the environment variable TEST_RUN, which every started process inherits, and in the directory's path. So
what belongs to this run can be told from what another run, or another Warren, has on the same machine. The process that
finds no name in its environment owns the run: it cleans up and looks for leftovers.
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
_WORK_S: Final = 0.1  # what `_work` takes on an ordinary machine
_MAX_SLOWNESS: Final = 6.0  # a test that takes even longer is stuck
_FILES_OF_PYTEST: Final = "p"  # one letter, because sockets live below it and their paths must be short


def join() -> bool:
    """Joins the run that the environment names, or begins one; returns whether this process owns it. Idempotent."""
    owner = not os.environ.get(VARIABLE)
    if owner:
        os.environ[VARIABLE] = f"warren-test-{secrets.token_hex(3)}"
        os.environ[SLOWNESS] = f"{_measured_slowness():.2f}"
    directory().mkdir(mode=0o755, exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(directory())
    return owner


def _measured_slowness() -> float:
    """Returns how slow this machine is, from 1 on: the best of several measurements, because other programs come and
    go."""
    return min(max(1.0, min(_work() for _ in range(5)) / _WORK_S), _MAX_SLOWNESS)


def _work() -> float:
    """Returns the seconds that a fixed piece of work takes."""
    begun = time.perf_counter()
    sum(number * number for number in range(1_000_000))
    return time.perf_counter() - begun


def patience(seconds: float) -> float:
    """Returns how long to wait on this machine for what takes at most `seconds` on an ordinary one."""
    return seconds * float(os.environ.get(SLOWNESS, "1"))


def name() -> str:
    return os.environ[VARIABLE]


def directory() -> Path:
    return Path("/tmp") / name()


def basetemp() -> Path:
    """Returns the directory in which pytest makes each `tmp_path`."""
    return directory() / _FILES_OF_PYTEST


def new_state_dir(image_cache: Path | None = None) -> Path:
    """Makes a state directory, with the kept images if given. Its path is short, because sockets live below it."""
    path = Path(tempfile.mkdtemp(prefix="", dir=directory()))
    if image_cache is not None:
        (path / "images").symlink_to(image_cache / "images")
    return path


def examples(count: int) -> int:
    """Returns how many of `count` examples a costly test of random values tries: all of them with the extended
    tests."""
    return count if EVERYTHING in os.environ else count // 3


def end() -> None:
    """Removes the directory, and the name, so that another run may begin in this process."""
    shutil.rmtree(directory(), ignore_errors=True)
    del os.environ[VARIABLE], os.environ[SLOWNESS], os.environ["TMPDIR"]
    tempfile.tempdir = None
