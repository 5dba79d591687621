"""Images in a cluster: a session goes where its image is, and a worker that lacks one gets it from another."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.api_client import Api
from machine.cluster_world import ADMIN, PATIENCE_S, Nodes, new_nodes
from server_process import ServerProcess
from small_tree import make_small_tree

from warren.cluster.fleet import REFRESH_S
from warren.images.store.store import ImageStore, silent
from warren.model.image import ImageConfig

pytestmark = pytest.mark.anyio

GREETING = "from the image\n"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_small_tree(tmp_path_factory.mktemp("small") / "root")
    (root / "greeting").write_text(GREETING)
    return root


@pytest.fixture
def nodes(tree: Path, tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "small.yaml").write_text("name: small\nimage: small\n")
    with new_nodes() as nodes:
        for name in ("first", "second"):
            nodes.worker(name, "--on-stop", "destroy", provider="oci", **_settings(tmp_path))
        _add_image(nodes.all[0], tree)
        nodes.coordinator(provider="oci", **_settings(tmp_path))
        yield nodes
        for process in nodes.all[:2]:
            if process.alive:
                assert process.stop() == 0, process.log[-3000:]


def _settings(registry: Path) -> dict[str, str]:
    return {"WARREN_REGISTRY_DIR": str(registry), "WARREN_DEFAULT_ENVIRONMENT": "small"}


def _add_image(worker: ServerProcess, tree: Path) -> None:
    def fill(path: Path) -> ImageConfig:
        shutil.copytree(tree, path)
        return ImageConfig(env={"SEEN": "by commands"}, labels={"kept": "yes"})

    ImageStore(worker.state_dir).make("small", "test", fill, silent)


def _current(worker: ServerProcess) -> list[tuple[str, str, ImageConfig]]:
    found = ImageStore(worker.state_dir).list()
    return [(one.name, one.content, one.config) for one in found if one.current]


async def test_a_worker_gets_the_image_it_lacks_from_another(nodes: Nodes) -> None:
    first, second, coordinator = nodes.all
    for process in nodes.all:
        process.start(wait=False)
    for process in (first, coordinator, second):
        process.wait_until_ready()  # the second has its pool then, so the image
    assert _current(second) == _current(first)
    assert not list((second.state_dir / "images").glob(".making-*"))
    async with Api(coordinator.url, {"X-API-Key": ADMIN}) as api:
        await api.call("PATCH", "/api/cluster/workers/first", {"draining": True})
        async with api.session() as session:
            assert await session.output("cat /greeting; echo $SEEN") == GREETING + "by commands\n"
            await session.output("cd /tmp && export KEPT='by a shell that is not bash'")
            assert await session.output("echo $PWD: $KEPT") == "/tmp: by a shell that is not bash\n"


async def test_a_session_goes_where_its_image_is(nodes: Nodes, tree: Path) -> None:
    first, second, coordinator = nodes.all
    for process in nodes.all:
        process.start(wait=False)
    for process in (first, coordinator, second):
        process.wait_until_ready()

    def fill(path: Path) -> None:
        shutil.copytree(tree, path)

    ImageStore(second.state_dir).make("rare", "test", fill, silent)
    async with Api(coordinator.url, {"X-API-Key": ADMIN}) as api:
        async with asyncio.timeout(PATIENCE_S):
            while b"rare" not in nodes.redis.ask("HGET", "{warren}:worker:6:second", "report"):
                await asyncio.sleep(0.1)
        await asyncio.sleep(5 * REFRESH_S)  # the coordinator reads it then
        ids = []
        for _ in range(4):
            async with api.session(image="rare") as session:
                data = nodes.redis.ask("HGET", f"{{warren}}:session:{len(session.id)}:{session.id}", "data")
                ids.append(b'"worker":"second"' in data)
        assert all(ids)
    assert [name for name, _, _ in _current(first)] == ["small"]
