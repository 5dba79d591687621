"""Which directories of sandboxes have lost their maker."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warren.model.spec import SandboxSpec
from warren.sandboxes.host.processes import boot_id, start_time
from warren.sandboxes.host.record import SandboxRecord, find_abandoned, kill_first_process, recording

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


# Prints the pid of the first process of a new pid namespace, and then that of one which has entered it from outside and
# which nobody reaps.
ENTERED = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000000) == 0
for _ in range(2):
    pid = os.fork()
    if not pid:
        time.sleep(1000)
    print(pid, flush=True)
time.sleep(1000)
"""


async def test_a_first_process_that_only_waits_for_others_to_be_reaped_counts_as_dead() -> None:
    outside = await asyncio.create_subprocess_exec(sys.executable, "-c", ENTERED, stdout=subprocess.PIPE)
    try:
        assert outside.stdout is not None
        first, entered = int(await outside.stdout.readline()), int(await outside.stdout.readline())
        record = SandboxRecord("x", boot_id(), "direct", 0, SandboxSpec(), pid=first, start_time=start_time(first) or 0)
        began = time.monotonic()
        await kill_first_process(record)
        assert time.monotonic() - began < 10
        assert start_time(entered) is None
        assert os.path.exists(f"/proc/{entered}")  # a zombie, so the kernel keeps the first process
    finally:
        outside.kill()
        await outside.wait()
