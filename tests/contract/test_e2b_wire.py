"""The provider e2b under the contracts, with a second Warren as the far side: one server speaks to the other as E2B's
clients do."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest
from contract.files_contract import FilesContract
from contract.provider_contract import ProviderContract, ProviderHooks
from contract.sandbox_contract import SandboxContract
from far_warren import KEY, running_far_warren
from server_process import ServerProcess

import warren
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.spec import SandboxSpec
from warren.sandboxes.providers.e2b import E2bProvider
from warren.sandboxes.providers.e2b_api import E2bApi

BIN = Path(warren.__file__).parent / "bin"


@pytest.fixture(scope="module")
def far(image_cache: Path) -> Iterator[ServerProcess]:
    with running_far_warren(image_cache) as server:
        yield server


class WireHooks(ProviderHooks):
    template = "base"

    def spec(self) -> SandboxSpec:
        return SandboxSpec(image=self.template)

    @pytest.fixture
    async def provider(self, tmp_path: Path, far: ServerProcess) -> AsyncIterator[Provider]:
        provider = E2bProvider(tmp_path, BIN, E2bApi(KEY, far.url))
        yield provider
        left = await provider.list_ids()
        for sandbox_id in left:
            await provider.destroy(sandbox_id)
        await provider.close()
        assert left == []

    async def reopened(self, provider: Provider) -> Provider:
        old = cast(E2bProvider, provider)
        return E2bProvider(old._home.parent, BIN, E2bApi(KEY, old.api._api))

    async def lose(self, provider: Provider, sandbox: Sandbox) -> None:
        e2b = cast(E2bProvider, provider)
        record = e2b._load(sandbox.id)
        assert record is not None
        await e2b.api.kill(record.far)
        while sandbox._link.is_open:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)


class TestWireProvider(WireHooks, ProviderContract):
    async def test_a_full_disk_says_no_space_and_keeps_the_old_file(self, provider: Provider) -> None:
        """The disk is as large as the template has it, whatever the limits say."""
        self.template = "small"
        await super().test_a_full_disk_says_no_space_and_keeps_the_old_file(provider)


@pytest.mark.extended
class TestWireSandbox(WireHooks, SandboxContract):
    pass


@pytest.mark.extended
class TestWireFiles(WireHooks, FilesContract):
    pass
