"""Saved disks of sandboxes of this host: what is on them, what a crash leaves, and what they take of the machine."""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import this_run

import warren
from warren.images.store.store import ImageStore
from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.errors import Conflict, InvalidRequest, NoSpace
from warren.model.operations import Command
from warren.model.spec import MIB, Limits, SandboxSpec
from warren.sandboxes.disks.saved_images import SavedImages
from warren.sandboxes.disks.saving import STEPS
from warren.sandboxes.providers.host_limits import HostRoom
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"
SPEC = SandboxSpec(limits=Limits(disk_mb=64, cpus=2))
WRITABLE = replace(SPEC, writable_root=True, sudo=True)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def provider(state_dir: Path, image_store: ImageStore) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, image_store, BIN)
    yield provider
    await end(provider)


async def end(provider: OciProvider) -> None:
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    for name in await provider.saved_disks.list():
        await provider.saved_disks.delete(name)
    await provider.close()


async def say(box: Sandbox, script: str, user: str = "") -> str:
    result = await box.exec(Command(argv=("sh", "-c", script), user=user))
    return result.output.strip()


def image_of(provider: OciProvider, name: str) -> Path:
    return provider.disks.directory / "saved" / f"{name}.img"


def debugfs(image: Path, request: str) -> str:
    return subprocess.run(["debugfs", "-R", request, image], capture_output=True, text=True, check=True).stdout


def check(image: Path) -> int:
    """Returns what e2fsck finds: 0 is nothing, 4 something that it would have to change."""
    return subprocess.run(["e2fsck", "-fn", image], capture_output=True, check=False).returncode


MANY_KINDS = """set -e; cd /workspace
python3 -c 'import os
open("x", "w").write("x"); os.link("x", "y"); os.setxattr("x", "user.note", b"kept"); os.symlink("/etc/passwd", "link")
with open("sparse", "wb") as file: file.seek(40 << 20); file.write(b"end")
os.mkfifo("pipe"); os.chmod("x", 0o640)'
"""
LOOK = """cd /workspace; stat -c '%n %u %g %a %h %s %F' x y link sparse pipe; du -k sparse | cut -f1
python3 -c 'import os; print(os.getxattr("y", "user.note").decode())'"""


async def test_all_kinds_of_files_are_kept_and_belong_to_the_same_users(provider: OciProvider) -> None:
    box = await provider.create(SPEC)
    assert await say(box, MANY_KINDS) == ""
    await provider.save_disk(box.id, "kinds")
    other = await provider.create(replace(SPEC, disk="kinds"))
    assert provider.uid_base(box.id) != provider.uid_base(other.id)
    assert await say(other, LOOK) == await say(box, LOOK)
    assert "x 1000 1000 640 2 1 regular file" in await say(other, LOOK)
    assert other.isolation.layers.keys() == box.isolation.layers.keys()
    found = debugfs(image_of(provider, "kinds"), "stat workspace/x")
    assert "User:  1000" in found
    assert "Group:  1000" in found
    assert check(image_of(provider, "kinds")) == 0


