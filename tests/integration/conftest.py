"""A provider with real sandboxes, all of them destroyed at the end of the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import warren
from warren.worker.images import ImageStore
from warren.worker.providers.oci import OciProvider


@pytest.fixture
async def provider(state_dir: Path, image_store: ImageStore) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, image_store, Path(warren.__file__).parent / "bin")
    yield provider
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()
