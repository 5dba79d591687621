"""The docker provider under the contracts, with an engine of the tests' own.

A container takes a fifth of a second to make and remove, so the contract of the files, whose tests leave
nothing but files, shares one sandbox that is swept between them.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import anyio
import pytest
from contract.figures_contract import KernelFiguresContract
from contract.files_contract import FilesContract
from contract.network_contract import NetworkContract
from contract.provider_contract import ProviderContract, ProviderHooks
from contract.sandbox_contract import SandboxContract
from contract.view_contract import ViewContract
from docker_engine import DockerEngine

import warren
from warren.images.store.store import ImageStore
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import WarrenError
from warren.model.operations import Command
from warren.model.spec import USER_UID, Limits, SandboxSpec
from warren.sandboxes.host.uids import uid_base
from warren.sandboxes.network.egress import Egress
from warren.sandboxes.providers.docker import DockerProvider, DockerRecord

BIN = Path(warren.__file__).parent / "bin"


def record_of(provider: Provider, sandbox: Sandbox) -> DockerRecord:
    record = DockerRecord.load(cast(DockerProvider, provider).directory(sandbox.id))
    assert record is not None
    return record


class DockerHooks(ProviderHooks):
    def spec(self) -> SandboxSpec:
        return SandboxSpec(limits=Limits(cpus=2))

    @pytest.fixture(scope="class")
    async def provider(
        self, state_dir: Path, image_store: ImageStore, docker_engine: DockerEngine
    ) -> AsyncIterator[Provider]:
        provider = DockerProvider(state_dir, image_store, BIN, docker_engine.url)
        yield provider
        left = await provider.list_ids()
        for sandbox_id in left:
            await provider.destroy(sandbox_id)
        await provider.close()
        assert left == []

    async def reopened(self, provider: Provider) -> Provider:
        old = cast(DockerProvider, provider)
        return DockerProvider(old._state, old._images._images, BIN, old.engine.url)

    async def lose(self, provider: Provider, sandbox: Sandbox) -> None:
        record = record_of(provider, sandbox)
        os.kill(record.pid, signal.SIGKILL)
        while record.alive():
            await asyncio.sleep(0.01)

    async def user_uid(self, sandbox: Sandbox) -> int:
        uid = int((await sandbox.exec(Command(argv=("id", "-u")))).stdout)
        assert (uid - uid_base(0)) % 65536 == USER_UID
        return uid


class TestDockerProvider(DockerHooks, ProviderContract):
    pass


class TestDockerFigures(DockerHooks, KernelFiguresContract):
    pass


class TestDockerView(DockerHooks, ViewContract):
    own_uptime = False


class TestDockerSandbox(DockerHooks, SandboxContract):
    pass


class TestDockerNetwork(NetworkContract):
    def spec(self) -> SandboxSpec:
        return SandboxSpec()

    @pytest.fixture
    def new_provider(
        self, state_dir: Path, image_store: ImageStore, docker_engine: DockerEngine
    ) -> Callable[[Egress], Provider]:
        return lambda egress: DockerProvider(state_dir, image_store, BIN, docker_engine.url, egress=egress)


class TestDockerFiles(DockerHooks, FilesContract):
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
