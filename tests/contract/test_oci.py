"""What only the oci provider does: with each runtime, nothing remains when create is cut short anywhere."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from contract.provider_kinds import BIN, EACH_RUNTIME, RUNTIMES

from warren.images.store.store import ImageStore
from warren.model.errors import InvalidRequest, ProviderUnavailable
from warren.model.operations import Command, Reason
from warren.model.spec import Limits, SandboxSpec
from warren.sandboxes.providers import oci_bundle
from warren.sandboxes.providers.oci import STEPS, OciProvider

pytestmark = pytest.mark.anyio


class Stop(Exception):
    pass


class Steps:
    """A fault hook: does something at one step, and sees which sandboxes there are on the way."""

    def __init__(self, state_dir: Path, step: str = "", then: Callable[[], object] = lambda: None) -> None:
        self.state_dir, self.step, self.then = state_dir, step, then
        self.seen: set[str] = set()

    def __call__(self, now: str) -> None:
        self.seen |= set(os.listdir(self.state_dir / "sandboxes"))
        if now == self.step:
            self.then()

    def remains(self) -> list[str]:
        """Whatever is left of the sandboxes seen. A cgroup can only be gone when its processes are."""
        state = str(self.state_dir)
        claims = [path for path in Path("/run/warren/uids").glob("[0-9]*") if _owner(path).startswith(state)]
        loops = [path for path in Path("/sys/block").glob("loop*/loop/backing_file") if state in _text(path)]
        programs = [path for path in Path("/proc").glob("[0-9]*/cmdline") if f"{state}/sandboxes" in _text(path)]
        folders = [path for path in self.state_dir.glob("*/*") if path.parent.name in ("sandboxes", "runtime")]
        folders = [path for path in (*folders, *self.state_dir.glob("runtime/*/*")) if path.name in self.seen]
        cgroups = [path for name in self.seen for path in _cgroups(name)]
        mounts = [line for line in _text(Path("/proc/self/mountinfo")).splitlines() if state in line]
        return [*map(str, (*claims, *loops, *programs, *folders, *cgroups)), *mounts]


def _cgroups(name: str) -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [path for path in (root / "warren" / name, *root.glob(f"*/warren/{name}")) if path.exists()]


def _owner(claim: Path) -> str:
    """Empty if there is no such claim any more: other processes of this machine have claims too."""
    try:
        return os.readlink(claim)
    except FileNotFoundError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def stop() -> None:
    raise Stop


OpenProvider = Callable[..., OciProvider]


@pytest.fixture
def open_provider(state_dir: Path, image_store: ImageStore) -> OpenProvider:
    def provider(fault: Callable[[str], None] = lambda step: None, runtime: str | None = None) -> OciProvider:
        return OciProvider(state_dir, image_store, BIN, runtime, fault=fault)

    return provider


SPEC = SandboxSpec(image="host")


@pytest.mark.parametrize("runtime", EACH_RUNTIME)
@pytest.mark.parametrize("step", STEPS)
async def test_a_create_that_fails_at_any_step_leaves_nothing(
    open_provider: OpenProvider, state_dir: Path, step: str, runtime: str
) -> None:
    steps = Steps(state_dir, step, stop)
    provider = open_provider(steps, runtime)
    with pytest.raises(Stop):
        await provider.create(SPEC)
    assert await provider.list_ids() == []
    await provider.close()
    assert steps.remains() == []


@pytest.mark.parametrize("runtime", EACH_RUNTIME)
@pytest.mark.parametrize("step", STEPS)
async def test_a_create_that_is_cancelled_at_any_step_leaves_nothing(
    open_provider: OpenProvider, state_dir: Path, step: str, runtime: str
) -> None:
    steps = Steps(state_dir, step, lambda: task.cancel())
    provider = open_provider(steps, runtime)
    task = asyncio.ensure_future(provider.create(SPEC))
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    assert await provider.list_ids() == []
    await provider.close()
    assert steps.remains() == []


KILLED = """
import asyncio, os, sys
from pathlib import Path
from warren.model.spec import SandboxSpec
from warren.images.store.store import ImageStore
from warren.sandboxes.providers.oci import OciProvider

