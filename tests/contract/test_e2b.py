"""The metrics of the provider e2b, with a far side of the tests' own (tests/e2b_far_side.py)."""

import asyncio
from typing import Any, cast

import pytest
from contract.provider_kinds import E2bHooks
from e2b_far_side import FarSide

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import ImageBuildFailed, ImageBuilding, ImageNotFound, ProviderUnavailable
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


@pytest.mark.anyio
class TestE2bImages(E2bHooks):
    async def test_an_image_that_the_far_side_prepares_is_told_with_its_progress(
        self, provider: Provider, far: FarSide
    ) -> None:
        progress = {"step": "pull \x1b[1m3 of 4", "fraction": 0.75, "about": "5 min", "remaining_s": 80.5}
        known = {"error_code": "image_building", "progress": progress}
        far.fail("/sandboxes", 503, headers={"Retry-After": "7"}, **known)
        with pytest.raises(ImageBuilding, match="still preparing the template's image; it takes about 5 min") as caught:
            await provider.create(self.spec())
        told = caught.value
        assert (told.fraction, told.about, told.remaining_s, told.retry_after_s) == (0.75, "5 min", 80.5, 7.0)
        assert "3 of 4" in told.step
        assert "\x1b" not in told.step

    @pytest.mark.parametrize(
        "progress", [None, [], {"step": 1, "about": [], "fraction": True, "remaining_s": "x"}, {"fraction": -1}]
    )
    async def test_progress_that_makes_no_sense_is_left_out(
        self, provider: Provider, far: FarSide, progress: object
    ) -> None:
        far.fail("/sandboxes", 503, error_code="image_building", progress=progress)
        with pytest.raises(ImageBuilding) as caught:
            await provider.create(self.spec())
        told = caught.value
        assert (told.step, told.about, told.fraction, told.remaining_s) == ("", "", None, None)

    async def test_an_image_that_the_far_side_cannot_make_is_told_as_such(
        self, provider: Provider, far: FarSide
    ) -> None:
        far.fail("/sandboxes", 503, error_code="image_build_failed")
        with pytest.raises(ImageBuildFailed, match="failure 503 of the far side"):
            await provider.create(self.spec())
        far.fail("/sandboxes", 404, error_code="image_not_found")
        with pytest.raises(ImageNotFound, match="failure 404 of the far side"):
            await provider.create(self.spec())


def far_id(provider: Provider, sandbox: Sandbox) -> str:
    record = cast(E2bProvider, provider)._load(sandbox.id)
    assert record is not None
    return record.far
