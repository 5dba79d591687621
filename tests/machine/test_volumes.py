"""Named volumes in real sandboxes: what they share, what they do not give, and what is left after a kill."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import this_run

from warren.interfaces.sandbox import Sandbox
from warren.model.errors import Conflict, FileNotFound, InvalidPath, InvalidRequest, NoSpace, NotFound
from warren.model.operations import Command
from warren.model.spec import Layer, Limits, SandboxSpec
from warren.model.volume import VolumeMount, new_volume_id
from warren.sandboxes.host.processes import run
from warren.sandboxes.host.volumes import HostVolumes
from warren.sandboxes.providers.oci import OciProvider

pytestmark = pytest.mark.anyio
SPEC = SandboxSpec(image="host", limits=Limits(memory_mb=128))
AT = "/workspace/v"


async def sh(box: Sandbox, line: str) -> str:
    result = await box.exec(Command(shell=line))
    assert result.exit_code == 0, result.stdout + result.stderr
    return result.stdout


async def new_box(provider: OciProvider) -> Sandbox:
    box = await provider.create(SPEC)
    await sh(box, f"mkdir -p {AT}")
    return box


def mount_of(volume: str, path: str = AT, *, read_only: bool = False) -> VolumeMount:
    return VolumeMount(volume, "data", path, read_only)


def loops(provider: OciProvider) -> list[str]:
    """The loop devices that have images of volumes of this test."""
    found = subprocess.run(["losetup", "-ln", "-O", "BACK-FILE"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.split() if line.startswith(str(provider.volume_images.directory))]


async def no_loop_is_left(provider: OciProvider) -> None:
    async with asyncio.timeout(this_run.patience(10)):
        while loops(provider):
            await asyncio.sleep(0.02)


@pytest.fixture
async def volume(provider: OciProvider) -> AsyncIterator[str]:
    volume = new_volume_id()
    await provider.volume_images.make(volume, 64)
    yield volume
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await no_loop_is_left(provider)
    image = provider.volume_images.directory / f"{volume}.img"
    checked = await run(["e2fsck", "-fn", str(image)])
    assert checked.code == 0, checked.stderr
    await provider.volume_images.delete(volume)
    assert await provider.volume_images.list() == []


async def test_sandboxes_share_a_volume_each_with_ids_of_its_own(provider: OciProvider, volume: str) -> None:
    one, other = await new_box(provider), await new_box(provider)
    assert provider.uid_base(one.id) != provider.uid_base(other.id)
    await provider.attach(one.id, mount_of(volume))
    await provider.attach(other.id, mount_of(volume))
    await provider.attach(other.id, mount_of(volume))  # repeating it changes nothing
    assert len(loops(provider)) == 1
    assert await sh(one, f"ls -A {AT}; stat -c '%u %g %a' {AT}; echo first > {AT}/a; stat -c '%u %g' {AT}/a") == (
        "1000 1000 755\n1000 1000\n"
    )
    assert await sh(other, f"cat {AT}/a; stat -c '%u' {AT}/a; echo second >> {AT}/a") == "first\n1000\n"
    assert await sh(one, f"cat {AT}/a") == "first\nsecond\n"
    await provider.destroy(one.id)
    await provider.detach(other.id, volume)
    await provider.detach(other.id, volume)
    assert await sh(other, f"ls -A {AT}") == ""
    await no_loop_is_left(provider)
    third = await new_box(provider)
    await provider.attach(third.id, mount_of(volume))
    assert await sh(third, f"cat {AT}/a") == "first\nsecond\n"


async def test_a_read_only_mount_of_a_volume_that_others_write_to_cannot_be_written(
    provider: OciProvider, volume: str
) -> None:
    reader, writer = await new_box(provider), await new_box(provider)
    await provider.attach(reader.id, mount_of(volume, read_only=True))
    await provider.attach(writer.id, mount_of(volume))
    await sh(writer, f"echo shared > {AT}/a; chmod 777 {AT}/a {AT}")
    assert await sh(reader, f"cat {AT}/a; touch {AT}/a 2>&1 || true; touch {AT}/b 2>&1 || true; ls {AT}") == (
        f"shared\ntouch: cannot touch '{AT}/a': Read-only file system\n"
        f"touch: cannot touch '{AT}/b': Read-only file system\na\n"
    )


async def test_neither_suid_programs_nor_devices_work_in_it(provider: OciProvider, volume: str) -> None:
    box = await new_box(provider)
    await provider.attach(box.id, mount_of(volume))
    options = (await sh(box, f"grep ' {AT} ' /proc/self/mountinfo")).split()[5].split(",")
    assert {"rw", "nosuid", "nodev"} <= set(options)


async def test_the_isolation_names_a_volume_and_its_own_disk_stays_known_below_one(
    provider: OciProvider, volume: str
) -> None:
    box = await new_box(provider)
    before = provider.sandbox_disks.list()[box.id].device
    await box.metrics()
    await provider.attach(box.id, mount_of(volume, "/workspace"))
    isolation = await provider.read_isolation(box.id)
    assert isolation.missing.keys() <= {Layer.GUEST_KERNEL, Layer.SOCKET_LIMIT}
    assert f"/workspace is the volume {volume}" in isolation.layers[Layer.DISK_LIMIT]
    assert provider.sandbox_disks.list()[box.id].device == before
    await box.metrics()
    await box.close()
    adopted = await provider.adopt(box.id)
    await sh(adopted, "touch /workspace/there")
    await provider.detach(box.id, volume)
    assert await sh(adopted, "ls /workspace") == "v\n"


@pytest.mark.parametrize("path", ["/workspace/link", "/workspace/link/sub", "/workspace/file", "/workspace/missing"])
async def test_a_path_through_a_link_or_to_no_directory_is_refused(
    provider: OciProvider, volume: str, path: str
) -> None:
    box = await new_box(provider)
    await sh(box, "mkdir -p v/sub; ln -s /workspace/v link; touch file")
    with pytest.raises((InvalidPath, FileNotFound)):
        await provider.attach(box.id, mount_of(volume, path))
    assert await sh(box, "grep -c 'ext4.*discard' /proc/self/mountinfo || true") == "0\n"
    await no_loop_is_left(provider)


async def test_a_volume_hides_no_mount_and_is_there_once(provider: OciProvider, volume: str) -> None:
    box = await new_box(provider)
    with pytest.raises(InvalidRequest, match="would hide /home/"):
        await provider.attach(box.id, mount_of(volume, "/home"))
    await provider.attach(box.id, mount_of(volume))
    with pytest.raises(Conflict):
        await provider.attach(box.id, mount_of(volume, "/home/sandboxuser"))
    other = new_volume_id()
    with pytest.raises(Conflict):
        await provider.volume_images.copy(volume, other)
    with pytest.raises(Conflict):
        await provider.volume_images.grow(volume, 128)
    with pytest.raises(Conflict):
        await provider.volume_images.delete(volume)
    with pytest.raises(NotFound):
        await provider.attach(box.id, mount_of(other, "/mnt/data"))


async def test_a_sandbox_that_swaps_the_target_for_a_link_gains_nothing(provider: OciProvider, volume: str) -> None:
    """Whatever wins the race, the volume is mounted at a directory of the sandbox's disk, or refused."""
    box = await new_box(provider)
    swap = "mkdir -p {0} && cd {0} && mkdir -p d && while :; do mv d e; ln -s /etc d; rm d; mv e d; done"
    swapping = asyncio.ensure_future(box.exec(Command(shell=swap.format("/workspace/race"))))
    done, refused = 0, 0
    for _ in range(60):
        try:
            await provider.attach(box.id, mount_of(volume, "/workspace/race/d"))
            done += 1
        except (InvalidPath, FileNotFound):
            refused += 1
            continue
        mounted = [
            line.split()[4] for line in (await sh(box, "cat /proc/self/mountinfo")).splitlines() if "discard" in line
        ]
        assert set(mounted) <= {"/workspace/race/d", "/workspace/race/e"}
        await provider.detach(box.id, volume)
        await sh(box, "cd race; rm -f d; [ -d d ] || mkdir d") if swapping.done() else None
    assert done + refused == 60
    await box.kill_all()
    await asyncio.gather(swapping, return_exceptions=True)


