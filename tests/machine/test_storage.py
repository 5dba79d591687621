"""`warren storage`: an xfs image for disks, on a state directory whose own file system cannot share blocks."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import this_run
from server_process import clean_environ, running_server

import warren
from warren.images.store.store import ImageStore
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import SandboxLost, WarrenError
from warren.model.operations import Command
from warren.model.spec import MIB, Limits, SandboxSpec
from warren.model.volume import VolumeMount, new_volume_id
from warren.sandboxes.host.processes import run
from warren.sandboxes.host.storage import file_systems, make_storage, mount_storage, read_storage, unmount_storage
from warren.sandboxes.providers.docker import DockerProvider
from warren.sandboxes.providers.host_limits import HostRoom
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"
SPEC = SandboxSpec(image="host", limits=Limits(disk_mb=200, memory_mb=256, cpus=2))
RESERVE_MB = 120

pytestmark = pytest.mark.anyio


@pytest.fixture
def on_ext4(image_cache: Path) -> Iterator[Path]:
    """A state directory on an ext4 of 1,000 MiB."""
    path = this_run.new_state_dir()
    image = path.with_suffix(".img")
    with image.open("xb") as file:
        file.truncate(1000 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, path], check=True)
    (path / "images").symlink_to(image_cache / "images")
    yield path
    unmount_storage(path)
    until = time.monotonic() + this_run.patience(10)  # a loop device lets go of its file a moment after the unmounting
    while subprocess.run(["umount", path], capture_output=True).returncode:
        assert time.monotonic() < until, "the file system is in use"
        time.sleep(0.1)
    path.rmdir()
    image.unlink()


@asynccontextmanager
async def providing(state_dir: Path) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, ImageStore(state_dir), BIN, room=HostRoom(RESERVE_MB, 1000))
    try:
        yield provider
    finally:
        for sandbox_id in await provider.list_ids():
            await provider.destroy(sandbox_id)
        await provider.close()


async def say(box: Sandbox, script: str) -> str:
    result = await box.exec(Command(argv=("sh", "-c", script)))
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def storage(state_dir: Path, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "warren.cli.main", "storage", *arguments]
    env = {**clean_environ(), "WARREN_STATE_DIR": str(state_dir), **environ}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def says(state_dir: Path, *arguments: str) -> str:
    done = storage(state_dir, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def filled(provider: OciProvider, name: str, volume: str) -> str:
    """A saved disk and a volume with the same 20 MB in them; returns their hash."""
    box = await provider.create(SPEC)
    await provider.volume_images.make(volume, 64)
    await say(box, "mkdir v")
    await provider.attach(box.id, VolumeMount(volume, "data", "/workspace/v"))
    known = await say(box, "head -c 20M /dev/urandom > data; cp data v/data; sync; sha256sum < data")
    await provider.save_disk(box.id, name)
    await provider.destroy(box.id)
    return known


async def is_there(provider: OciProvider, name: str, volume: str, known: str) -> bool:
    box = await provider.create(replace(SPEC, disk=name))
    await provider.attach(box.id, VolumeMount(volume, "data", "/workspace/v"))
    found = await say(box, "sha256sum < data; sha256sum < v/data")
    await provider.destroy(box.id)
    return found.splitlines() == [known] * 2


async def test_disks_move_into_the_storage_and_back(on_ext4: Path) -> None:
    volume = new_volume_id()
    async with providing(on_ext4) as provider:
        known = await filled(provider, "kept", volume)
    of_docker = on_ext4 / "disks" / DockerProvider.saved_folder / "other.img"
    of_docker.parent.mkdir()
    of_docker.write_text("kept")
    assert "each fork is a copy" in says(on_ext4, "status")
    assert f"image    {on_ext4}/disks.xfs, 600 MiB" in says(on_ext4, "init", "--size", "600m")
    assert "There is a storage already" in says(on_ext4, "init")
    async with providing(on_ext4) as provider:
        assert await is_there(provider, "kept", volume, known)
        assert of_docker.read_text() == "kept"
        before = used(on_ext4)
        for _ in range(4):
            await provider.create(replace(SPEC, disk="kept"))
        os.sync()
        assert used(on_ext4) - before < 20 * MIB
    unmount_storage(on_ext4)  # as after a restart of the machine
    assert "mounted  no" in says(on_ext4, "status")
    with running_server(on_ext4, "--container-image", "host"):
        assert "mounted  yes" in says(on_ext4, "status")
        assert "another server uses the state directory" in storage(on_ext4, "remove").stderr
    async with providing(on_ext4) as provider:
        assert await is_there(provider, "kept", volume, known)
    assert says(on_ext4, "remove") == "The storage is removed.\n"
    assert says(on_ext4, "remove") == "There is no storage.\n"
    assert sorted(path.name for path in on_ext4.glob("*disks*")) == ["disks"]
    assert of_docker.read_text() == "kept"
    async with providing(on_ext4) as provider:
        assert await is_there(provider, "kept", volume, known)


async def test_what_cannot_be_done_is_refused_and_changes_nothing(on_ext4: Path, tmp_path: Path) -> None:
    async with providing(on_ext4) as provider:
        await provider.create(SPEC)
        assert "1 sandboxes have their disks" in storage(on_ext4, "init").stderr
    (tmp_path / "sh").symlink_to("/bin/sh")
    assert "install xfsprogs" in storage(on_ext4, "init", PATH=str(tmp_path)).stderr
    assert "MiB are free" in storage(on_ext4, "init", "--size", "2g").stderr
    assert "512 or more" in storage(on_ext4, "init", "--size", "100m").stderr
    assert list(on_ext4.glob("*disks*")) == [on_ext4 / "disks"]
    (on_ext4 / "disks.xfs").write_bytes(bytes(MIB))  # damaged
    done = storage(on_ext4, "init")
    assert "cannot be mounted" in done.stderr
    assert "xfs_repair" in done.stderr
    (on_ext4 / "disks.xfs").unlink()


def test_an_uninstall_gives_it_back(on_ext4: Path) -> None:
    argv = [sys.executable, "-m", "warren.cli.main", "uninstall", "--purge", "-y"]
    own = on_ext4 / "state"
    own.mkdir()
    says(own, "init", "--size", "512m")
    done = subprocess.run(argv, env={**clean_environ(), "WARREN_STATE_DIR": str(own)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not own.exists()
    assert str(own) not in Path("/proc/self/mountinfo").read_text()


def test_a_crash_while_it_is_made_changes_nothing(on_ext4: Path) -> None:
    (on_ext4 / ".disks.xfs").write_bytes(b"left by a crash")
    assert read_storage(on_ext4) is None
    mount_storage(on_ext4)
    assert make_storage(on_ext4, 512)
    assert not make_storage(on_ext4, 700)
    assert len(file_systems(on_ext4)) == 2


# Slow enough for a watch that looks ten times a second, also on a busy machine.
DIVERGE = f"""
import os, time
file = os.open("data", os.O_RDWR)
for number in range(120):
    os.pwrite(file, os.urandom(1 << 20), number << 20)
    os.fsync(file)
    time.sleep({this_run.patience(0.1)})
