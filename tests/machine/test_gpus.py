"""Sandboxes with a graphics processor, for which ordinary devices stand in: nodes, rules, leases, libraries."""

import asyncio
import os
import re
import signal
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from changed_launcher import change_launcher

import warren
from warren.images.store.store import ImageStore
from warren.model.capability import Capability
from warren.model.errors import InvalidRequest, IsolationUnavailable, NoCapacity, ProviderUnavailable
from warren.model.operations import Command
from warren.model.spec import Limits, SandboxSpec
from warren.sandboxes.host.gpus import Places
from warren.sandboxes.providers.docker import DockerProvider
from warren.sandboxes.providers.gpu_access import ALL, GpuAccess
from warren.sandboxes.providers.oci import OciProvider
from warren.sandboxes.providers.oci_launcher import OciLauncher

BIN = Path(warren.__file__).parent / "bin"
PLAIN = SandboxSpec(image="host", limits=Limits(cpus=2))
ONE = replace(PLAIN, gpus=("any",))
LOOP_CONTROL = os.makedev(10, 237)  # a device that no sandbox may open
OPEN = "import os, sys; os.open(sys.argv[1], os.O_RDWR)"

pytestmark = pytest.mark.anyio


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "dev").mkdir()
    (tmp_path / "lib").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        os.mknod(tmp_path / "dev" / name, stat.S_IFCHR | 0o600, LOOP_CONTROL)
    (tmp_path / "lib" / "libcuda.so.1").write_bytes(b"a library")
    return Places((), tmp_path / "dev", tmp_path, (tmp_path / "lib",), (), ldconfig=False)


class Machine:
    def __init__(self, state: Path, images: ImageStore, places: Places, leases: Path) -> None:
        self.state, self.images, self.places, self.leases = state, images, places, leases
        self.opened: list[OciProvider] = []

    def provider(self, *allowed: str, runtime: str = "direct") -> OciProvider:
        access = GpuAccess(allowed or (ALL,), places=self.places, directory=self.leases)
        self.opened.append(OciProvider(self.state, self.images, BIN, runtime, gpus=access))
        return self.opened[-1]


