"""What is pulled for tenants: where from, how much of it there may be, and what templates are built on it."""

import io
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest
from registry_server import Image, LyingRegistry, lying_registry, send, tar_of

from warren.app.image_wiring import build_image_settings, pull_tenant_image
from warren.app.wiring import build_image_builds
from warren.cluster.images import OfferedImages
from warren.config.settings import read_settings
from warren.images.building.builder import base_config, build_recipe
from warren.images.building.settings import BuildSettings
from warren.images.registry import tenant_pulls
from warren.images.registry.http import Patience
from warren.images.registry.pull import PullOptions
from warren.images.registry.tenant_pulls import make_room, pull_for_tenant
from warren.images.store.share import ImageSharing
from warren.images.store.store import ImageStore, silent
from warren.interfaces.images import ImageOffer
from warren.model.addresses import read_networks
from warren.model.errors import ImageNotFound, InvalidRequest, LimitReached, MachineFull, ProviderUnavailable
from warren.model.image import Configure, Recipe, Stage
from warren.model.image_pulls import ON, PullRules
from warren.model.spec import MIB
from warren.model.tenant_images import pulled_image, tenant_image

pytestmark = pytest.mark.anyio
ROOT = tar_of({"bin/sh": b"#!", "large": bytes(1_000_000)})


class Silent:
    def __call__(self, step: str, fraction: float | None) -> None: ...
    def output(self, text: str) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "state")


@pytest.fixture
def registry() -> Iterator[LyingRegistry]:
    with lying_registry(Image(ROOT)) as server:
        yield server


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree/bin").mkdir(parents=True)
    (tmp_path / "tree/bin/sh").write_bytes(b"#!")
    (tmp_path / "tree/bin/sh").chmod(0o755)
    (tmp_path / "tree/large").write_bytes(bytes(1_000_000))
    return tmp_path / "tree"


Building = Callable[..., BuildSettings]


@pytest.fixture
def building(tmp_path: Path, registry: LyingRegistry) -> Building:
    """The settings of the build of a template on a server with these options."""

    def make(**options: str) -> BuildSettings:
        given = {"STATE_DIR": str(tmp_path / "state"), "IMAGE_MIRRORS": f"docker.io={registry.host}", **options}
        variables = {f"WARREN_{name}": value for name, value in given.items()}
        return build_image_settings(read_settings({"WARREN_CONFIG": "/dev/null", **variables}, uid=0), for_tenant=True)

    return make


def test_a_template_pulls_what_it_is_built_on_only_where_the_server_pulls(
    store: ImageStore, registry: LyingRegistry, building: Building
) -> None:
    for base in ("team/box", tenant_image("acme", "x", "1"), pulled_image("acme", "x:1"), "environment/x"):
        for mode in ("off", "on") if "/x" in base else ("off",):
            with pytest.raises(ImageNotFound):
                base_config(store, base, building(IMAGE_PULL=mode), Silent())
    assert (registry.asked, store.list()) == ([], [])
    base_config(store, "team/box", building(IMAGE_PULL="allow-list"), Silent())
    assert [one.name for one in store.list()] == ["team/box"]


def test_a_template_does_not_replace_an_image_that_only_the_docker_engine_has(
    store: ImageStore, registry: LyingRegistry, building: Building
) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> bool:
        is_here = handler.path.endswith(("/images/team/box/json", "/version"))
        text = json.dumps({"Id": "sha256:1", "ApiVersion": "1.43", "message": "none"})
        send(handler, text.encode(), "application/json", status=200 if is_here else 404)
        return True

    with lying_registry(Image(), answer) as engine:
        docker = building(IMAGE_PULL="on", PROVIDER="docker", DOCKER_URL=f"tcp://{engine.host}")
        with pytest.raises(ImageNotFound, match="is only in the Docker engine"):
            base_config(store, "team/box", docker, Silent())
        assert registry.asked == []
        base_config(store, "team/other", docker, Silent())
    with pytest.raises(ProviderUnavailable):
        base_config(store, "team/box", docker, Silent())
    assert [one.name for one in store.list()] == ["team/other"]


def test_a_template_counts_with_the_pulled_image_that_it_is_built_on(
    store: ImageStore, tree: Path, building: Building
) -> None:
    base = pulled_image("acme", "large:1")
    whole = store.import_directory(base, tree).version
    store.import_directory("large", tree)
    recipes = {name: Recipe((Stage(name, (Configure("env", {"A": "1"}),)),)) for name in (base, "large")}
    sizes = []
    for number, (name, recipe) in enumerate(recipes.items()):
        template = tenant_image("acme", f"on-{number}", "1")
        made = build_recipe(store, template, recipe, context=None, settings=building(), progress=Silent())
        sizes.append(store.parts(made.version))
        store.remove(name)
    assert sizes[0][f"{whole}-whole"] > 1_000_000  # its files stay with the template, whatever becomes of the name
    assert sum(sizes[1].values()) < 100_000