async def test_a_writable_root_is_kept_with_what_was_removed_from_it(provider: OciProvider) -> None:
    box = await provider.create(WRITABLE)
    await say(box, "rm /etc/issue; rm -r /etc/skel; mkdir /etc/skel; echo new > /etc/skel/only", "root")
    await say(
        box, "echo mine > /opt/mine; chown 1000:0 /opt/mine; chmod 750 /opt; mv /etc/alternatives /etc/moved", "root"
    )
    await provider.save_disk(box.id, "root")
    look = """ls -d /etc/issue /etc/alternatives 2>&1 | grep -c such; ls -A /etc/skel; cat /opt/mine
    stat -c '%u %g %a' /opt /opt/mine /"""
    for _ in range(2):  # the second begins with a disk that began with a saved one
        other = await provider.create(replace(WRITABLE, disk="root"))
        assert await say(other, look, "root") == await say(box, look, "root")
        assert await say(other, "echo more > /usr/more; cat /usr/more", "root") == "more"
        await provider.saved_disks.delete("root")
        await provider.save_disk(other.id, "root")
    assert "User:     0" in debugfs(image_of(provider, "root"), "stat root.upper/usr/more")
    assert check(image_of(provider, "root")) == 0
    for spec, why in (
        (replace(SPEC, disk="root"), "a read-only one"),
        (replace(WRITABLE, image="host", disk="root", sudo=False), "/usr"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            await provider.create(spec)


async def test_a_disk_is_saved_as_it_was_at_one_moment(provider: OciProvider) -> None:
    box = await provider.create(SPEC)
    write = "i=0; while true; do i=$((i+1)); echo $i >> /workspace/first; echo $i >> /tmp/second; done"
    writer = await box.start(Command(argv=("sh", "-c", write)))
    held = await box.start(
        Command(shell="exec 9>/workspace/gone; head -c 5000000 /dev/zero >&9; rm /workspace/gone; sleep 1000")
    )
    while "gone" in await say(box, "ls /workspace; ls /workspace | wc -l | grep -q 1 || echo gone"):
        await asyncio.sleep(0.01)
    for name in ("one", "two"):
        saved = await provider.save_disk(box.id, name)
        assert saved.stopped_s > 0
        assert check(image_of(provider, name)) == 0
        other = await provider.create(replace(SPEC, disk=name))
        first, second = (await say(other, "wc -l < /workspace/first; wc -l < /tmp/second")).split()
        assert int(second) <= int(first) <= int(second) + 1
        assert int(await say(other, "df --output=used -k /workspace | tail -1")) < 3000  # without the deleted file
    before = int(await say(box, "wc -l < /workspace/first"))
    assert int(await say(box, "sleep 0.2; wc -l < /workspace/first")) > before
    for process in (writer, held):
        await process.kill()


async def test_a_disk_that_stays_here_needs_no_hash(provider: OciProvider) -> None:
    box = await provider.create(SPEC)
    await box.write("/workspace/mine", b"kept")
    assert (await provider.save_disk(box.id, "fork", hashed=False)).sha256 == ""
    other = await provider.create(replace(SPEC, disk="fork"))
    assert await say(other, "cat /workspace/mine") == "kept"


async def test_a_larger_disk_has_that_much_room_and_no_more(provider: OciProvider) -> None:
    box = await provider.create(SPEC)
    await provider.save_disk(box.id, "small")
    for disk_mb in (66, 90, 700):
        other = await provider.create(replace(SPEC, limits=Limits(disk_mb=disk_mb, cpus=2), disk="small"))
        assert "No space left" in await say(other, f"head -c {disk_mb + 1}M /dev/zero > /workspace/full")
        assert disk_mb * 0.85 * MIB < int(await say(other, "stat -c %s /workspace/full")) <= disk_mb * MIB


KILLED = """
import asyncio, os, sys
from pathlib import Path
from warren.images.store.store import ImageStore
from warren.sandboxes.providers.oci import OciProvider

state, bin_dir, step, box = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
fault = lambda now: os.kill(os.getpid(), 9) if now == step else None
asyncio.run(OciProvider(state, ImageStore(state), bin_dir, fault=fault).save_disk(box, "disk"))
"""


@pytest.mark.parametrize("step", STEPS)
async def test_what_a_killed_worker_leaves_is_whole_or_nothing(
    state_dir: Path, image_store: ImageStore, step: str
) -> None:
    first = OciProvider(state_dir, image_store, BIN)
    box = await first.create(SPEC)
    await box.write("/workspace/mine", b"kept")
    argv = [sys.executable, "-c", KILLED, str(state_dir), str(BIN), step, box.id]
    environment = {**os.environ, "PYTHONPATH": str(BIN.parents[1])}
    died = await asyncio.to_thread(subprocess.run, argv, env=environment, check=False)
    assert died.returncode == -9
    first._cgroup_of(box.id).thaw()
    again = OciProvider(state_dir, image_store, BIN)
    try:
        assert await again.saved_disks.list() == (["disk"] if step == "disk named" else [])
        if step != "disk named":
            await again.save_disk(box.id, "disk")
        assert check(image_of(again, "disk")) == 0
        other = await again.create(replace(SPEC, disk="disk"))
        assert [path.name for path in (state_dir / "disks/saved").iterdir()] == ["disk.img"]
        assert await say(other, "cat /workspace/mine") == "kept"
        assert (await box.exec(Command(shell="cat /workspace/mine"))).stdout == "kept"
    finally:
        await first.close()
        await end(again)


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_save_that_is_cut_short_keeps_nothing_and_the_sandbox_runs_on(
    state_dir: Path, image_store: ImageStore, step: str, how: str
) -> None:
    loop = asyncio.get_running_loop()

    def fault(now: str) -> None:
        if now != step:
            return
        if how == "fails":
            raise Conflict("stop")
        loop.call_soon_threadsafe(task.cancel)

    provider = OciProvider(state_dir, image_store, BIN, fault=fault)
    box = await provider.create(SPEC)
    try:
        task = asyncio.ensure_future(provider.save_disk(box.id, "cut"))
        [outcome] = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, Conflict if how == "fails" else asyncio.CancelledError)
        assert not provider._cgroup_of(box.id).is_frozen()
        assert list((state_dir / "disks/saved").iterdir()) == []
        assert await say(box, "echo on") == "on"
    finally:
        await end(provider)


async def test_only_what_nobody_writes_any_more_is_removed(provider: OciProvider) -> None:
    folder = provider.disks.directory / "saved"
    folder.mkdir(exist_ok=True, parents=True)
    (folder / ".left.0").touch()
    with (folder / ".live.0").open("xb") as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        await provider.runtime_report()
        assert [path.name for path in folder.iterdir()] == [".live.0"]
        assert await provider.saved_disks.list() == []
    (folder / ".live.0").unlink()


async def test_a_sandbox_of_an_older_version_goes_on_but_is_not_saved(
    provider: OciProvider, state_dir: Path, image_store: ImageStore
) -> None:
    box = await provider.create(SPEC)
    record = provider.directory(box.id) / "record.json"
    values = json.loads(record.read_text())
    del values["disk_layout"]
    record.write_text(json.dumps(values))
    later = OciProvider(state_dir, image_store, BIN)
    adopted = await later.adopt(box.id)
    with pytest.raises(Conflict, match="older version") as caught:
        await later.save_disk(box.id, "old")
    assert "copy its files" in (caught.value.remedy or "")
    assert await say(adopted, "echo on") == "on"
    await later.destroy(box.id)
    await later.close()


async def test_without_loop_devices_there_are_no_saved_disks(provider: OciProvider) -> None:
    await provider.runtime_report()
    provider.disks.why_not_loop = "the test says so"
    box = await provider.create(SPEC)
    assert Capability.SNAPSHOTS not in provider.capabilities
    with pytest.raises(InvalidRequest, match="the test says so"):
        await provider.save_disk(box.id, "none")
    with pytest.raises(InvalidRequest, match="the test says so"):
        await provider.create(replace(SPEC, disk="none"))
    with pytest.raises(InvalidRequest, match="snapshots"):
        await anext(provider.saved_disks.pack("none"))
    assert await provider.saved_disks.find("none") is None


async def test_what_must_stay_free_is_not_touched(state_dir: Path, image_store: ImageStore) -> None:
    before = OciProvider(state_dir, image_store, BIN)
    box = await before.create(SPEC)
    await say(box, "head -c 40M /dev/urandom > /workspace/data")
    await before.save_disk(box.id, "good")
    stat = os.statvfs(state_dir)
    full = OciProvider(state_dir, image_store, BIN, room=HostRoom(stat.f_bavail * stat.f_frsize // MIB, 100))
    with pytest.raises(NoSpace, match="to spare"):
        await full.save_disk(box.id, "full")
    with pytest.raises(NoSpace, match="to spare"):
        await full.saved_disks.unpack("full", before.saved_disks.pack("good"))
    assert await full.saved_disks.list() == ["good"]
    assert [path.name for path in (state_dir / "disks/saved").iterdir()] == ["good.img"]
    assert await say(box, "echo on") == "on"
    await full.close()
    await end(before)


async def test_a_disk_that_is_slow_to_copy_keeps_nobody_elses_threads(provider: OciProvider, state_dir: Path) -> None:
    box = await provider.create(SPEC)
    await say(box, "head -c 8M /dev/urandom > /workspace/data")
    await provider.save_disk(box.id, "slow")
    may_copy = threading.Event()
    slow = SavedImages(state_dir / "disks/saved", lambda: may_copy.wait(this_run.patience(10)) and 0)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    copies = [asyncio.create_task(slow.copy("slow", 64)) for _ in range(6)]
    for _ in range(20):
        await asyncio.to_thread(int)
    were_waiting = not any(task.done() for task in copies)
    may_copy.set()
    assert all(isinstance(one, NoSpace) for one in await asyncio.gather(*copies, return_exceptions=True))
    assert were_waiting


@pytest.fixture
def on_xfs(image_cache: Path) -> Iterator[Path]:
    """A state directory on a file system whose files can share blocks."""
    path = this_run.new_state_dir(image_cache)
    image = path.with_suffix(".img")
    with image.open("xb") as file:
        file.truncate(512 * MIB)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, path], check=True)
    (path / "images").symlink_to(image_cache / "images")
    yield path
    subprocess.run(["umount", path], check=True)
    shutil.rmtree(path)
    image.unlink()


async def test_disks_share_blocks_where_the_file_system_can(on_xfs: Path) -> None:
    provider = OciProvider(on_xfs, ImageStore(on_xfs), BIN, room=HostRoom(16, 100))
    box = await provider.create(SPEC)
    await say(box, "head -c 40M /dev/urandom > /workspace/data; sync /workspace/data")
    os.sync()
    before = used_mb(on_xfs)
    await provider.save_disk(box.id, "shared")
    others = [await provider.create(replace(SPEC, disk="shared")) for _ in range(4)]
    os.sync()
    assert used_mb(on_xfs) - before < 40
    await say(others[0], "echo changed > /workspace/data")
    sums = [await say(each, "md5sum < /workspace/data") for each in (box, *others[1:])]
    assert len({*sums}) == 1
    await end(provider)


def used_mb(path: Path) -> int:
    stat = os.statvfs(path)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize // MIB
