"""Layers are found by what they were made from, held while they are used, and bounded."""

import os
from pathlib import Path

import pytest

from warren.images.store.layer_cache import LAYERS, CachedLayer, LayerCache, key_of
from warren.images.trees.layers import LayerSize

MB = 1024 * 1024


@pytest.fixture
def cache(tmp_path: Path) -> LayerCache:
    return LayerCache(tmp_path)


def add(cache: LayerCache, folder: Path, key: str, *, used: float, mb: int = 1, replace: bool = False) -> CachedLayer:
    made = folder / f"made-{key}"
    (made / "tree").mkdir(parents=True)
    (made / "tree/file").write_text(str(used))
    layer = (cache.replace if replace else cache.add)(key, made, LayerSize(1, mb * MB))
    os.utime(layer.path / "layer.json", (used, used))
    return layer


def keys(folder: Path) -> set[str]:
    return {path.name for path in (folder / LAYERS).iterdir()}


def test_a_key_depends_on_the_key_below_and_on_all_of_the_step() -> None:
    steps = [{"argv": ["a"], "env": {}}, {"argv": ["a"], "env": {"A": "1"}}, {"argv": ["b"], "env": {}}]
    assert len({key_of(below, **step) for below in ("x", "y") for step in steps}) == 6
    assert key_of("x", a=1, b=2) == key_of("x", b=2, a=1)


def test_the_least_recently_used_go_first_and_what_is_held_stays(cache: LayerCache, tmp_path: Path) -> None:
    for number in range(5):
        add(cache, tmp_path, f"key{number}", used=number + 1)
    cache.close()
    reader = LayerCache(tmp_path)
    assert reader.find("key0") is not None
    os.utime(tmp_path / LAYERS / "key0/layer.json", (1, 1))
    use = cache.trim(tmp_path, max_bytes=2 * MB)
    assert (use.layers, use.bytes, use.removed) == (2, 2 * MB, 3)
    assert keys(tmp_path) == {"key0", "key4"}  # key0 is the oldest, but another builder holds it
    reader.close()
    cache.trim(tmp_path, max_bytes=2 * MB, unused_s=60)
    assert keys(tmp_path) == set()


def test_finding_a_layer_counts_as_a_use(cache: LayerCache, tmp_path: Path) -> None:
    add(cache, tmp_path, "old", used=1)
    add(cache, tmp_path, "new", used=2)
    cache.close()
    assert LayerCache(tmp_path).find("old") is not None
    cache.trim(tmp_path, max_bytes=MB)
    assert keys(tmp_path) == {"old"}


def test_of_two_builders_the_first_counts_and_both_go_on(cache: LayerCache, tmp_path: Path) -> None:
    other = LayerCache(tmp_path)
    first = add(cache, tmp_path, "key", used=1)
    again = add(other, tmp_path / "other", "key", used=2)
    assert (first.path, (again.tree / "file").read_text()) == (again.path, "1")


def test_a_layer_can_be_made_anew(cache: LayerCache, tmp_path: Path) -> None:
    add(cache, tmp_path, "key", used=1)
    (tmp_path / "made-key").mkdir(exist_ok=True)
    os.rmdir(tmp_path / "made-key")
    assert (add(cache, tmp_path, "key", used=2, replace=True).tree / "file").read_text() == "2"


def test_a_damaged_layer_is_made_again(cache: LayerCache, tmp_path: Path) -> None:
    layer = add(cache, tmp_path, "key", used=1)
    cache.close()
    (layer.path / "layer.json").write_text("{")
    assert cache.find("key") is None
    (tmp_path / "x").mkdir()
    assert (add(cache, tmp_path / "x", "key", used=3).tree / "file").read_text() == "3"
