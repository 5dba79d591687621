"""The metrics of the provider e2b, with a far side of the tests' own (tests/e2b_far_side.py)."""

import asyncio
from typing import Any, cast

import pytest
from contract.provider_kinds import E2bHooks
from e2b_far_side import FarSide

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import ProviderUnavailable
from warren.model.metrics import SandboxMetrics
from warren.model.operations import Command
from warren.sandboxes.providers.e2b import E2bProvider


@pytest.mark.anyio
class TestE2bFigures(E2bHooks):
    async def test_they_are_what_the_far_side_measured_last(self, provider: Provider, far: FarSide) -> None:
        sandbox = await provider.create(self.spec())
        with pytest.raises(ProviderUnavailable, match="measured nothing"):
            await sandbox.metrics()
        point = {"cpuCount": 2, "cpuUsedPct": 50.0, "memUsed": 7_000_000_000, "memCache": 3, "diskUsed": 2_000_000}
        far.metrics = [{**point, "memUsed": 1}, point]
        first = await sandbox.metrics()
        assert first == SandboxMetrics(memory_bytes=7_000_000_000, cache_bytes=3, disk_bytes=2_000_000)
        await asyncio.sleep(0.05)
        assert 0.05 <= (await sandbox.metrics()).cpu_s < 60, "one of two cores was in use since"
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
            await sandbox.metrics()
        far.fail(f"/sandboxes/{far_id(provider, sandbox)}/metrics", 404)
        with pytest.raises(ProviderUnavailable):  # it may have no metrics: that is no reason to give the sandbox up
            await sandbox.metrics()
        assert (await sandbox.exec(Command(argv=("true",)))).exit_code == 0
        await provider.destroy(sandbox.id)


def far_id(provider: Provider, sandbox: Sandbox) -> str:
    record = cast(E2bProvider, provider)._load(sandbox.id)
    assert record is not None
    return record.far
