"""The real agent under the contracts, in throw-away namespaces: see namespace_provider.py."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from contract.files_contract import FilesContract
from contract.namespace_provider import NamespaceProvider, stop
from contract.provider_contract import ProviderContract, ProviderHooks
from contract.sandbox_contract import SandboxContract

import warren
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox

AGENT = Path(warren.__file__).parent / "bin" / "warren-agent"

pytestmark = [
    pytest.mark.skipif(not AGENT.exists(), reason="the agent is not built: make agent"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for its namespaces"),
]


class NamespaceHooks(ProviderHooks):
    @pytest.fixture
    async def provider(self, tmp_path: Path) -> AsyncIterator[Provider]:
        provider = NamespaceProvider(AGENT, tmp_path)
        yield provider
        assert await provider.list_ids() == []
        assert list(tmp_path.iterdir()) == []

    async def reopened(self, provider: Provider) -> Provider:
        old = cast(NamespaceProvider, provider)
        return NamespaceProvider(old.agent, old.state, old.boxes)

    async def lose(self, provider: Provider, sandbox: Sandbox) -> None:
        await stop(cast(NamespaceProvider, provider).boxes[sandbox.id])


class TestAgentProvider(NamespaceHooks, ProviderContract):
    pass


class TestAgentSandbox(NamespaceHooks, SandboxContract):
    pass


class TestAgentFiles(NamespaceHooks, FilesContract):
    pass
