"""quickstart.sh fetches the packages of the lock with word of how far it is, and none of them twice."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COUNT = 6

pytestmark = pytest.mark.extended  # pip needs a second for each start


def make_wheel(folder: Path, name: str) -> str:
    """Returns the lock's entry for it."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name}==1.0 \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


class Index:
    """A folder that is all that pip finds packages in."""

    def __init__(self, folder: Path) -> None:
        self.files, self.fetched, self.lock = folder / "index", folder / "wheels", folder / "lock"
        self.files.mkdir()
        self.entries = [make_wheel(self.files, f"package{number}") for number in range(COUNT)]
        self.lock.write_text("# Written by a test.\n" + "".join(self.entries))

    def fetch(self) -> subprocess.CompletedProcess[str]:
        own = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.files), "PIP_CONFIG_FILE": "/dev/null"}
        argv = [sys.executable, str(ROOT / "scripts/fetch_wheels.py"), str(self.lock), str(self.fetched)]
        return subprocess.run(argv, env={**os.environ, **own}, capture_output=True, text=True, timeout=100)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


def test_it_says_how_far_it_is_and_fetches_nothing_twice(index: Index) -> None:
    first = index.fetch()
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines() == [
        "      0 of 6 packages are here; next: package0, package1, package2, package3, package4",
        "      5 of 6 packages are here; next: package5",
    ]
    assert len(list(index.fetched.iterdir())) == COUNT
    for path in index.files.iterdir():
        path.unlink()
    again = index.fetch()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_what_came_before_a_file_that_is_missing_stays(index: Index) -> None:
    (index.files / "package5-1.0-py3-none-any.whl").unlink()
    done = index.fetch()
    assert (done.returncode, "package5" in done.stderr) == (1, True)
    assert len(list(index.fetched.iterdir())) == 5


def test_a_file_with_another_hash_is_told_apart(index: Index) -> None:
    with zipfile.ZipFile(index.files / "package5-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("more.py", "")
    done = index.fetch()
    assert (done.returncode, "DO NOT MATCH THE HASHES" in done.stderr) == (3, True)
    assert not list(index.fetched.glob("package5*"))
