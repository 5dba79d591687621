"""The docker provider beyond the contracts: any image, what the engine shows, what remains when things go wrong."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docker_engine import DockerEngine, mounts_below

import warren
from warren.doctor.parts import check_capabilities
from warren.images.store.store import ImageStore
from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.errors import (
    ImageNotFound,
    InvalidRequest,
    IsolationUnavailable,
    NoSpace,
    ProviderUnavailable,
    SandboxLost,
)
from warren.model.operations import Command, Reason, TerminalSize
from warren.model.spec import MIB, Layer, Limits, SandboxSpec
from warren.model.volume import VolumeMount, new_volume_id
from warren.sandboxes.host.cgroups import Hierarchies
from warren.sandboxes.host.uids import DIRECTORY as CLAIMS
from warren.sandboxes.providers.docker import STEPS, DockerProvider, DockerRecord
from warren.sandboxes.providers.oci import OciProvider
from warren_attack.probe import ProbeVerdict
from warren_attack.warren.suite import attack, choose

BIN = Path(warren.__file__).parent / "bin"
RUN = Path("/run/warren/docker")
BEFORE = frozenset(path.name for path in RUN.glob("*"))
SCRATCH = "warren-tests/scratch:1"
SPEC = SandboxSpec()

pytestmark = [pytest.mark.anyio, pytest.mark.extended, pytest.mark.group("docker")]

Open = Callable[..., DockerProvider]


@pytest.fixture
async def open_provider(
    state_dir: Path, image_store: ImageStore, docker_engine: DockerEngine
) -> AsyncIterator[Callable[..., DockerProvider]]:
    opened = []

    def provider(fault: Callable[[str], None] = lambda step: None, images: ImageStore = image_store) -> DockerProvider:
        opened.append(DockerProvider(state_dir, images, BIN, docker_engine.url, fault=fault))
        return opened[-1]

    yield provider
    for one in opened:
        await one.close()


def scratch_image(engine: DockerEngine, place: Path) -> str:
    """An image of one text file: no libc, no shell, no /etc."""
    (place / "scratch").mkdir()
    (place / "scratch/readme").write_text("all there is\n")
    engine.import_rootfs(place / "scratch", SCRATCH)
    return SCRATCH


def claims() -> dict[str, str]:
    """The claims of all sandboxes on this machine; those of others may go at any moment."""
    found = {}
    for link in CLAIMS.glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError):
            found[link.name] = os.readlink(link)
    return found


def ours_in_run(state_dir: Path) -> list[str]:
    """Directories of agents' sockets that belong to no other state directory on this machine, and to no earlier run."""
    known = {Path(target).name for target in claims().values() if str(state_dir) not in target}
    return [path.name for path in RUN.glob("*") if path.name not in {*known, *BEFORE}]


def remains(state_dir: Path, engine: DockerEngine) -> dict[str, list[str]]:
    """Everything a sandbox is made of on the host."""
    # Those with processes in them belong to containers, of this engine (listed) or of another one.
    procs = Path("/sys/fs/cgroup").glob("*/docker/*/cgroup.procs")
    return {
        "containers": engine.docker("ps", "--all", "--quiet").stdout.split(),
        "volumes": engine.docker("volume", "ls", "--quiet").stdout.split(),
        "directories": [*os.listdir(state_dir / "docker"), *ours_in_run(state_dir)],
        "mounts": mounts_below(state_dir),
        "claims": [name for name, target in claims().items() if str(state_dir) in target],
        "cgroups": [str(path.parent) for path in procs if not path.read_text()],
    }


NOTHING: dict[str, list[str]] = {
    key: [] for key in ("containers", "volumes", "directories", "mounts", "claims", "cgroups")
}


