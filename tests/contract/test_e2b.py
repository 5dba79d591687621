"""The provider e2b under the contracts, with a far side of the tests' own (tests/e2b_far_side.py)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from contract.provider_contract import ProviderContract, ProviderHooks
from contract.sandbox_contract import SandboxContract
from e2b_far_side import KEY, FarSide

import warren
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import ProviderUnavailable
from warren.model.figures import Figures
from warren.model.operations import Command
from warren.sandboxes.providers.e2b import E2bProvider
from warren.sandboxes.providers.e2b_api import E2bApi

BIN = Path(warren.__file__).parent / "bin"


class E2bHooks(ProviderHooks):
    @pytest.fixture
    async def far(self) -> AsyncIterator[FarSide]:
        far = await FarSide().start()
        yield far
        left = list(far.boxes)
        await far.close()
        assert left == []

    @pytest.fixture
    async def provider(self, tmp_path: Path, far: FarSide) -> AsyncIterator[Provider]:
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
        """Another user of the account ends it."""
        e2b = cast(E2bProvider, provider)
        record = e2b._load(sandbox.id)
        assert record is not None
        await e2b.api.kill(record.far)
        while sandbox._link.is_open:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)


class TestE2bProvider(E2bHooks, ProviderContract):
    async def test_a_full_disk_says_no_space_and_keeps_the_old_file(self, provider: Provider, far: FarSide) -> None:
        """The disk is as large as the template has it, whatever the limits say."""
        far.size["diskSizeMB"] = 16
        await super().test_a_full_disk_says_no_space_and_keeps_the_old_file(provider)


class TestE2bSandbox(E2bHooks, SandboxContract):
    pass


@pytest.mark.anyio
class TestE2bFigures(E2bHooks):
    async def test_they_are_what_the_far_side_measured_last(self, provider: Provider, far: FarSide) -> None:
        sandbox = await provider.create(self.spec())
        with pytest.raises(ProviderUnavailable, match="measured nothing"):
            await sandbox.figures()
        point = {"cpuCount": 2, "cpuUsedPct": 50.0, "memUsed": 7_000_000_000, "memCache": 3, "diskUsed": 2_000_000}
        far.metrics = [{**point, "memUsed": 1}, point]
        first = await sandbox.figures()
        assert first == Figures(memory_bytes=7_000_000_000, cache_bytes=3, disk_bytes=2_000_000)
        await asyncio.sleep(0.05)
        assert 0.05 <= (await sandbox.figures()).cpu_s < 60, "one of two cores was in use since"
        await provider.destroy(sandbox.id)

    @pytest.mark.parametrize(
        "wrong", [{"memUsed": -1}, {"memUsed": "x"}, {"cpuUsedPct": [1]}, {"diskUsed": 10**30}, {"diskUsed": True}]
    )
    async def test_a_far_side_that_tells_nonsense_is_not_believed(
        self, provider: Provider, far: FarSide, wrong: dict[str, Any]
    ) -> None:
        sandbox = await provider.create(self.spec())
        far.metrics = [wrong]
        with pytest.raises(ProviderUnavailable):
            await sandbox.figures()
        far.fail(f"/sandboxes/{far_id(provider, sandbox)}/metrics", 404)
        with pytest.raises(ProviderUnavailable):  # it may have no metrics: that is no reason to give the sandbox up
            await sandbox.figures()
        assert (await sandbox.exec(Command(argv=("true",)))).exit_code == 0
        await provider.destroy(sandbox.id)


def far_id(provider: Provider, sandbox: Sandbox) -> str:
    record = cast(E2bProvider, provider)._load(sandbox.id)
    assert record is not None
    return record.far