async def test_a_volume_is_found_where_the_sandbox_has_moved_its_directory(provider: OciProvider, volume: str) -> None:
    box = await new_box(provider)
    await sh(box, "mkdir -p a/b")
    await provider.attach(box.id, mount_of(volume, "/workspace/a/b"))
    await sh(box, "mv a c; mkdir -p a/b")
    await provider.detach(box.id, volume)
    assert await sh(box, "grep -c discard /proc/self/mountinfo || true") == "0\n"


async def test_a_volume_grows_is_copied_and_is_never_made_smaller(provider: OciProvider, volume: str) -> None:
    box = await new_box(provider)
    await provider.attach(box.id, mount_of(volume))
    await sh(box, f"head -c 20M /dev/urandom > {AT}/data; sha256sum < {AT}/data > {AT}/sum")
    await provider.detach(box.id, volume)
    await provider.volume_images.grow(volume, 700)
    with pytest.raises(InvalidRequest):
        await provider.volume_images.grow(volume, 64)
    with pytest.raises(InvalidRequest, match="too small"):
        await provider.volume_images.grow(volume, 1 << 20)
    twin = new_volume_id()
    await provider.volume_images.copy(volume, twin)
    image = await provider.volume_images.find(twin)
    assert image is not None
    assert (image.size_mb, image.was_mounted) == (700, True)
    assert image.used < 64 << 20
    await provider.attach(box.id, mount_of(twin))
    assert int(await sh(box, f"df --output=size -m {AT} | tail -1")) > 600
    await sh(box, f'sha256sum -c {AT}/sum < /dev/null || [ "$(sha256sum < {AT}/data)" = "$(cat {AT}/sum)" ]')
    await sh(box, f"rm {AT}/data; sync")
    async with asyncio.timeout(this_run.patience(20)):  # what was deleted is given back to the machine
        while (freed := await provider.volume_images.find(twin)) and freed.used > image.used - (15 << 20):
            await asyncio.sleep(0.1)
    await provider.destroy(box.id)
    await no_loop_is_left(provider)
    await provider.volume_images.delete(twin)


