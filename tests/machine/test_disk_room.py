"""Sandboxes whose disks together promise more than the host's file system has: nobody loses what was written."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from this_run import new_state_dir

import warren
from warren.images.store.store import ImageStore
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import MachineFull, SandboxLost
from warren.model.operations import Command
from warren.model.spec import MIB, Limits, SandboxSpec
from warren.sandboxes.host.disks import TEMPLATES
from warren.sandboxes.providers.host_limits import HostRoom
from warren.sandboxes.providers.oci import OciProvider

pytestmark = pytest.mark.anyio

BIN = Path(warren.__file__).parent / "bin"
HOST_MB, RESERVE_MB = 1536, 192
SPEC = SandboxSpec(limits=Limits(disk_mb=1024, memory_mb=256, cpus=1))
NEIGHBOURS_FILE = "head -c 48000000 /dev/urandom > /workspace/mine; sha256sum < /workspace/mine"
# What is read again comes from the disk, not from memory.
READ_AGAIN = """sync /workspace/mine; dd if=/workspace/mine iflag=nocache count=0 2>/dev/null
sha256sum < /workspace/mine"""
FILL = "head -c 2000000000 /dev/zero | tr '\\0' x > /workspace/hog; du -m /workspace/hog | cut -f1"
ALLOCATE_AND_FILL = """python3 -c '
import os
fd = os.open("/workspace/hog", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fd, 0, 940 << 20)
for _ in range(940):
    os.write(fd, b"x" * (1 << 20))
    os.fdatasync(fd)
'"""


@pytest.fixture
def small_state(image_cache: Path) -> Iterator[Path]:
    """A state directory on a file system of its own."""
    path = new_state_dir(image_cache)
    image = path.with_suffix(".img")
    with image.open("xb") as file:
        file.truncate(HOST_MB * MIB)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, path], check=True)
    (path / "images").symlink_to(image_cache / "images")
    yield path
    subprocess.run(["umount", path], check=True)
    shutil.rmtree(path)
    image.unlink()


@pytest.fixture
async def provider(small_state: Path) -> AsyncIterator[OciProvider]:
    provider = OciProvider(small_state, ImageStore(small_state), BIN, room=HostRoom(RESERVE_MB, 4))
    yield provider
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()


def free_mb(path: Path) -> int:
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize // MIB


async def say(box: Sandbox, shell: str) -> str:
    result = await box.exec(Command(shell=shell, timeout_s=100))
    return result.stdout.strip()


@pytest.mark.parametrize("writable_root", [False, True])
@pytest.mark.extended
async def test_writers_get_no_space_before_the_host_is_full(
    provider: OciProvider, small_state: Path, writable_root: bool
) -> None:
    neighbour, *hogs = [await provider.create(replace(SPEC, writable_root=writable_root)) for _ in range(4)]
    written = await say(neighbour, NEIGHBOURS_FILE)
    sizes = [int(text) for text in await asyncio.gather(*(say(hog, FILL) for hog in hogs))]
    assert sum(sizes) > HOST_MB // 3
    assert max(sizes) < 2000
    await asyncio.sleep(1)
    assert free_mb(small_state) > RESERVE_MB // 3
    # The neighbour, who holds less than the others, can still write, and has lost nothing.
    assert await say(neighbour, "dd if=/dev/urandom of=/workspace/more bs=1M count=8 conv=fsync; echo $?") == "0"
    assert await say(neighbour, READ_AGAIN) == written
    await provider.destroy(hogs[0].id)
    await provider.destroy(hogs[1].id)
    await asyncio.sleep(2)
    assert await say(hogs[2], "head -c 30000000 /dev/zero > /workspace/again; echo $?") == "0"


@pytest.mark.parametrize("restarted", [False, True])
async def test_space_allocated_beyond_what_there_is_ends_its_sandbox(
    provider: OciProvider, small_state: Path, restarted: bool
) -> None:
    neighbour, *hogs = [await provider.create(SPEC) for _ in range(4)]
    if restarted:  # what the images hold is found again
        await provider.close()
        neighbour, *hogs = [await provider.adopt(box.id) for box in (neighbour, *hogs)]
    written = await say(neighbour, NEIGHBOURS_FILE)
    await asyncio.gather(*(say(hog, ALLOCATE_AND_FILL) for hog in hogs), return_exceptions=True)
    lost = await losses(hogs)
    assert 0 < len(lost) < len(hogs)
    assert "more disk space than the machine has" in lost[0].message
    assert free_mb(small_state) > RESERVE_MB // 3
    assert await say(neighbour, READ_AGAIN) == written


async def losses(boxes: Sequence[Sandbox]) -> list[SandboxLost]:
    """Of those that were ended. Their programs may have finished before the watch looked again."""
    for _ in range(50):
        outcomes = await asyncio.gather(*(box.ping() for box in boxes), return_exceptions=True)
        if lost := [outcome for outcome in outcomes if isinstance(outcome, SandboxLost)]:
            return lost
        await asyncio.sleep(0.2)
    return []


async def test_no_more_is_promised_than_the_factor_allows(small_state: Path) -> None:
    provider = OciProvider(small_state, ImageStore(small_state), BIN, room=HostRoom(RESERVE_MB, 1))
    box = await provider.create(SPEC)
    with pytest.raises(MachineFull, match="may be promised") as caught:
        await provider.create(SPEC)
    assert "disk_overcommit" in (caught.value.remedy or "")
    # The next server counts what it finds before it promises anything, to several at once too.
    await provider.close()
    provider = OciProvider(small_state, ImageStore(small_state), BIN, room=HostRoom(RESERVE_MB, 1))
    refused = await asyncio.gather(*(provider.create(SPEC) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in refused] == [MachineFull] * 3
    await provider.destroy(box.id)
    again = await provider.create(SPEC)
    await provider.destroy(again.id)
    await provider.close()


async def test_sizes_of_all_kinds_leave_few_templates_and_hold_what_was_asked_for(small_state: Path) -> None:
    provider = OciProvider(small_state, ImageStore(small_state), BIN, room=HostRoom(RESERVE_MB, 100))
    disks = small_state / "disks"
    (disks / "stock-1000").mkdir(parents=True)  # as an older version left them
    (disks / "template-1000.img").touch()
    for disk_mb in (*range(90, 97), 150, 200, 300, 400, 500, 600, 700, 800, 900, 90):
        box = await provider.create(SandboxSpec(limits=Limits(disk_mb=disk_mb, memory_mb=128)))
        if disk_mb in (90, 500):
            available = int(await say(box, "df --output=avail -m /workspace | tail -1"))
            assert disk_mb * 0.9 < available <= disk_mb
        await provider.destroy(box.id)
    await provider.close()
    assert 0 < len(list(disks.glob("*.img"))) <= TEMPLATES
    assert not (disks / "stock-1000").exists()
    assert not (disks / "template-1000.img").exists()