state, bin_dir, step, runtime = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
fault = lambda now: os.kill(os.getpid(), 9) if now == step else None
asyncio.run(OciProvider(state, ImageStore(state), bin_dir, runtime, fault=fault).create(SandboxSpec(image="host")))
"""


@pytest.mark.parametrize("runtime", EACH_RUNTIME)
@pytest.mark.parametrize("step", STEPS)
async def test_what_a_killed_worker_leaves_at_any_step_is_listed_and_can_be_destroyed(
    open_provider: OpenProvider, state_dir: Path, step: str, runtime: str
) -> None:
    argv = [sys.executable, "-c", KILLED, str(state_dir), str(BIN), step, runtime]
    environment = {**os.environ, "PYTHONPATH": str(BIN.parents[1])}
    died = await asyncio.to_thread(subprocess.run, argv, env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    steps, provider = Steps(state_dir), open_provider()
    steps("restarted")
    left = await provider.list_ids()
    for sandbox_id in left:
        await provider.destroy(sandbox_id)
    await provider.close()
    assert len(left) == (0 if step == STEPS[0] else 1)
    assert steps.remains() == []


FROZEN = """
import asyncio, os, sys
from pathlib import Path
from warren.model.operations import Command
from warren.model.spec import SandboxSpec
from warren.images.store.store import ImageStore
from warren.sandboxes.providers.oci import OciProvider

async def main(state, bin_dir):
    provider = OciProvider(state, ImageStore(state), bin_dir, "direct")
    box = await provider.create(SandboxSpec(image="host"))
    process = await box.start(Command(shell="echo up; cat; exit 6", stdin=True), process_id="survivor")
    await anext(process.output())
    await process.write(b"sent before, ")
    await provider.freeze(box.id)
    os.kill(os.getpid(), 9)