@pytest.fixture
async def machine(state_dir: Path, image_store: ImageStore, places: Places, tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(state_dir, image_store, places, tmp_path / "leases")
    yield machine
    for provider in machine.opened:
        for sandbox_id in await provider.list_ids():
            await provider.destroy(sandbox_id)
        await provider.close()


@pytest.mark.parametrize("runtime", ["direct", "crun", "runc"])
async def test_a_sandbox_has_its_nodes_rules_and_libraries_and_a_neighbour_none(machine: Machine, runtime: str) -> None:
    provider = machine.provider(runtime=runtime)
    sandbox, neighbour = await provider.create(replace(PLAIN, gpus=("1",))), await provider.create(PLAIN)
    libraries = "cat /.warren/gpu/lib/libcuda.so.1; echo; touch /.warren/gpu/lib/x; printenv LD_LIBRARY_PATH"
    script = f"ls /dev | grep nvidia; {libraries}"
    seen = await sandbox.exec(Command(argv=("sh", "-c", script)))
    assert seen.stdout.split("\n")[:5] == ["nvidia-uvm", "nvidia1", "nvidiactl", "a library", "/.warren/gpu/lib"]
    assert "Read-only file system" in seen.stderr
    opened = await sandbox.exec(Command(argv=("python3", "-c", OPEN, "/dev/nvidia1")))
    assert (opened.exit_code, opened.stderr) == (0, "")
    assert sandbox.isolation.gpus.keys() == {"1"}
    assert re.search(r"/dev/nvidia1 10:237, .*; \d+ device (rules|program)", sandbox.isolation.gpus["1"])
    seen = await neighbour.exec(
        Command(argv=("sh", "-c", "ls /dev | grep nvidia; ls /.warren/gpu; printenv LD_LIBRARY_PATH"))
    )
    assert seen.stdout == ""
    assert neighbour.isolation.gpus == {}


async def test_the_rules_of_the_cgroup_keep_the_node_shut_for_others(machine: Machine) -> None:
    """A node alone opens nothing: the bundle of a sandbox without a processor has no rule for it."""

    class CarelessLauncher(OciLauncher):
        def argv(self, *arguments: object, **options: object) -> list[str]:
            argv = super().argv(*arguments, **options)  # type: ignore[arg-type]
            at = argv.index("--memory")
            return [*argv[:at], "--device", f"{machine.places.dev / 'nvidia0'}:nvidia0", *argv[at:]]

    provider = OciProvider(machine.state, machine.images, BIN, "direct")
    change_launcher(provider, CarelessLauncher)
    machine.opened.append(provider)
    sandbox = await provider.create(PLAIN)
    refused = await sandbox.exec(Command(argv=("python3", "-c", OPEN, "/dev/nvidia0")))
    assert "Operation not permitted" in refused.stderr


async def test_a_sandbox_with_more_than_it_was_to_have_is_not_handed_out(machine: Machine) -> None:
    class CarelessLauncher(OciLauncher):
        def argv(self, *arguments: object, **options: object) -> list[str]:
            argv = super().argv(*arguments, **options)  # type: ignore[arg-type]
            at = argv.index("--memory")
            return [*argv[:at], "--device", f"{machine.places.dev / 'nvidia1'}:nvidia1", *argv[at:]]

    access = GpuAccess((ALL,), places=machine.places, directory=machine.leases)
    provider = OciProvider(machine.state, machine.images, BIN, "direct", gpus=access)
    change_launcher(provider, CarelessLauncher)
    machine.opened.append(provider)
    with pytest.raises(IsolationUnavailable, match="the sandbox has /dev/nvidia1"):
        await provider.create(replace(PLAIN, gpus=("0",)))
    assert provider.list_gpus()[1] == ["0", "1"]


async def test_two_processes_share_what_there_is(machine: Machine) -> None:
    provider, other = machine.provider(), machine.provider()
    first, second = await provider.create(ONE), await other.create(ONE)
    assert {*first.isolation.gpus, *second.isolation.gpus} == {"0", "1"}
    for asked in (provider, other):
        with pytest.raises(NoCapacity, match="no free GPU: 1 asked for, 0 of 2 are free"):
            await asked.create(ONE)
    await provider.destroy(first.id)
    assert (await other.create(replace(PLAIN, gpus=tuple(first.isolation.gpus)))).isolation.gpus


async def test_an_adopted_sandbox_keeps_its_own_and_a_dead_one_loses_it(machine: Machine) -> None:
    made = await machine.provider().create(replace(PLAIN, gpus=("0", "1")))
    provider = machine.provider()
    adopted = await provider.adopt(made.id)
    assert adopted.isolation.gpus.keys() == {"0", "1"}
    with pytest.raises(NoCapacity):
        await provider.create(ONE)
    record = provider.load_record(made.id)
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    while record.alive():
        await asyncio.sleep(0.01)
    assert (await provider.create(ONE)).isolation.gpus.keys() == {"0"}
    await provider.destroy(made.id)
    assert provider.list_gpus() == (["0", "1"], ["1"])


async def test_a_create_that_fails_gives_back_what_it_had(machine: Machine) -> None:
    def fault(step: str) -> None:
        if step == "launched":
            raise OSError(5, "broken")

    access = GpuAccess((ALL,), places=machine.places, directory=machine.leases)
    provider = OciProvider(machine.state, machine.images, BIN, "direct", gpus=access, fault=fault)
    machine.opened.append(provider)
    with pytest.raises(ProviderUnavailable):
        await provider.create(ONE)
    assert provider.list_gpus()[1] == ["0", "1"]


async def test_what_is_not_allowed_or_not_complete_is_refused_with_the_reason(machine: Machine) -> None:
    forbidden = OciProvider(machine.state, machine.images, BIN, "direct")
    machine.opened.append(forbidden)
    with pytest.raises(InvalidRequest, match="does not have the capability gpu") as refused:
        await forbidden.create(ONE)
    assert "the operator allows GPUs with the option gpus" in refused.value.remedy
    with pytest.raises(InvalidRequest, match="there is no GPU '1' for sandboxes here"):
        await machine.provider("0").create(replace(PLAIN, gpus=("1",)))
    (machine.places.dev / "nvidia-uvm").unlink()
    provider = machine.provider()
    assert Capability.GPU in provider.capabilities
    with pytest.raises(ProviderUnavailable, match=r"nvidia-modprobe -u -c=0"):
        await provider.create(ONE)
    assert await provider.list_ids() == []


async def test_an_engine_that_cannot_give_one_is_refused(machine: Machine, places: Places) -> None:
    provider = DockerProvider(machine.state, machine.images, BIN, gpus=GpuAccess((ALL,), places=places))
    provider._runtime = "runc by docker 29"  # as after a look at an engine, which says nothing of CDI or nvidia
    try:
        with pytest.raises(ProviderUnavailable, match="neither CDI nor the runtime nvidia"):
            await provider.create(ONE)
    finally:
        await provider.close()
