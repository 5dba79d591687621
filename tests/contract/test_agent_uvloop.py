"""The real agent under the contracts once more, on the event loop that the server runs on."""

from typing import Any

import pytest
from contract.files_contract import FilesContract
from contract.provider_contract import ProviderContract
from contract.sandbox_contract import SandboxContract
from contract.test_agent import NamespaceHooks


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


class TestProviderOnUvloop(NamespaceHooks, ProviderContract):
    pass


class TestSandboxOnUvloop(NamespaceHooks, SandboxContract):
    pass


class TestFilesOnUvloop(NamespaceHooks, FilesContract):
    pass
