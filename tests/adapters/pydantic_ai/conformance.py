"""The suite that Pydantic AI has for backends of workspaces."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pydantic_ai.messages import WorkspaceRef
from pydantic_ai.workspaces import WorkspaceBackend
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from warren import AsyncSandboxClient
from warren.integrations.pydantic_ai import WarrenBackend


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class TestWarren(WorkspaceBackendSuite):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[WorkspaceBackend]:
        async with WarrenBackend() as backend:
            yield backend

    @pytest.fixture
    async def fresh_backend(self) -> AsyncIterator[Callable[[], WorkspaceBackend]]:
        made: list[WarrenBackend] = []

        def make() -> WorkspaceBackend:
            made.append(WarrenBackend())
            return made[-1]

        yield make
        for backend in made:
            await backend.destroy()

    @pytest.fixture
    def attach_backend(self) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: WarrenBackend(ref=ref)

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            async with AsyncSandboxClient.attach(backend.ref.id) as client:
                await client.cleanup()

        return destroy


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--noconftest", __file__]))