asyncio.run(main(*map(Path, sys.argv[1:])))
"""


async def test_a_sandbox_stays_frozen_when_its_worker_is_killed_and_goes_on_with_the_next(
    open_provider: OpenProvider, state_dir: Path
) -> None:
    argv = [sys.executable, "-c", FROZEN, str(state_dir), str(BIN)]
    environment = {**os.environ, "PYTHONPATH": str(BIN.parents[1])}
    died = await asyncio.to_thread(subprocess.run, argv, env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    provider = open_provider()
    [sandbox_id] = await provider.list_ids()
    record = provider.load_record(sandbox_id)
    assert record is not None
    assert provider._cgroup(record).is_frozen()
    box = await provider.adopt(sandbox_id, paused_s=1.0)
    process = await box.process("survivor")
    await process.write(b"read later")
    await process.close_stdin()
    result = await process.wait()
    assert (result.stdout, result.exit_code) == ("up\nsent before, read later", 6)
    await provider.destroy(sandbox_id)
    await provider.close()


@pytest.mark.parametrize("step", ["uids", "record", "disk"])
async def test_what_a_killed_worker_leaves_is_swept_at_once_with_or_without_a_record(
    open_provider: OpenProvider, state_dir: Path, step: str
) -> None:
    argv = [sys.executable, "-c", KILLED, str(state_dir), str(BIN), step, "direct"]
    environment = {**os.environ, "PYTHONPATH": str(BIN.parents[1])}
    died = await asyncio.to_thread(subprocess.run, argv, env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    provider = open_provider()
    assert len(await provider.list_ids()) == 1
    assert await provider.sweep() == 1
    assert await provider.list_ids() == []


@pytest.mark.parametrize("runtime", EACH_RUNTIME)
@pytest.mark.parametrize("after_s", [0.001, 0.004, 0.008, 0.012, 0.018])
async def test_a_runtime_killed_in_the_middle_of_create_is_one_clear_error(
    open_provider: OpenProvider, state_dir: Path, runtime: str, after_s: float
) -> None:
    def kill_soon() -> None:
        asyncio.get_running_loop().call_later(after_s, kill_children)

    killed: list[int] = []

    def kill_children() -> None:
        for pid in _text(Path(f"/proc/self/task/{os.getpid()}/children")).split():
            if oci_bundle.BUNDLE in _text(Path(f"/proc/{pid}/cmdline")):  # this process may have other children
                os.kill(int(pid), signal.SIGKILL)
                killed.append(int(pid))

    await open_provider(runtime=runtime).runtime_report()
    steps = Steps(state_dir, "launch", kill_soon)
    provider = open_provider(steps, runtime)
    error = ""
    try:
        await provider.destroy((await provider.create(SPEC)).id)
    except ProviderUnavailable as exc:
        error = str(exc)
    # On a busy machine the runtime may have done its work before this process was given the time to kill it.
    assert (f"{runtime}, starting a sandbox" in error) == bool(killed)
    assert await provider.list_ids() == []
    await provider.close()
    assert steps.remains() == []


async def test_running_out_of_memory_is_told_and_survived(open_provider: OpenProvider) -> None:
    provider = open_provider()
    box = await provider.create(SandboxSpec(image="host", limits=Limits(memory_mb=64)))
    try:
        hog = await box.exec(Command(shell="head -c 200m /dev/zero | tail"))
        assert hog.reason is Reason.OOM
        assert (await box.exec(Command(shell="echo alive"))).stdout == "alive\n"
    finally:
        await provider.destroy(box.id)
        await provider.close()


async def test_the_hosts_devices_stay_the_hosts(open_provider: OpenProvider) -> None:
    """Runtimes give away what they find as stdio."""
    for runtime in RUNTIMES:
        provider = open_provider(runtime=runtime)
        await provider.destroy((await provider.create(SPEC)).id)
        await provider.close()
        assert [os.stat(f"/dev/{name}").st_uid for name in ("null", "zero", "tty")] == [0, 0, 0]


async def test_the_hosts_mount_table_does_not_grow(open_provider: OpenProvider) -> None:
    def mounts() -> set[str]:
        """Without those of networks and engines, which other tests make meanwhile."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return {line for line in lines if "/run/netns/" not in line and "docker" not in line}

    provider = open_provider()
    first = await provider.create(SPEC)  # where /run is on a disk, all sandboxes share a tmpfs there
    before = mounts()
    box = await provider.create(SPEC)
    assert mounts() <= before
    await provider.destroy(first.id)
    await provider.destroy(box.id)
    await provider.close()


async def test_two_sandboxes_share_no_host_uid(open_provider: OpenProvider) -> None:
    provider = open_provider()
    boxes = [await provider.create(SPEC) for _ in range(2)]
    maps = {(await box.exec(Command(shell="cat /proc/self/uid_map"))).stdout for box in boxes}
    for box in boxes:
        await provider.destroy(box.id)
    await provider.close()
    assert len(maps) == 2


async def test_the_report_says_which_runtime_and_why(open_provider: OpenProvider) -> None:
    report = await open_provider().runtime_report()
    assert [runtime.name for runtime in report.runtimes] == ["direct", "crun", "runc", "runsc"]
    assert report.chosen in RUNTIMES
    assert all(runtime.why for runtime in report.runtimes)


async def test_an_unknown_runtime_is_refused_by_name(open_provider: OpenProvider) -> None:
    with pytest.raises(InvalidRequest, match="'kata'"):
        open_provider(runtime="kata")


async def test_a_missing_program_is_named_with_its_remedy(
    state_dir: Path, image_store: ImageStore, tmp_path: Path
) -> None:
    with pytest.raises(ProviderUnavailable, match="warren-launch is missing"):
        await OciProvider(state_dir, image_store, tmp_path).create(SPEC)
