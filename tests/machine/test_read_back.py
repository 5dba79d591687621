"""A runtime that leaves out a part of what it was asked for: the sandbox is not handed out, and the layer is named."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from changed_launcher import change_launcher

import warren
from warren.images.store.store import ImageStore
from warren.model.errors import IsolationUnavailable
from warren.model.operations import Command
from warren.model.spec import WRITABLE, Layer, SandboxSpec
from warren.sandboxes.providers.oci import OciProvider
from warren.sandboxes.providers.oci_launcher import OciLauncher

BIN = Path(warren.__file__).parent / "bin"
SPEC = SandboxSpec(image="host")

pytestmark = pytest.mark.anyio

Config = dict[str, Any]
Weaken = Callable[[Config], None]


class WeakLauncher(OciLauncher):
    """Asks its runtime for less than the spec says, as a runtime with a fault would give."""

    weaken: Weaken = staticmethod(lambda config: None)
    without_options: tuple[str, ...] = ()

    def _oci_config(self, *arguments: Any) -> str:
        config = json.loads(super()._oci_config(*arguments))
        self.weaken(config)
        return json.dumps(config)

    def argv(self, *arguments: Any, **options: Any) -> list[str]:
        argv = super().argv(*arguments, **options)
        for name in self.without_options:
            at = argv.index(name)
            del argv[at : at + 2]
        return argv


class WeakProvider(OciProvider):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.launcher = change_launcher(self, WeakLauncher)


@pytest.fixture(params=["direct"])
async def provider(
    state_dir: Path, image_store: ImageStore, request: pytest.FixtureRequest
) -> AsyncIterator[WeakProvider]:
    provider = WeakProvider(state_dir, image_store, BIN, request.param)
    await provider.runtime_report()
    yield provider
    assert await provider.list_ids() == []
    await provider.close()


def allow(name: str, **rule: Any) -> Weaken:
    def weaken(config: Config) -> None:
        shared = config["linux"]["seccomp"]
        allowed = {"names": [name], "action": "SCMP_ACT_ALLOW", **rule}
        config["linux"]["seccomp"] = {**shared, "syscalls": [*shared["syscalls"], allowed]}

    return weaken


def equal(index: int, value: int) -> Config:
    return {"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_EQ"}


def without_mask(path: str) -> Weaken:
    return lambda config: config["linux"]["maskedPaths"].remove(path)


def with_mount(path: str, *left_out: str, **changes: Any) -> Weaken:
    def weaken(config: Config) -> None:
        (mount,) = (mount for mount in config["mounts"] if mount["destination"] == path)
        mount["options"] = [word for word in mount["options"] if word.partition("=")[0] not in left_out]
        mount.update(changes)

    return weaken


def resource(kind: str, **values: int) -> Weaken:
    return lambda config: config["linux"]["resources"][kind].update(values)


def without_filter(config: Config) -> None:
    del config["linux"]["seccomp"]


def with_sysfs(config: Config) -> None:
    config["mounts"].append(
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "nodev", "ro"]}
    )


WEAKENED: dict[str, tuple[Weaken, Layer]] = {
    "no filter": (without_filter, Layer.SECCOMP),
    "a filter with one call more": (allow("mount"), Layer.SYSTEM_CALLS),
    "a filter with one family of sockets more": (allow("socket", args=[equal(0, 40)]), Layer.SYSTEM_CALLS),
    "a filter with one protocol more": (allow("socket", args=[equal(0, 16), equal(2, 15)]), Layer.SYSTEM_CALLS),
    "a filter that lets terminals be typed into": (allow("ioctl", args=[equal(1, 0x5412)]), Layer.SYSTEM_CALLS),
    "a file of /proc without its mask": (without_mask("/proc/keys"), Layer.MASKED_PATHS),
    "a directory of /proc without its mask": (without_mask("/proc/sysvipc"), Layer.MASKED_PATHS),
    "a file of /proc that no list names, without its mask": (without_mask("/proc/execdomains"), Layer.MASKED_PATHS),
    "/proc/sys that can be written": (
        lambda config: config["linux"]["readonlyPaths"].remove("/proc/sys"),
        Layer.MASKED_PATHS,
    ),
    "/sys, read-only": (with_sysfs, Layer.MASKED_PATHS),
    "a tmpfs for suid programs and devices": (with_mount("/dev/shm", "nosuid", "nodev"), Layer.MOUNT_FLAGS),
    "a tmpfs without a size": (with_mount("/dev/shm", "size"), Layer.DISK_LIMIT),
    "a tmpfs without a number of inodes": (with_mount("/dev/shm", "nr_inodes"), Layer.DISK_LIMIT),
    "twice the memory": (resource("memory", limit=1 << 30, swap=1 << 30), Layer.MEMORY_LIMIT),
    "more cpu": (resource("cpu", quota=60_000), Layer.CPU_LIMIT),
    "more processes": (resource("pids", limit=10_000), Layer.PIDS_LIMIT),
}


# `direct` loads a filter that was compiled before, whatever the configuration says, and knows no sysfs.
@pytest.mark.parametrize(
    ("provider", "name"),
    [
        *(("crun", name) for name in WEAKENED),
        *(("direct", name) for name in WEAKENED if "filter" not in name and not name.startswith("/sys,")),
    ],
    indirect=["provider"],
)
async def test_a_sandbox_that_lacks_a_part_is_not_handed_out(provider: WeakProvider, name: str) -> None:
    weaken, layer = WEAKENED[name]
    provider.launcher.weaken = weaken
    with pytest.raises(IsolationUnavailable, match=rf"\b{layer}: "):
        await provider.create(SPEC)


@pytest.mark.parametrize("option", ["--nofile", "--fsize"])
async def test_a_sandbox_without_a_limit_of_its_processes_is_not_handed_out(
    provider: WeakProvider, option: str
) -> None:
    provider.launcher.without_options = (option,)
    with pytest.raises(IsolationUnavailable, match=r"\brlimits: "):
        await provider.create(SPEC)


async def test_a_sandbox_of_an_older_version_is_taken_over_with_what_it_was_made_with(
    provider: WeakProvider, state_dir: Path, image_store: ImageStore
) -> None:
    provider.launcher.weaken = without_mask("/proc/keys")
    provider.promised = provider.promised - {Layer.MASKED_PATHS}  # type: ignore[misc]
    made = await provider.create(SPEC)
    later = OciProvider(state_dir, image_store, BIN)
    try:
        adopted = await later.adopt(made.id)
        assert adopted.isolation.missing[Layer.MASKED_PATHS] == "/proc/keys is not masked"
    finally:
        await later.destroy(made.id)
        await later.close()


async def test_reading_does_not_disturb_a_running_command(provider: WeakProvider) -> None:
    box = await provider.create(SPEC)
    try:
        running = await box.start(Command(shell="for i in $(seq 40); do echo $i; sleep 0.02; done"))
        record = provider.load_record(box.id)
        assert record is not None
        for _ in range(200):
            found = await provider._read_isolation(record, provider._cgroup(record))
            assert found.missing == box.isolation.missing
        result = await running.wait()
        assert (result.exit_code, result.stdout.split()) == (0, [str(number) for number in range(1, 41)])
    finally:
        await provider.destroy(box.id)


async def test_every_place_that_a_command_can_write_to_is_on_the_disk_or_has_a_limit(provider: WeakProvider) -> None:
    box = await provider.create(SPEC)
    script = "cut -d' ' -f5 /proc/self/mountinfo | while read -r at; do touch $at/.new && echo $at; done 2>/dev/null"
    try:
        places = (await box.exec(Command(shell=script))).stdout.split()
        assert set(places) == {*WRITABLE, "/dev/shm"}
    finally:
        await provider.destroy(box.id)
