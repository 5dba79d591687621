"""Every provider under the contracts that it keeps.

A class is a contract with the hooks of a provider (provider_kinds.py), whose marks it has. The tests of what only one
provider does are in test_oci.py, test_e2b.py, test_agent.py and tests/machine/test_docker.py.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from contract import provider_kinds as kinds
from contract.contexts_contract import ContextsContract
from contract.files_contract import FilesContract
from contract.metrics_contract import KernelMetricsContract, MetricsContract
from contract.network_contract import NetworkContract
from contract.pause_contract import KernelPauseContract, PauseContract
from contract.provider_contract import ProviderContract
from contract.sandbox_contract import SandboxContract
from contract.saved_disks_contract import SavedDisksContract
from contract.view_contract import ViewContract
from contract.volumes_contract import VolumesContract
from docker_engine import DockerEngine
from e2b_far_side import FarSide

from warren.images.store.store import ImageStore
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import WarrenError
from warren.model.operations import Command
from warren.model.spec import SandboxSpec
from warren.sandboxes.network.egress import Egress
from warren.sandboxes.providers.docker import DockerProvider
from warren.sandboxes.providers.oci import OciProvider

pytestmark = pytest.mark.group_by("class")


class TestFakeProvider(kinds.FakeHooks, ProviderContract):
    pass


class TestFakeSavedDisks(kinds.SavingFakeHooks, SavedDisksContract):
    pass


class TestDirectSavedDisks(kinds.SavingDirectHooks, SavedDisksContract):
    pass


class TestCrunSavedDisks(kinds.SavingCrunHooks, SavedDisksContract):
    pass


class TestRuncSavedDisks(kinds.SavingRuncHooks, SavedDisksContract):
    pass


class TestFakeSandbox(kinds.FakeHooks, SandboxContract):
    pass


class TestFakeFiles(kinds.FakeHooks, FilesContract):
    pass


class TestFakeMetrics(kinds.FakeHooks, MetricsContract):
    pass


class TestFakePause(kinds.PausingFakeHooks, PauseContract):
    pass


class TestFakeVolumes(kinds.VolumesFakeHooks, VolumesContract):
    pass


class TestBareFakeProvider(kinds.BareFakeHooks, ProviderContract):
    pass


@pytest.mark.extended
class TestAgentProvider(kinds.AgentHooks, ProviderContract):
    pass


@pytest.mark.extended
class TestAgentSandbox(kinds.AgentHooks, SandboxContract):
    pass


@pytest.mark.extended
class TestAgentFiles(kinds.AgentHooks, FilesContract):
    pass


class TestSanitizedAgentProvider(kinds.SanitizedAgentHooks, ProviderContract):
    pass


class TestSanitizedAgentSandbox(kinds.SanitizedAgentHooks, SandboxContract):
    pass


class TestSanitizedAgentFiles(kinds.SanitizedAgentHooks, FilesContract):
    pass


class TestUvloopAgentProvider(kinds.UvloopAgentHooks, ProviderContract):
    pass


class TestUvloopAgentSandbox(kinds.UvloopAgentHooks, SandboxContract):
    pass


class TestUvloopAgentFiles(kinds.UvloopAgentHooks, FilesContract):
    pass


class TestDirectProvider(kinds.DirectHooks, ProviderContract):
    pass


class TestDirectSandbox(kinds.DirectHooks, SandboxContract):
    pass


class TestDirectFiles(kinds.DirectHooks, FilesContract):
    pass


class TestDirectMetrics(kinds.DirectHooks, KernelMetricsContract):
    pass


class TestDirectPause(kinds.DirectHooks, KernelPauseContract):
    pass


class TestDirectView(kinds.DirectHooks, ViewContract):
    pass


class TestDirectVolumes(kinds.DirectHooks, VolumesContract):
    pass


class TestMakersProvider(kinds.MakersHooks, ProviderContract):
    pass


class TestMakersSavedDisks(kinds.SavingMakersHooks, SavedDisksContract):
    pass


class TestMakersVolumes(kinds.MakersHooks, VolumesContract):
    pass


class TestMakersPause(kinds.MakersHooks, KernelPauseContract):
    pass


class TestCrunMakersProvider(kinds.CrunMakersHooks, ProviderContract):
    pass


class TestCrunVolumes(kinds.CrunHooks, VolumesContract):
    pass


class TestCrunProvider(kinds.CrunHooks, ProviderContract):
    pass


class TestCrunSandbox(kinds.CrunHooks, SandboxContract):
    pass


class TestCrunFiles(kinds.CrunHooks, FilesContract):
    pass


class TestCrunMetrics(kinds.CrunHooks, KernelMetricsContract):
    pass


class TestCrunPause(kinds.CrunHooks, KernelPauseContract):
    pass


class TestCrunView(kinds.CrunHooks, ViewContract):
    pass


class TestRuncProvider(kinds.RuncHooks, ProviderContract):
    pass


class TestRuncSandbox(kinds.RuncHooks, SandboxContract):
    pass


class TestRuncFiles(kinds.RuncHooks, FilesContract):
    pass


class TestRuncMetrics(kinds.RuncHooks, KernelMetricsContract):
    pass


class TestRuncPause(kinds.RuncHooks, KernelPauseContract):
    pass


class TestRuncView(kinds.RuncHooks, ViewContract):
    pass


class TestDirectContexts(kinds.DirectHooks, ContextsContract):
    pass


class TestDirectFilesOnWritableRoot(kinds.DirectHooks, FilesContract):
    pytestmark = pytest.mark.extended

    def spec(self) -> SandboxSpec:
        return replace(super().spec(), writable_root=True)


class TestCrunFilesOnWritableRoot(kinds.CrunHooks, FilesContract):
    def spec(self) -> SandboxSpec:
        return replace(super().spec(), writable_root=True)


class TestSanitizedContexts(kinds.DirectHooks, ContextsContract):
    """The program is a file of the user's that can be executed, but not read, as the agent's own."""

    pytestmark = pytest.mark.extended
    most_memory_kb = 100_000  # of which the sanitizers have the most

    async def program_in(self, sandbox: Sandbox) -> str:
        await sandbox.write("/workspace/agent", (kinds.BIN / "warren-agent-sanitized").read_bytes(), mode=0o111)
        return "/workspace/agent"


class TestOciNetwork(NetworkContract):
    def spec(self) -> SandboxSpec:
        return SandboxSpec(image="host")

    @pytest.fixture
    def new_provider(self, state_dir: Path, image_store: ImageStore) -> Callable[[Egress], Provider]:
        return lambda egress: OciProvider(state_dir, image_store, kinds.BIN, egress=egress)


class TestDockerProvider(kinds.DockerHooks, ProviderContract):
    pass


class TestDockerSandbox(kinds.DockerHooks, SandboxContract):
    pass


class TestDockerVolumes(kinds.DockerHooks, VolumesContract):
    pass


class TestDockerSavedDisks(kinds.SavingDockerHooks, SavedDisksContract):
    pass


class TestDockerMetrics(kinds.DockerHooks, KernelMetricsContract):
    pass


class TestDockerContexts(kinds.DockerHooks, ContextsContract):
    pass


class TestDockerPause(kinds.DockerHooks, KernelPauseContract):
    pass


class TestDockerView(kinds.DockerHooks, ViewContract):
    own_uptime = False


class TestDockerFiles(kinds.DockerHooks, FilesContract):
    """A container takes a fifth of a second to make and remove. These tests leave nothing but files, so they share one
    sandbox that is swept between them."""

    @pytest.fixture(scope="class")
    async def boxes(self, provider: Provider) -> AsyncIterator[list[Sandbox]]:
        boxes: list[Sandbox] = []
        yield boxes
        for box in boxes:
            await provider.destroy(box.id)

    @pytest.fixture
    async def sandbox(self, provider: Provider, boxes: list[Sandbox]) -> AsyncIterator[Sandbox]:
        if not boxes:
            boxes.append(await provider.create(self.spec()))
        with anyio.fail_after(60):
            yield boxes[0]
        if not await self.swept(boxes[0]):
            await provider.destroy(boxes.pop().id)

    async def swept(self, sandbox: Sandbox) -> bool:
        try:
            sweep = "chmod -R u+rwx .; find . /tmp -mindepth 1 -delete"
            result = await sandbox.exec(Command(shell=sweep, cwd="/workspace", carry_state=False))
            return result.exit_code == 0 and not await sandbox.processes()
        except WarrenError:
            return False


class TestDockerNetwork(NetworkContract):
    pytestmark = kinds.DockerHooks.pytestmark

    def spec(self) -> SandboxSpec:
        return SandboxSpec()

    @pytest.fixture
    def new_provider(
        self, state_dir: Path, image_store: ImageStore, docker_engine: DockerEngine
    ) -> Callable[[Egress], Provider]:
        return lambda egress: DockerProvider(state_dir, image_store, kinds.BIN, docker_engine.url, egress=egress)


class TestE2bProvider(kinds.E2bHooks, ProviderContract):
    async def test_a_full_disk_says_no_space_and_keeps_the_old_file(self, provider: Provider, far: FarSide) -> None:
        """The disk is as large as the template has it, whatever the limits say."""
        far.size["diskSizeMB"] = 16
        await super().test_a_full_disk_says_no_space_and_keeps_the_old_file(provider)


@pytest.mark.extended
class TestE2bSandbox(kinds.E2bHooks, SandboxContract):
    pass
