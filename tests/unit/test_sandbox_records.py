"""Which directories of sandboxes have lost their maker."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from warren.model.spec import SandboxSpec
from warren.sandboxes.host.processes import boot_id
from warren.sandboxes.host.record import SandboxRecord, find_abandoned, recording

pytestmark = pytest.mark.anyio
KILLED = """
import os, sys
from pathlib import Path
from warren.sandboxes.host.record import recording

folder = Path(sys.argv[1])
with recording(folder):
    (folder / "left").mkdir()
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "sandboxes"
    path.mkdir()
    return path


def record_in(directory: Path, **changes: int) -> None:
    SandboxRecord(directory.name, boot_id(), "direct", 0, SandboxSpec(), **changes).save(directory)


async def test_a_directory_without_a_record_is_left_to_its_maker_and_abandoned_after_its_death(folder: Path) -> None:
    argv = [sys.executable, "-c", KILLED, str(folder)]
    env = {"PYTHONPATH": ":".join(sys.path)}
    killed = await asyncio.to_thread(subprocess.run, argv, env=env, check=False)
    assert killed.returncode == -signal.SIGKILL
    with recording(folder):
        (folder / "new").mkdir()
        assert await find_abandoned(folder, ["left", "new"]) == []
        record_in(folder / "new")
    assert await find_abandoned(folder, ["left", "new"]) == ["left"]


async def test_several_make_directories_at_once(folder: Path) -> None:
    with recording(folder), recording(folder):
        pass
    (folder / "left").mkdir()
    assert await find_abandoned(folder, ["left"]) == ["left"]


async def test_a_record_says_whether_its_maker_is_dead(folder: Path) -> None:
    for name, changes in (
        ("mine", {}),
        ("dead", {"maker_start_time": 1}),
        ("started", {"maker_start_time": 1, "pid": 1}),
    ):
        (folder / name).mkdir()
        record_in(folder / name, **changes)
    with recording(folder):
        assert await find_abandoned(folder, ["mine", "dead", "started", "gone"]) == ["dead"]