"""
GROW = DIVERGE.replace('os.open("data", os.O_RDWR)', 'os.open("v/grown", os.O_RDWR | os.O_CREAT)')


async def test_the_disk_does_not_run_full_by_forks_that_go_different_ways(on_ext4: Path) -> None:
    """Four forks share 120 MiB and overwrite it, a volume grows, and another program takes what the image needs."""
    make_storage(on_ext4, 800)
    volume, least = new_volume_id(), [1 << 40]
    async with providing(on_ext4) as provider:
        box = await provider.create(SPEC)
        known = await say(box, "head -c 120M /dev/urandom > data; sync; sha256sum < data")
        await provider.save_disk(box.id, "base")
        await provider.destroy(box.id)
        forks = [await provider.create(replace(SPEC, disk="base")) for _ in range(4)]
        await provider.volume_images.make(volume, 256)
        await say(forks[0], "mkdir v")
        await provider.attach(forks[0].id, VolumeMount(volume, "data", "/workspace/v"))
        with (on_ext4 / "other").open("xb") as other:
            os.posix_fallocate(other.fileno(), 0, free(on_ext4) - 2 * RESERVE_MB * MIB)
        watching = asyncio.create_task(note_least(on_ext4, least))
        works = [write(box, DIVERGE) for box in forks] + [write(forks[0], GROW)]
        ends = await asyncio.gather(*works)
        watching.cancel()
        assert least[0] > 8 * MIB
        assert "No space left" in ends[-1] or "lost" in ends[-1]
        assert any("lost" in end for end in ends[:-1])  # what they share cannot be refused, so some end
        (on_ext4 / "other").unlink()
        saved = await provider.create(replace(SPEC, disk="base"))
        assert await say(saved, "sha256sum < data") == known
        await provider.attach(saved.id, VolumeMount(volume, "data", "/workspace"))
        await say(saved, "echo more > /workspace/more; sync")
    image = on_ext4 / "disks" / "volumes" / f"{volume}.img"
    assert (await run(["e2fsck", "-fn", str(image)])).code == 0


async def write(box: Sandbox, program: str) -> str:
    try:
        result = await box.exec(Command(argv=("python3", "-c", program)))
    except WarrenError as exc:
        return "lost" if isinstance(exc, SandboxLost) else exc.message
    return result.output if result.exit_code != -9 else "lost"


async def note_least(state_dir: Path, least: list[int]) -> None:
    while True:
        least[0] = min(least[0], *(each.f_bavail * each.f_frsize for each in file_systems(state_dir)))
        await asyncio.sleep(0.02)


def used(path: Path) -> int:
    stat = os.statvfs(path)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def free(path: Path) -> int:
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize
