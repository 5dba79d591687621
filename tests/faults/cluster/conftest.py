"""Clusters that are one test's, or one file's, alone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.cluster.cluster_world import ClusterWorld

NewWorld = Callable[..., ClusterWorld]


@pytest.fixture(scope="module")
def new_world(image_cache: Path) -> Iterator[NewWorld]:
    """Starts clusters; at the end nothing of them is left."""
    worlds: list[ClusterWorld] = []

    def start(*flags: str, **options: object) -> ClusterWorld:
        world = ClusterWorld(image_cache, *flags, **options)  # type: ignore[arg-type]
        worlds.append(world)
        world.start()
        return world

    try:
        yield start
    finally:
        for world in worlds:
            world.close()