def inspected(engine: DockerEngine, sandbox_id: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(engine.docker("inspect", f"warren-{sandbox_id}").stdout)
    return found[0]


def record_of(state_dir: Path, sandbox_id: str) -> DockerRecord:
    record = DockerRecord.load(state_dir / "docker" / sandbox_id)
    assert record is not None
    return record


async def sh(sandbox: Sandbox, text: str) -> str:
    return (await sandbox.exec(Command(shell=text))).output


async def test_the_names_that_the_engine_shows_are_told_by_the_attack(open_provider: Open) -> None:
    (finding,) = await attack(open_provider(), SPEC, probes=choose(("mount-paths",)))
    assert finding.outcome.verdict is ProbeVerdict.GOT_THROUGH
    assert "docs/security.md#what-differs-with-docker" in finding.outcome.evidence


# Any image.


async def test_an_image_without_libc_or_shell_has_files_and_says_what_is_missing(
    open_provider: Open, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    provider = open_provider()
    box = await provider.create(SandboxSpec(image=scratch_image(docker_engine, tmp_path)))
    try:
        assert b"".join([part async for part in box.read("/readme")]) == b"all there is\n"
        await box.write("made", b"here")
        assert [info.name for info in await box.list("/workspace")] == ["made"]
        for command in (Command(shell="echo hi"), Command(argv=("ls",))):
            result = await box.exec(command)
            assert (result.exit_code, result.reason) == (127, Reason.EXITED)
            assert result.stderr.strip()
    finally:
        await provider.destroy(box.id)


async def test_volumes_of_an_image_lie_on_the_sandboxs_disk(
    open_provider: Open, docker_engine: DockerEngine, image_store: ImageStore, state_dir: Path
) -> None:
    provider = open_provider()
    await provider.destroy((await provider.create(SPEC)).id)
    image = with_volume(docker_engine, "with-volume:1", "/srv/data")
    box = await provider.create(SandboxSpec(image=image, limits=Limits(disk_mb=16)))
    assert docker_engine.docker("volume", "ls", "--quiet").stdout == ""
    full = await box.exec(Command(shell="head -c 40000000 /dev/zero > /srv/data/much"))
    await provider.destroy(box.id)
    assert "No space left" in full.stderr
    assert remains(state_dir, docker_engine) == NOTHING


async def test_variables_and_directory_of_an_image_hold_and_its_user_does_not(
    open_provider: Open, docker_engine: DockerEngine, state_dir: Path
) -> None:
    provider = open_provider()
    await provider.destroy((await provider.create(SPEC)).id)
    base = docker_engine.docker("images", "--quiet", "warren/base").stdout.split()[0]
    made = docker_engine.docker("create", base, "/x").stdout.strip()
    changes = ("ENV GREETING=hello", "ENV HOME=/root", "WORKDIR /srv", "USER 5")
    options = [word for change in changes for word in ("--change", change)]
    docker_engine.docker("commit", *options, made, "configured:1")
    docker_engine.docker("rm", made)
    box = await provider.create(SandboxSpec(image="configured:1"))
    said = await box.exec(Command(shell="echo $GREETING $HOME; pwd; id -un"))
    await provider.destroy(box.id)
    assert said.output.split() == ["hello", "/home/sandboxuser", "/srv", "sandboxuser"]
    assert remains(state_dir, docker_engine) == NOTHING


async def test_an_image_made_anew_is_loaded_anew_and_the_old_one_goes(
    open_provider: Open, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    store = ImageStore(tmp_path / "images-of-this-test")
    for text in ("one", "two"):
        (tmp_path / "tree/file").write_text(text)
        os.link(tmp_path / "tree/file", tmp_path / f"tree/link-{text}")
        store.import_directory("Odd/Name:1", tmp_path / "tree", shell_needed=False)
        provider = open_provider(images=store)
        box = await provider.create(SandboxSpec(image="Odd/Name:1"))
        assert b"".join([part async for part in box.read(f"/link-{text}")]) == text.encode()
        await provider.destroy(box.id)
    assert len(docker_engine.docker("images", "--quiet", "warren/odd-name-1").stdout.split()) == 1


async def test_images_that_cannot_be_are_said_with_the_remedy(
    open_provider: Open, state_dir: Path, docker_engine: DockerEngine
) -> None:
    provider = open_provider()
    with pytest.raises(InvalidRequest, match="'host'") as host:
        await provider.create(SandboxSpec(image="host"))
    assert "oci" in host.value.remedy
    for name in ("no-such-image", "NotEven/a-Name"):
        with pytest.raises(ImageNotFound, match=name) as unknown:
            await provider.create(SandboxSpec(image=name))
        assert "docker pull" in unknown.value.remedy
    assert remains(state_dir, docker_engine) == NOTHING


# What the engine shows.


async def test_the_engine_shows_an_owned_silent_container_without_secrets(
    open_provider: Open, docker_engine: DockerEngine
) -> None:
    provider = open_provider()
    box = await provider.create(SandboxSpec(env={"TOKEN": "hunter2-secret"}))
    found = inspected(docker_engine, box.id)
    host = found["HostConfig"]
    try:
        assert found["Config"]["Labels"]["warren.sandbox"] == box.id
        assert found["Config"]["Labels"]["warren.state"]
        assert host["LogConfig"]["Type"] == "none"
        assert host["RestartPolicy"]["Name"] == "no"
        assert host["Memory"] == host["MemorySwap"] == 512 * 1024 * 1024
        assert (host["CapDrop"], sorted(host["CapAdd"])) == (["ALL"], ["KILL", "SETGID", "SETPCAP", "SETUID"])
        assert (host["NetworkMode"], host["ReadonlyRootfs"], host["Privileged"]) == ("none", True, False)
        assert "hunter2-secret" not in json.dumps(found)
        assert await sh(box, "echo $TOKEN") == "hunter2-secret\n"
    finally:
        await provider.destroy(box.id)


async def test_no_process_of_a_sandbox_is_root_of_the_host(open_provider: Open, state_dir: Path) -> None:
    provider = open_provider()
    box = await provider.create(SPEC)
    process = await box.start(Command(shell="sleep 60 & echo up; sleep 60"))
    assert (await anext(process.output())).data == b"up\n"
    record = record_of(state_dir, box.id)
    pids = Hierarchies.here().of(record.pid, record.container).pids()
    uids = {uid for pid in pids for uid in Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[:4]}
    await provider.destroy(box.id)
    assert len(pids) >= 4
    assert min(map(int, uids)) > 100_000


async def test_user_code_cannot_reach_the_agents_socket_or_end_it(open_provider: Open, state_dir: Path) -> None:
    provider = open_provider()
    box = await provider.create(SPEC)
    try:
        assert "Permission denied" in await sh(box, "ls /.warren/run")
        assert "not permitted" in await sh(box, "kill -9 1")
        assert "Read-only" in await sh(box, "echo x >> /.warren/agent") + await sh(box, "echo x 2>&1 > /etc/passwd")
        assert (await sh(box, "cat /etc/resolv.conf; ls -A /sys/fs /proc/pressure; hostname")).endswith("sandbox\n")
        table = await sh(box, "cat /proc/self/mountinfo")
        assert str(state_dir) not in table
        assert " cgroup " not in table
    finally:
        await provider.destroy(box.id)


async def test_a_terminal_belongs_to_the_user(open_provider: Open) -> None:
    provider = open_provider()
    box = await provider.create(SPEC)
    try:
        process = await box.start(Command(shell="stat -c %U $(tty); echo x > $(tty)", terminal=TerminalSize()))
        assert "sandboxuser" in (await process.wait()).output
    finally:
        await provider.destroy(box.id)


async def test_two_sandboxes_have_different_uids(open_provider: Open) -> None:
    provider = open_provider()
    boxes = [await provider.create(SPEC) for _ in range(2)]
    uids = {await sh(box, "id -u; id -g") for box in boxes}
    for box in boxes:
        await provider.destroy(box.id)
    assert len(uids) == 2


async def test_the_hosts_mount_table_is_as_it_was_once_the_sandbox_runs(open_provider: Open, state_dir: Path) -> None:
    provider = open_provider()
    box = await provider.create(SPEC)
    assert mounts_below(state_dir) == []
    await provider.destroy(box.id)


# Limits.


async def test_running_out_of_memory_is_told_and_survived(open_provider: Open) -> None:
    provider = open_provider()
    box = await provider.create(SandboxSpec(limits=Limits(memory_mb=64)))
    try:
        assert (await box.exec(Command(shell="head -c 200m /dev/zero | tail"))).reason is Reason.OOM
        assert await sh(box, "echo alive") == "alive\n"
    finally:
        await provider.destroy(box.id)


async def test_without_loop_devices_a_tmpfs_takes_the_disks_place_and_says_so(open_provider: Open) -> None:
    provider = open_provider()
    await provider.destroy((await provider.create(SPEC)).id)
    provider.disks.why_not_loop = "the test says so"
    reports = {check.name: check for check in check_capabilities(provider)}
    assert {"snapshots", "volumes"} < reports.keys()
    assert all("the test says so" in reports[name].found for name in ("snapshots", "volumes"))
    box = await provider.create(SandboxSpec(limits=Limits(memory_mb=128)))
    try:
        assert "tmpfs" in box.isolation.layers[Layer.DISK_LIMIT]
        full = await box.exec(Command(shell="head -c 200m /dev/zero > /workspace/much"))
        assert "No space left" in full.stderr
        assert await sh(box, "echo alive") == "alive\n"
    finally:
        await provider.destroy(box.id)


async def test_a_user_namespace_that_is_required_fails_closed(
    open_provider: Open, state_dir: Path, docker_engine: DockerEngine
) -> None:
    with pytest.raises(IsolationUnavailable, match="user_namespace"):
        await open_provider().create(SandboxSpec(require=frozenset({Layer.USER_NAMESPACE})))
    assert remains(state_dir, docker_engine) == NOTHING


# State that lasts.


async def test_a_volume_is_shared_with_sandboxes_of_oci(
    saving: DockerProvider, state_dir: Path, image_store: ImageStore
) -> None:
    oci = OciProvider(state_dir, image_store, BIN)
    volume, providers = new_volume_id(), (saving, oci)
    await saving.volume_images.make(volume, 16)
    boxes = [await provider.create(SPEC) for provider in providers]
    try:
        for provider, box in zip(providers, boxes, strict=True):
            await box.mkdir("/workspace/data")
            await provider.attach(box.id, VolumeMount(volume, "data", "/workspace/data", False))
            await sh(box, f"echo {provider.name} >> /workspace/data/all; chmod 600 /workspace/data/all")
        for box in boxes:
            assert await sh(box, "cd data; cat all; stat -c %U all") == "docker\noci\nsandboxuser\n"
    finally:
        await oci.destroy(boxes[1].id)
        await oci.close()
        await saving.destroy(boxes[0].id)
        await saving.volume_images.delete(volume)


FILES = """set -e; cd /workspace
echo x > x; ln x y; ln -s /etc/passwd link; mkfifo pipe; chmod 640 x; truncate -s 40M sparse; echo kept > /srv/data/kept
python3 -c 'import os; os.setxattr("x", "user.note", b"kept")'
"""
LOOK = """cd /workspace; stat -c '%n %U %G %a %h %s %F' x y link sparse pipe; cat /srv/data/kept; id -un
python3 -c 'import os; print(os.getxattr("y", "user.note").decode())'"""


def said_of(image: Path, *command: str) -> str:
    return subprocess.run([*command, image], capture_output=True, text=True, check=True).stdout


def with_volume(engine: DockerEngine, name: str, *paths: str) -> str:
    """An image that wants volumes."""
    base = engine.docker("images", "--quiet", "warren/base").stdout.split()[0]
    made = engine.docker("create", base, "/x").stdout.strip()
    engine.docker("commit", *(word for path in paths for word in ("--change", f"VOLUME {path}")), made, name)
    engine.docker("rm", "--volumes", made)
    return name


@pytest.fixture
async def saving(open_provider: Open) -> AsyncIterator[DockerProvider]:
    provider = open_provider()
    yield provider
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    for name in await provider.saved_disks.list():
        await provider.saved_disks.delete(name)


async def test_a_saved_disk_begins_a_sandbox_with_other_uids_limits_and_volumes(
    saving: DockerProvider, docker_engine: DockerEngine
) -> None:
    await saving.destroy((await saving.create(SPEC)).id)
    first = with_volume(docker_engine, "saved:1", "/srv/data")
    second = with_volume(docker_engine, "saved:2", "/srv/another", "/srv/data")
    box = await saving.create(SandboxSpec(image=first, limits=Limits(memory_mb=128, disk_mb=64)))
    assert await sh(box, FILES) == ""
    await saving.save_disk(box.id, "kinds")
    other = await saving.create(SandboxSpec(image=second, limits=Limits(memory_mb=256, disk_mb=64), disk="kinds"))
    assert await sh(other, LOOK) == await sh(box, LOOK)
    assert "x sandboxuser sandboxuser 640 2 2 regular file" in await sh(other, LOOK)
    assert await sh(other, "id -u") != await sh(box, "id -u")
    assert await sh(other, "ls -A /srv/another; grep MemTotal /proc/meminfo | tr -s ' '") == "MemTotal: 262144 kB\n"
    assert other.isolation.layers.keys() == box.isolation.layers.keys()
    image = saving.disks.directory / "saved/docker/kinds.img"
    assert "User:  1000" in said_of(image, "debugfs", "-R", "stat workspace/x")
    said_of(image, "e2fsck", "-fn")


async def test_a_full_disk_begins_another_sandbox_if_what_is_ours_fits(saving: DockerProvider, tmp_path: Path) -> None:
    spec = SandboxSpec(limits=Limits(disk_mb=16))
    box = await saving.create(spec)
    assert "No space left" in await sh(box, "cat /dev/zero > /workspace/full")
    await saving.save_disk(box.id, "full")
    other = await saving.create(replace(spec, disk="full"))
    assert await sh(other, "stat -c %s /workspace/full") == await sh(box, "stat -c %s /workspace/full")
    larger = tmp_path / "agent"
    larger.write_bytes((BIN / "warren-agent").read_bytes() + bytes(MIB))
    saving._programs = replace(saving._programs, agent=larger)
    with pytest.raises(NoSpace) as caught:
        await saving.create(replace(spec, disk="full"))
    assert caught.value.remedy == "ask for a larger disk_mb"
    another = await saving.create(SandboxSpec(limits=Limits(disk_mb=32), disk="full"))
    assert await sh(another, "stat -c %s /workspace/full") == await sh(box, "stat -c %s /workspace/full")


@pytest.mark.parametrize("step", ["disk", "files", "container", "seal", "checked"])
async def test_a_create_from_a_saved_disk_that_fails_leaves_nothing(
    saving: DockerProvider, open_provider: Open, state_dir: Path, docker_engine: DockerEngine, step: str
) -> None:
    box = await saving.create(SPEC)
    await saving.save_disk(box.id, "begin")
    await saving.destroy(box.id)
    with pytest.raises(Stop):
        await open_provider(at(step, stop)).create(replace(SPEC, disk="begin"))
    assert remains(state_dir, docker_engine) == NOTHING
    assert await saving.saved_disks.list() == ["begin"]


async def test_a_worker_that_is_killed_while_it_saves_leaves_nothing_and_the_sandbox_goes_on(
    saving: DockerProvider, state_dir: Path, docker_engine: DockerEngine
) -> None:
    box = await saving.create(SPEC)
    await box.write("/workspace/mine", b"kept")
    await box.close()
    saves = KILLED.replace("create(spec)", f"save_disk({box.id!r}, 'disk')")
    await killed_worker(state_dir, docker_engine, "disk frozen", saves)
    again = await saving.adopt(box.id)
    assert await sh(again, "cat /workspace/mine") == "kept"
    assert await saving.saved_disks.list() == []
    await saving.save_disk(box.id, "disk")
    other = await saving.create(replace(SPEC, disk="disk"))
    assert await sh(other, "cat /workspace/mine") == "kept"
    assert [path.name for path in (saving.disks.directory / "saved/docker").glob("[!.]*")] == ["disk.img"]


async def test_without_user_namespaces_sandboxes_work_but_are_not_saved(saving: DockerProvider) -> None:
    saving._maps_ids = False
    box = await saving.create(SPEC)
    assert Capability.SNAPSHOTS not in saving.capabilities
    assert [check.name for check in check_capabilities(saving)] == ["capabilities", "snapshots"]
    for refused in (saving.save_disk(box.id, "none"), saving.create(replace(SPEC, disk="none"))):
        with pytest.raises(InvalidRequest, match="max_user_namespaces"):
            await refused
    await box.write("/workspace/mine", b"kept")
    assert await sh(box, "cat mine; stat -c %U mine") == "keptsandboxuser\n"


# What remains.


class Stop(Exception):
    pass


def at(step: str, then: Callable[[], None]) -> Callable[[str], None]:
    return lambda now: then() if now == step else None


def stop() -> None:
    raise Stop


@pytest.mark.parametrize("step", STEPS)
async def test_a_create_that_fails_at_any_step_leaves_nothing(
    open_provider: Open, state_dir: Path, docker_engine: DockerEngine, step: str
) -> None:
    provider = open_provider(at(step, stop))
    with pytest.raises(Stop):
        await provider.create(SPEC)
    assert remains(state_dir, docker_engine) == NOTHING


@pytest.mark.parametrize("step", STEPS)
async def test_a_create_that_is_cancelled_at_any_step_leaves_nothing(
    open_provider: Open, state_dir: Path, docker_engine: DockerEngine, step: str
) -> None:
    provider = open_provider(at(step, lambda: task.cancel() and None))
    task = asyncio.ensure_future(provider.create(SPEC))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert remains(state_dir, docker_engine) == NOTHING


@pytest.mark.parametrize("after_s", [0.02, 0.04, 0.06, 0.08, 0.1, 0.12])
async def test_a_create_that_is_cancelled_in_the_middle_of_a_request_leaves_nothing(
    open_provider: Open, state_dir: Path, docker_engine: DockerEngine, after_s: float
) -> None:
    provider = open_provider()
    task = asyncio.ensure_future(provider.create(SPEC))
    await asyncio.sleep(after_s)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await provider.destroy((await task).id)
    assert remains(state_dir, docker_engine) == NOTHING


KILLED = """
import asyncio, os, sys
from pathlib import Path
from warren.model.spec import SandboxSpec
from warren.images.store.store import ImageStore
from warren.sandboxes.providers.docker import DockerProvider

state, bin_dir, url, step = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
fault = lambda now: os.kill(os.getpid(), 9) if now == step else None
spec = SandboxSpec(ephemeral=step == "none")
asyncio.run(DockerProvider(state, ImageStore(state), bin_dir, url, fault=fault).create(spec))
os.kill(os.getpid(), 9)
"""


async def killed_worker(state_dir: Path, engine: DockerEngine, step: str, program: str = KILLED) -> None:
    argv = [sys.executable, "-c", program, str(state_dir), str(BIN), engine.url, step]
    environment = {**os.environ, "PYTHONPATH": str(BIN.parents[1])}
    died = await asyncio.to_thread(subprocess.run, argv, env=environment, check=False)
    assert died.returncode == -signal.SIGKILL


@pytest.mark.parametrize("step", STEPS)
async def test_what_a_killed_worker_leaves_at_any_step_is_listed_and_can_be_destroyed(
    open_provider: Open, state_dir: Path, docker_engine: DockerEngine, step: str
) -> None:
    await killed_worker(state_dir, docker_engine, step)
    provider = open_provider()
    left = await provider.list_ids()
    assert len(left) == (0 if step == "directory" else 1)
    for sandbox_id in left:
        await provider.destroy(sandbox_id)
    assert remains(state_dir, docker_engine) == NOTHING


@pytest.mark.parametrize("step", ["container", "started", "none"])
async def test_a_sweep_takes_what_a_killed_worker_left_unfinished_or_ephemeral_and_nothing_else(
    open_provider: Open, state_dir: Path, docker_engine: DockerEngine, step: str
) -> None:
    provider = open_provider()
    kept = await provider.create(SPEC)
    await killed_worker(state_dir, docker_engine, step)
    while len(await provider.list_ids()) > 1:  # an ephemeral one takes a moment to end by itself
        await provider.sweep()
    assert await provider.sweep() == 0
    assert await sh(kept, "echo alive") == "alive\n"
    await provider.destroy(kept.id)
    assert remains(state_dir, docker_engine) == NOTHING


async def test_a_container_removed_behind_our_back_is_lost_and_can_be_destroyed(
    open_provider: Open, state_dir: Path, docker_engine: DockerEngine
) -> None:
    provider = open_provider()
    box = await provider.create(SPEC)
    docker_engine.docker("rm", "--force", f"warren-{box.id}")
    assert (await box.exec(Command(shell="true"))).reason is Reason.SANDBOX_LOST
    with pytest.raises(SandboxLost):
        await provider.adopt(box.id)
    await provider.destroy(box.id)
    assert remains(state_dir, docker_engine) == NOTHING


async def test_a_container_whose_directory_is_gone_is_listed_by_its_labels(
    open_provider: Open, state_dir: Path, docker_engine: DockerEngine
) -> None:
    provider = open_provider()
    box = await provider.create(SPEC)
    index = record_of(state_dir, box.id).uid_index
    shutil.rmtree(state_dir / "docker" / box.id)
    assert list(await provider.list_ids()) == [box.id]
    await provider.destroy(box.id)
    (CLAIMS / str(index)).unlink()  # a claim without its owner is anybody's to take
    assert remains(state_dir, docker_engine) == NOTHING


# The engine goes away.


@pytest.fixture
def mortal_engine() -> Iterator[DockerEngine]:
    engine = DockerEngine()
    try:
        engine.start()
        yield engine
    finally:
        if engine.docker("version", check=False).returncode != 0:
            engine.start()  # only an engine can remove what it left running
        engine.close()


async def test_sandboxes_live_on_and_are_adopted_while_the_engine_is_away_and_after_it_came_back(
    mortal_engine: DockerEngine, state_dir: Path, image_store: ImageStore, tmp_path: Path
) -> None:
    spec = SandboxSpec(image=scratch_image(mortal_engine, tmp_path))
    provider = DockerProvider(state_dir, image_store, BIN, mortal_engine.url)
    lives, dies = await provider.create(spec), await provider.create(spec)
    await lives.write("kept", b"before")
    mortal_engine.kill()

    assert b"".join([part async for part in lives.read("kept")]) == b"before"
    await (await provider.adopt(lives.id)).close()
    assert set(await provider.list_ids()) == {lives.id, dies.id}
    with pytest.raises(ProviderUnavailable, match="does not answer") as away:
        await provider.create(spec)
    assert "DOCKER_HOST" in away.value.remedy
    with pytest.raises(ProviderUnavailable):
        await provider.destroy(dies.id)
    assert dies.id in await provider.list_ids()

    mortal_engine.start()
    await provider.destroy(dies.id)
    again = DockerProvider(state_dir, image_store, BIN, mortal_engine.url)
    adopted = await again.adopt(lives.id)
    assert b"".join([part async for part in adopted.read("kept")]) == b"before"
    await again.destroy(lives.id)
    await provider.close()
    await again.close()
    assert remains(state_dir, mortal_engine) == NOTHING


async def test_no_engine_is_said_with_the_remedy(state_dir: Path, image_store: ImageStore, tmp_path: Path) -> None:
    provider = DockerProvider(state_dir, image_store, BIN, f"unix://{tmp_path}/none.sock")
    with pytest.raises(ProviderUnavailable, match="does not answer") as caught:
        await provider.create(SPEC)
    assert "systemctl start docker" in caught.value.remedy
    await provider.close()


async def test_a_missing_program_is_named_with_its_remedy(
    state_dir: Path, image_store: ImageStore, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    with pytest.raises(ProviderUnavailable, match="warren-launch is missing"):
        await DockerProvider(state_dir, image_store, tmp_path, docker_engine.url).create(SPEC)
