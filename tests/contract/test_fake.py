"""The fake passes the contracts that the real providers pass, so what is tested with it is tested."""

from collections.abc import AsyncIterator
from typing import cast

import pytest
from contract.figures_contract import FiguresContract
from contract.files_contract import FilesContract
from contract.provider_contract import ProviderContract, ProviderHooks
from contract.sandbox_contract import SandboxContract

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.testing.fake_provider import FakeProvider


class FakeHooks(ProviderHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        provider = FakeProvider()
        yield provider
        assert await provider.list_ids() == []

    async def reopened(self, provider: Provider) -> Provider:
        return FakeProvider(cast(FakeProvider, provider).machines)

    async def lose(self, provider: Provider, sandbox: Sandbox) -> None:
        cast(FakeProvider, provider).lose(sandbox.id)


class TestFakeProvider(FakeHooks, ProviderContract):
    pass


class TestFakeProviderWithoutCapabilities(FakeHooks, ProviderContract):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        provider = FakeProvider(name="bare", capabilities=frozenset())
        yield provider
        assert await provider.list_ids() == []


class TestFakeSandbox(FakeHooks, SandboxContract):
    pass


class TestFakeFiles(FakeHooks, FilesContract):
    pass


class TestFakeFigures(FakeHooks, FiguresContract):
    pass
