"""A machine that cannot: no permission, a full disk, a missing part. One sentence, the remedy, nothing left behind."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm_parent
from this_run import new_state_dir

import warren

BIN = Path(warren.__file__).parent / "bin"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user can walk to."""
    path = new_state_dir()
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def run(state: Path, *words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the command in a mount namespace of its own, after the shell line `before`."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), "WARREN_STATE_DIR": str(state)}
    command = [sys.executable, "-m", "warren.cli.main", *words]
    if before:
        command = ["unshare", "--mount", "sh", "-ec", f'{before}\nexec "$@"', "sh", *command]
    return warm_parent.run(command, env=environment, capture_output=True, text=True, timeout=120)


WITHOUT_ROOT = """
import asyncio, os, sys
from pathlib import Path
from warren.model.errors import WarrenError
from warren.model.spec import SandboxSpec
from warren.images.store.store import ImageStore
from warren.sandboxes.providers.oci import OciProvider
state, programs = map(Path, sys.argv[1:])
os.setresuid(65534, 65534, 65534)
try:
    asyncio.run(OciProvider(state, ImageStore(state), programs).create(SandboxSpec(image="host")))
except WarrenError as exc:
    print(exc)
"""


def test_without_root_it_says_what_is_missing_and_how_to_get_it(open_folder: Path) -> None:
    argv = [sys.executable, "-c", WITHOUT_ROOT, str(open_folder), str(BIN)]
    outcome = warm_parent.run(argv, capture_output=True, text=True, timeout=60)
    assert "the oci provider needs root" in outcome.stdout, outcome.stderr
    assert "run it with sudo" in outcome.stdout
    assert list(open_folder.iterdir()) == []


@pytest.mark.parametrize("kib", [16, 64, 200])
def test_a_full_disk_is_said_and_nothing_is_left(open_folder: Path, image_cache: Path, kib: int) -> None:
    full = f"mount -t tmpfs -o size={kib}k full {open_folder}; ln -s {image_cache}/images {open_folder}/images"
    outcome = run(open_folder, "run", "--env", "host", "--", "true", before=full)
    assert outcome.returncode == 125, outcome
    assert "space" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_root_filesystem_that_is_none_is_refused(open_folder: Path) -> None:
    (open_folder / "none").mkdir()
    outcome = run(open_folder / "state", "image", "import", str(open_folder / "none"), "--name", "none")
    assert outcome.returncode == 125
    assert "Traceback" not in outcome.stderr
    assert not list((open_folder / "state").glob("images/*"))