# -- bounds


def test_a_moved_tag_beyond_the_bound_leaves_the_image_that_works(
    store: ImageStore, registry: LyingRegistry, tmp_path: Path
) -> None:
    name, options = pulled_image("acme", "app:1"), PullOptions(mirrors=(f"docker.io={registry.host}",))

    def pull() -> str:
        return pull_for_tenant(store, name, silent, options=options, rules=PullRules(ON), max_bytes=1_500_000).version

    first = pull()
    (tmp_path / "sandboxes/one").mkdir(parents=True)
    store.hold(name, tmp_path / "sandboxes/one")
    registry.image = Image(tar_of({"bin/sh": b"#!", "large": bytes(1_000_001)}))
    with pytest.raises(LimitReached, match="take more than 1 MiB together"):
        pull()
    assert store.version(name) == first
    store.release(tmp_path / "sandboxes/one")
    (tmp_path / "sandboxes/one").rmdir()
    second = pull()  # the one that it replaces goes, and needs no room
    assert [one.version for one in store.list()] == [second]


def test_the_number_of_a_tenants_images_is_bounded_and_nothing_goes_in_vain(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_pulls, "MAX_IMAGES", 5)
    (tmp_path / "tree").mkdir()
    names = [pulled_image("acme", f"app:{number}") for number in range(5)]
    for number, name in enumerate([*names, pulled_image("other", "app:0"), "app:0"]):
        made = store.import_directory(name, tmp_path / "tree", shell_needed=False)
        os.utime(store.folder / ".versions" / made.version / "uses", (number, number))
    make_room(store, "app:1", 1 << 40, max_bytes=1 << 30)
    assert len(store.list()) == 7
    with pytest.raises(LimitReached):
        make_room(store, pulled_image("acme", "new:1"), 2, max_bytes=1)
    assert len(store.list()) == 7
    make_room(store, pulled_image("acme", "new:1"), 1, max_bytes=1 << 30)
    assert {one.name for one in store.list()} == {*names[1:], pulled_image("other", "app:0"), "app:0"}
    for name in names[1:]:
        (tmp_path / "sandboxes" / name.rpartition(":")[2]).mkdir(parents=True)
        store.hold(name, tmp_path / "sandboxes" / name.rpartition(":")[2])
    make_room(store, pulled_image("acme", "new:1"), 1, max_bytes=1 << 30)
    store.import_directory(pulled_image("acme", "new:1"), tmp_path / "tree", shell_needed=False)
    store.hold(pulled_image("acme", "new:1"), tmp_path / "sandboxes/1")
    with pytest.raises(LimitReached, match=r"5 images .* are in use"):
        make_room(store, pulled_image("acme", "new:2"), 1, max_bytes=1 << 30)


def test_what_comes_from_another_worker_counts_before_its_name_is_there(
    store: ImageStore, tree: Path, tmp_path: Path
) -> None:
    far = ImageStore(tmp_path / "far")
    for name in ("app:1", pulled_image("acme", "app:1")):
        far.import_directory(name, tree)
    theirs, mine = ImageSharing(far), ImageSharing(store, partial(make_room, store, max_bytes=500_000))

    def receive(offer: ImageOffer) -> None:
        sent = io.BytesIO()
        theirs.send(offer, sent)
        sent.seek(0)
        mine.receive(offer, sent)

    own, pulled = theirs.offers()
    receive(own)
    with pytest.raises(LimitReached):
        receive(pulled)
    assert [one.name for one in store.list()] == ["app:1"]


def test_what_comes_from_another_worker_leaves_the_disk_its_reserve(
    store: ImageStore, tree: Path, tmp_path: Path
) -> None:
    far, looks, sent = ImageStore(tmp_path / "far"), itertools.count(1), io.BytesIO()
    far.import_directory("app:1", tree)
    theirs = ImageSharing(far)
    [offer] = theirs.offers()
    theirs.send(offer, sent)
    sent.seek(0)

    def check_room() -> None:
        if next(looks) == 3:
            raise MachineFull("others have filled the disk")

    with pytest.raises(MachineFull, match="others have filled"):
        ImageSharing(store, check_room=check_room).receive(offer, sent)
    assert store.list() == []


def test_the_files_of_a_tenants_images_count_beside_their_bytes(store: ImageStore) -> None:
    """A disk has room for so many files, and empty ones take no bytes."""
    few, many = ({"bin/sh": b"#!", **{f"empty/{number}": b"" for number in range(count)}} for count in (600, 1100))
    with lying_registry(Image(tar_of(few))) as registry:
        options = PullOptions(mirrors=(f"docker.io={registry.host}",), patience=Patience(tries=1))

        def pull(name: str) -> None:
            name = pulled_image("acme", name)
            pull_for_tenant(store, name, silent, options=options, rules=PullRules(ON), max_bytes=8 * MIB)

        pull("app:1")
        pull("app:2")
        assert [one.name for one in store.list()] == [pulled_image("acme", "app:2")]
        registry.image = Image(tar_of(many))
        with pytest.raises(InvalidRequest, match="more than 1024 members"):
            pull("app:3")