async def test_who_waits_for_a_volume_that_a_program_keeps_open_takes_no_thread(
    provider: OciProvider, volume: str
) -> None:
    box = await new_box(provider)
    await provider.attach(box.id, mount_of(volume))
    await box.start(Command(shell=f"exec 9> {AT}/file; echo open; sleep 600"), process_id="keeper")
    while "open" not in await sh(box, f"ls {AT}/file > /dev/null && echo open || true"):
        await asyncio.sleep(0.02)
    await provider.detach(box.id, volume)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    waiting = [asyncio.create_task(provider.volume_images.copy(volume, new_volume_id())) for _ in range(3)]
    for _ in range(5):
        await asyncio.to_thread(int)
    assert not any(task.done() for task in waiting)
    assert all(isinstance(one, Conflict) for one in await asyncio.gather(*waiting, return_exceptions=True))


async def test_what_was_synced_survives_a_loss_of_power(provider: OciProvider, volume: str) -> None:
    """The image as the host's disk has it at that moment, without what its file system would write later."""
    box = await new_box(provider)
    await provider.attach(box.id, mount_of(volume))
    await sh(box, f"echo kept > {AT}/a; sync {AT}/a; sync -f {AT}; echo lost > {AT}/b")
    cut = new_volume_id()
    image = provider.volume_images.directory / f"{volume}.img"
    await run(["cp", "--sparse=always", str(image), str(image.with_name(f"{cut}.img"))])
    await provider.attach(box.id, mount_of(cut, "/mnt/data"))
    assert await sh(box, "cat /mnt/data/a") == "kept\n"
    await provider.detach(box.id, cut)
    await provider.volume_images.delete(cut)


async def test_a_kill_of_the_helper_at_any_moment_leaves_no_loop_device(provider: OciProvider, volume: str) -> None:
    box = await new_box(provider)
    for step in range(40):
        attaching = asyncio.ensure_future(provider.attach(box.id, mount_of(volume)))
        await asyncio.sleep(step * 0.0004)
        for helper in launchers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(helper, signal.SIGKILL)
        await asyncio.gather(attaching, return_exceptions=True)
        await provider.detach(box.id, volume)
        assert len(loops(provider)) <= 1
    await no_loop_is_left(provider)


def launchers() -> list[int]:
    """The helpers that this process has started."""
    mine = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in mine if b"attach" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_two_workers_that_attach_at_once_use_one_loop_device(provider: OciProvider, volume: str) -> None:
    boxes = [await new_box(provider) for _ in range(4)]
    other = OciProvider(provider._state, provider._images, provider._programs.launcher.parent)
    for _ in range(5):
        workers = [provider, other] * 2
        await asyncio.gather(
            *(worker.attach(box.id, mount_of(volume)) for worker, box in zip(workers, boxes, strict=True))
        )
        assert len(loops(provider)) == 1
        await asyncio.gather(*(worker.detach(box.id, volume) for worker, box in zip(workers, boxes, strict=True)))
    await other.close()


async def test_nothing_is_attached_when_the_machine_is_nearly_full(provider: OciProvider, volume: str) -> None:
    box = await new_box(provider)
    images = provider.volume_images
    full = HostVolumes(images.directory, provider._programs.launcher, 1 << 40)
    record = provider.load_record(box.id)
    assert record is not None
    with pytest.raises(NoSpace):
        await full.attach(record, mount_of(volume), 0)
    with pytest.raises(NoSpace):
        await full.make(new_volume_id(), 16)
