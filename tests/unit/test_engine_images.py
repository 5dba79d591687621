"""Warren's images on their way into a Docker engine: shared by all who need them, and told of meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from warren.images.store.store import ImageStore
from warren.model.errors import ImageBuilding
from warren.model.tenant_images import pulled_image, tenant_image
from warren.sandboxes.providers.docker_images import EngineImages

pytestmark = pytest.mark.anyio


class SlowEngine:
    """Keeps what is loaded once it is allowed to."""

    def __init__(self) -> None:
        self.images: dict[str, dict[str, Any]] = {}
        self.loads: list[str] = []
        self.used: set[str] = set()
        self.may_end = asyncio.Event()

    async def image(self, name: str) -> dict[str, Any] | None:
        return self.images.get(name)

    async def load(self, repository: str, tag: str, label: str, tar: AsyncIterator[bytes]) -> None:
        self.loads.append(f"{repository}:{tag}")
        size = sum([len(part) async for part in tar])
        await self.may_end.wait()
        key, _, value = label.partition("=")
        self.keep(f"{repository}:{tag}", size, {key: value})

    def keep(self, name: str, size: int = 0, labels: dict[str, str] | None = None) -> None:
        self.images[name] = {"Id": f"sha256:{size}-{name}", "RepoTags": [name], "Labels": labels}

    async def labelled_images(self, label: str) -> list[dict[str, Any]]:
        return [image for image in self.images.values() if label in (image["Labels"] or ())]

    async def remove_image(self, image_id: str) -> bool:
        (name,) = [name for name, image in self.images.items() if image["Id"] == image_id]
        if name not in self.used:
            del self.images[name]
        return name not in self.used


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/sh").write_bytes(b"#!" + bytes(2_000_000))
    (tree / "bin/sh").chmod(0o755)
    store = ImageStore(tmp_path / "state")
    for name in ("base", "other"):
        store.import_directory(name, tree)
    return store


async def test_callers_hear_how_far_an_image_is_and_other_images_do_not_wait_for_it(store: ImageStore) -> None:
    engine = SlowEngine()
    images = EngineImages(store, engine)  # type: ignore[arg-type]
    engine.keep(f"warren/other:{store.version('other')}")
    creating = asyncio.create_task(images.find("base"))
    with pytest.raises(ImageBuilding, match="is being loaded into the Docker engine") as caught:
        await images.load("base")
    assert caught.value.step == "loading it into the Docker engine, 2 MB so far"
    assert caught.value.fraction is not None
    assert caught.value.fraction > 0.9
    assert caught.value.retry_after_s == 2.0
    await images.load("other")
    assert (await images.find("other")).id.startswith("sha256:0-warren/other:")
    await images.load("unknown")
    engine.may_end.set()
    assert (await creating).id == engine.images[engine.loads[0]]["Id"]
    await images.load("base")
    assert len(engine.loads) == 1
    await images.close()


async def test_an_image_that_was_removed_from_the_engine_is_loaded_again(store: ImageStore) -> None:
    engine = SlowEngine()
    images = EngineImages(store, engine)  # type: ignore[arg-type]
    engine.may_end.set()
    await images.load("base")
    engine.images.clear()
    engine.may_end.clear()
    creating = asyncio.create_task(images.find("base"))
    while len(engine.loads) < 2:
        await asyncio.sleep(0.01)
    with pytest.raises(ImageBuilding):
        await images.load("base")
    await images.close()
    with pytest.raises(asyncio.CancelledError):
        await creating


async def test_what_is_gone_here_goes_from_the_engine_and_what_others_have_stays(
    store: ImageStore, tmp_path: Path
) -> None:
    engine = SlowEngine()
    engine.may_end.set()
    images = EngineImages(store, engine)  # type: ignore[arg-type]
    names = [pulled_image("acme", f"app:{number}") for number in range(3)]
    versions = [store.import_directory(name, tmp_path / "tree").version for name in names]
    for name in (*names, "base"):
        await images.find(name)
    for name in names:
        store.remove(name)
    before = store.rootfs("base").version
    store.import_directory("base", tmp_path / "tree")
    engine.used.add(next(name for name in engine.images if versions[1] in name))
    digest = engine.images[f"warren/base:{before}"]["Labels"]["warren.rootfs"].partition("-")[2]
    engine.keep("warren/base:older", 0, {"warren.rootfs": digest})
    engine.keep("warren/x:their-version", 0, {"warren.rootfs": "other-folder"})
    engine.keep("python:3.12")
    await images.find("base")
    kept = sorted(name.rpartition(":")[2] for name in engine.images)
    assert kept == sorted([versions[1], store.version("base"), "their-version", "3.12"])


async def test_tenants_do_not_wait_for_each_others_images(store: ImageStore, tmp_path: Path) -> None:
    engine = SlowEngine()
    images = EngineImages(store, engine)  # type: ignore[arg-type]
    mine = [pulled_image("acme", f"app:{number}") for number in range(3)]
    names = [*mine, tenant_image("acme", "x", "1"), pulled_image("other", "app:1"), "base"]
    for name in names[:-1]:
        store.import_directory(name, tmp_path / "tree")
    tasks = [asyncio.create_task(images.find(name)) for name in names]
    while len(engine.loads) < 3:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    begun = {load.rpartition(":")[2] for load in engine.loads}
    assert begun == {store.version(name) for name in (mine[0], *names[-2:])}
    engine.may_end.set()
    await asyncio.gather(*tasks)
    await images.close()