async def test_what_everybody_needs_is_offered_before_what_tenants_have() -> None:
    pulled = [pulled_image("acme", f"app:{number}") for number in range(300)]
    names = [*pulled, "python", tenant_image("acme", "x", "1")]

    class Many:
        def offers(self) -> list[ImageOffer]:
            return [ImageOffer(name, "sha256:1", 1) for name in names]

    offered = OfferedImages(Many())  # type: ignore[arg-type]
    await offered.refresh()
    assert len(offered.contents) == 256
    assert list(offered.contents)[:2] == names[-2:]


def test_a_pull_for_a_tenant_leaves_the_disk_its_reserve(
    store: ImageStore, registry: LyingRegistry, tmp_path: Path
) -> None:
    reserve = shutil.disk_usage(tmp_path).free // MIB - 20
    given = {"STATE_DIR": str(tmp_path / "state"), "IMAGE_MIRRORS": f"docker.io={registry.host}", "IMAGE_PULL": "on"}
    variables = {f"WARREN_{name}": value for name, value in {**given, "MIN_FREE_DISK_MB": str(reserve)}.items()}
    settings = read_settings({"WARREN_CONFIG": "/dev/null", **variables}, uid=0)
    registry.image = Image(tar_of({"bin/sh": b"#!", "large": bytes(64 * MIB)}))
    with pytest.raises(MachineFull, match=f"{reserve} MiB must stay free"):
        pull_tenant_image(settings, store, pulled_image("acme", "app:1"), silent)
    assert store.list() == []
    assert build_image_builds(settings)._env["WARREN_MIN_FREE_DISK_MB"] == str(reserve)


@pytest.mark.parametrize(("left", "words"), [("f_bavail", "MiB must stay free"), ("f_favail", "room for 0 more files")])
@pytest.mark.parametrize("done", [0.0, 0.95], ids=["downloading", "unpacking"])
def test_a_pull_ends_when_others_have_filled_the_disk_meanwhile(
    store: ImageStore,
    registry: LyingRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left: str,
    words: str,
    done: float,
) -> None:
    given = {"STATE_DIR": str(tmp_path / "state"), "IMAGE_MIRRORS": f"docker.io={registry.host}", "IMAGE_PULL": "on"}
    variables = {f"WARREN_{name}": value for name, value in given.items()}
    settings = read_settings({"WARREN_CONFIG": "/dev/null", **variables}, uid=0)
    reached, really = [-1.0], os.statvfs

    def fuller(path: Path) -> SimpleNamespace:
        disk = really(path)
        now = {name: getattr(disk, name) for name in ("f_bavail", "f_frsize", "f_blocks")}
        files = {"f_files": 1000, "f_favail": 1000}  # some file systems say 0
        return SimpleNamespace(**{**now, **files, **({left: 0} if max(reached) >= done else {})})

    monkeypatch.setattr(os, "statvfs", fuller)
    with pytest.raises(MachineFull, match=words):
        pull_tenant_image(
            settings,
            store,
            pulled_image("acme", "app:1"),
            lambda _, fraction: reached.append(-1.0 if fraction is None else fraction),
        )
    assert max(reached) == done
    assert store.list() == []


# -- where they come from


def test_private_networks_are_for_redirects_of_the_operators_registries(
    store: ImageStore, registry: LyingRegistry
) -> None:
    networks = read_networks(["127.0.0.0/8"])
    options = PullOptions(insecure=(registry.host,), networks=networks, patience=Patience(tries=1))
    name = pulled_image("acme", f"{registry.host}/team/app:1")
    with pytest.raises(InvalidRequest, match="from which nothing is pulled for tenants"):
        pull_for_tenant(store, name, silent, options=options, rules=PullRules(ON), max_bytes=1 << 30)
    with pytest.raises(ImageNotFound, match="which does not pull it"):
        pull_for_tenant(store, name, silent, options=options, rules=PullRules(), max_bytes=1 << 30)
    assert registry.asked == []

    def send_on(handler: BaseHTTPRequestHandler) -> bool:
        send(handler, b"", status=307, Location=f"http://{registry.host}{handler.path}")
        return True

    with lying_registry(Image(), send_on) as mirror:
        mirrored = replace(options, mirrors=(f"docker.io={mirror.host}",))
        short = pulled_image("acme", "team/app:1")
        pull_for_tenant(store, short, silent, options=mirrored, rules=PullRules(ON), max_bytes=1 << 30)
