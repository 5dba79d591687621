"""Images out of a real Docker engine; the engine has nothing of ours afterwards."""

import asyncio
import gc
from pathlib import Path
from typing import IO

import pytest
from build_world import BuildWorld, Recorder, copy
from docker_engine import DockerEngine

from warren.images.building.with_docker import build_with_docker
from warren.images.store.store import ImageStore
from warren.images.transfer.from_docker import unpack_docker_image
from warren.model.errors import BuildFailed, ImageNotFound, InvalidRequest, ProviderUnavailable
from warren.model.image import Stage

pytestmark = [pytest.mark.extended, pytest.mark.group("docker")]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "state")


@pytest.fixture(scope="module")
def tiny_image(docker_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> str:
    rootfs = tmp_path_factory.mktemp("tiny")
    (rootfs / "bin").mkdir()
    (rootfs / "bin/sh").write_text("#!")
    (rootfs / "bin/sh").chmod(0o755)
    docker_engine.import_rootfs(rootfs, "tiny:1")
    return "tiny:1"


def containers(engine: DockerEngine) -> list[str]:
    return engine.docker("ps", "--all", "--quiet").stdout.split()


def images(engine: DockerEngine) -> list[str]:
    return sorted(engine.docker("images", "--all", "--quiet").stdout.split())  # the engine's own order is not stable


def test_an_image_is_taken_and_the_container_is_gone(
    docker_engine: DockerEngine, tiny_image: str, store: ImageStore
) -> None:
    store.import_docker(tiny_image, tiny_image, docker_engine.url)
    assert (store.rootfs(tiny_image).path / "bin/sh").read_text() == "#!"
    assert containers(docker_engine) == []


def test_what_the_image_says_of_itself_comes_along(
    docker_engine: DockerEngine, tiny_image: str, store: ImageStore
) -> None:
    made = docker_engine.docker("create", tiny_image, "/x").stdout.strip()
    docker_engine.docker("commit", "--change", "ENV A=b", "--change", "WORKDIR /app", made, "said:1")
    docker_engine.docker("rm", made)
    config = store.import_docker("said", "said:1", docker_engine.url).config
    assert (config.env["A"], config.workdir) == ("b", "/app")
    assert (store.rootfs("said").path / "app").is_dir()


def test_a_failed_import_leaves_no_container(docker_engine: DockerEngine, tmp_path: Path, store: ImageStore) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none/file").write_text("x")
    docker_engine.import_rootfs(tmp_path / "none", "none:1")
    with pytest.raises(InvalidRequest, match="not a root filesystem"):
        store.import_docker("none", "none:1", docker_engine.url)
    assert containers(docker_engine) == []
    assert store.list() == []


def test_an_export_that_is_broken_off_leaves_no_connection(docker_engine: DockerEngine, tiny_image: str) -> None:
    def unpack(stream: IO[bytes]) -> None:
        pass

    asyncio.run(unpack_docker_image(docker_engine.url, tiny_image, Path("/nowhere"), unpack))
    gc.collect()  # an open one warns when it is collected, and the warning fails the test


def test_an_abandoned_container_is_removed_by_the_next_import(
    docker_engine: DockerEngine, tiny_image: str, store: ImageStore
) -> None:
    nobody = f"warren.image-import={Path('/etc/hostname').read_text().strip()}:/gone"
    docker_engine.docker("create", "--network", "none", "--label", nobody, tiny_image, "/x")
    store.import_docker("tiny", tiny_image, docker_engine.url)
    assert containers(docker_engine) == []


def test_a_missing_image_is_said_with_the_remedy(docker_engine: DockerEngine, store: ImageStore) -> None:
    with pytest.raises(ImageNotFound) as caught:
        store.import_docker("nope", "nope:1", docker_engine.url)
    assert "docker pull" in caught.value.remedy


def test_no_engine_is_said_with_the_remedy(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="does not answer") as caught:
        store.import_docker("x", "x", f"unix://{tmp_path}/none.sock")
    assert "DOCKER_HOST" in caught.value.remedy


class TestBuilds:
    """`warren image build --with docker`."""

    @pytest.fixture
    def context(self, docker_engine: DockerEngine, image_cache: Path, tmp_path: Path) -> Path:
        docker_engine.import_rootfs(ImageStore(image_cache).rootfs("base").path, "base:1")
        (tmp_path / "context").mkdir()
        (tmp_path / "context/file").write_text("from the context")
        (tmp_path / "context/secret").write_text("not sent")
        (tmp_path / "context/.dockerignore").write_text("secret\nDockerfile\n")
        return tmp_path / "context"

    def test_the_image_comes_with_its_config_and_nothing_stays(
        self, docker_engine: DockerEngine, store: ImageStore, context: Path
    ) -> None:
        before = images(docker_engine)
        (context / "Dockerfile").write_text(
            "FROM base:1\nARG WHO\nENV A=b\nWORKDIR /srv\nCOPY . .\nRUN ls -A > listed; echo $WHO > who\n"
        )
        progress = Recorder()
        made = build_with_docker(
            *(store, "built"),
            context=context,
            dockerfile=(context / "Dockerfile").read_text(),
            docker_url=docker_engine.url,
            progress=progress,
            build_args={"WHO": "me"},
        )
        root = store.rootfs("built").path
        assert ((root / "srv/file").read_text(), (root / "srv/who").read_text()) == ("from the context", "me\n")
        assert "secret" not in (root / "srv/listed").read_text()
        assert (made.config.env["A"], made.config.workdir) == ("b", "/srv")
        assert "Step 2/" in progress.text
        assert images(docker_engine) == before
        assert docker_engine.docker("ps", "--all", "--quiet").stdout == ""

    def test_a_failing_step_is_said_with_its_output(
        self, docker_engine: DockerEngine, store: ImageStore, context: Path
    ) -> None:
        (context / "Dockerfile").write_text("FROM base:1\nRUN echo what went wrong; exit 3\n")
        with pytest.raises(BuildFailed, match="what went wrong"):
            build_with_docker(
                *(store, "failing"),
                context=context,
                dockerfile=(context / "Dockerfile").read_text(),
                docker_url=docker_engine.url,
                progress=Recorder(),
            )
        assert docker_engine.docker("ps", "--all", "--quiet").stdout == ""

    def test_a_recipe_begins_with_what_the_engine_has_now(
        self, docker_engine: DockerEngine, tiny_image: str, tmp_path: Path
    ) -> None:
        world = BuildWorld(tmp_path / "state")
        (tmp_path / "file").write_text("x")
        steps = (copy("file", "/opt/"),)

        def build() -> str:
            made = world.build(
                *("above", Stage(f"docker:{tiny_image}", steps)), context=tmp_path, docker_url=docker_engine.url
            )
            return made.version

        first = build()
        assert build() == first
        assert world.images.list()[-1].source == f"docker image {tiny_image}"
        docker_engine.docker("build", "--quiet", "--tag", tiny_image, _changed(tmp_path, tiny_image))
        assert build() != first
        assert (world.root("above") / "changed").is_dir()


def _changed(tmp_path: Path, image: str) -> str:
    (tmp_path / "changed").mkdir()
    (tmp_path / "changed/Dockerfile").write_text(f"FROM {image}\nWORKDIR /changed\n")
    return str(tmp_path / "changed")
