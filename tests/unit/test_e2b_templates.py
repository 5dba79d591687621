"""Parts of E2B's templates: recipes, records, uploads, and the addresses to which files are uploaded."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from warren.http.e2b.errors import E2bError
from warren.http.e2b.template_builds import TemplateBuilds
from warren.http.e2b.template_process import Plan, in_words_of_e2b
from warren.http.e2b.template_queue import MAX_OF_TENANT
from warren.http.e2b.template_records import (
    MAX_TEMPLATES,
    Build,
    BuiltTemplate,
    Status,
    TemplateRecords,
    finished,
    read_name,
    with_build,
    with_tags,
)
from warren.http.e2b.template_steps import make_recipe, read_steps
from warren.http.e2b.template_uploads import KEPT_S, Uploads
from warren.http.e2b.tokens import SandboxTokens, Upload
from warren.interfaces.images import ImageVersion
from warren.interfaces.records import Record
from warren.model.errors import BuildFailed, MachineFull, Unauthorized, UnknownUser
from warren.model.image import Configure, Copy, ImageConfig, Run
from warren.model.spec import MIB
from warren.model.tenant_images import may_use_image, template_in, tenant_image
from warren.stores.memory import MemoryRecords
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

HASH = "ab" * 32


def test_steps_become_a_recipe() -> None:
    steps = read_steps(
        [
            {"type": "USER", "args": ["root"]},
            {"type": "RUN", "args": ["make"]},
            {"type": "RUN", "args": ["make test", "user"]},
            {"type": "WORKDIR", "args": ["app"]},
            {"type": "COPY", "args": ["src/*.py", "lib", "user:root", "0755"], "filesHash": HASH},
            {"type": "ENV", "args": ["A", '{"b": "$C ${D} $1"}', "E", "$A"]},
            {"type": "USER", "args": ["user"]},
        ]
    )
    made = make_recipe("base", ImageConfig(env={"C": "c"}, workdir="/w"), "user", steps)
    assert (made.before, made.after) == (1, 0)
    _, _, run, test, workdir, copy, env, user = made.recipe.stages[0].steps
    assert isinstance(run, Run)
    assert isinstance(test, Run)
    assert isinstance(copy, Copy)
    assert (run.argv[-1], run.user, run.env["HOME"]) == ("make", "root", "/root")
    assert (test.user, test.env["HOME"], test.env["USER"]) == ("sandboxuser", "/home/user", "user")
    assert (copy.sources, copy.target, copy.owner, copy.mode) == (("5/src/*.py",), "/w/app/lib", "1000:root", "0755")
    assert [(each.key, each.value) for each in (workdir, env, user) if isinstance(each, Configure)] == [
        ("workdir", "/w/app"),
        ("env", {"A": '{"b": "c ${D} $1"}', "E": "$A"}),
        ("user", ""),
    ]
    path = make_recipe("base", ImageConfig(), "user", read_steps([{"type": "ENV", "args": ["PATH", "/x:$PATH"]}]))
    assert (path.before, path.after) == (2, 1)
    last = path.recipe.stages[0].steps[-1]
    assert isinstance(last, Run)
    assert last.argv[-1].startswith("export PATH=/x:/usr/")


def test_builds_that_no_tag_names_are_forgotten_but_for_the_newest() -> None:
    template = BuiltTemplate("acme", "mine", 0.0, 0.0)
    for number in range(30):
        template = with_build(template, Build(f"b{number}", number, number, tags=("latest",)))
        if number in (3, 4):
            status = Status.READY if number == 3 else Status.ERROR
            template = finished(template, f"b{number}", status, 100.0, ("", ""))
    assert template.tagged("latest").id == "b3"
    assert len(template.builds) <= 12
    assert "b29" in template.builds
    with pytest.raises(E2bError, match="may have 20 tags"):
        with_tags(template, template.tagged("latest"), [f"t{number}" for number in range(20)], 0.0)
    assert read_name("Mine:v1.0") == ("mine", "v1.0")


def test_an_image_of_a_template_is_for_its_tenant() -> None:
    image = tenant_image("acme", "mine", "b1")
    assert (may_use_image("acme", image), may_use_image("other", image)) == (True, False)
    assert (may_use_image("other", "base"), template_in(image), template_in("base")) == (True, "mine", "")


async def pieces(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield b"x" * size


async def test_uploads_are_bounded_and_leave_nothing_when_they_fail(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "uploads", lambda: None, max_bytes=3_000_000)
    await uploads.put("acme", HASH, pieces(1_500_000, 1_400_000), 0)
    assert (await uploads.has("acme", HASH), await uploads.has("other", HASH)) == (True, False)
    for sizes, length in (((1,), 4_000_000), ((2_000_000, 2_000_000), 0)):
        with pytest.raises(E2bError, match="an archive may have"):
            await uploads.put("acme", HASH[::-1], pieces(*sizes), length)
    (kept,) = tmp_path.glob("uploads/*/*")
    uploads.link("acme", HASH, tmp_path / "linked")
    os.utime(kept, (time.time() - KEPT_S - 1,) * 2)
    (kept.parent / ".part-left").write_bytes(b"")
    uploads.remove_old(restarted=True)
    assert list(tmp_path.glob("uploads/*")) == []
    assert (tmp_path / "linked").stat().st_size == 2_900_000
    with pytest.raises(E2bError, match="not uploaded"):
        uploads.link("acme", HASH, tmp_path / "again")

    def refuse() -> None:
        raise MachineFull("the disk is full")

    with pytest.raises(MachineFull):
        await Uploads(tmp_path / "full", refuse).put("acme", HASH, pieces(1), 1)
    assert list(tmp_path.glob("full/*/*")) == []


async def test_an_archive_that_goes_while_room_is_made_for_another_is_no_error(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "uploads", lambda: None)
    await uploads.put("acme", HASH, pieces(10), 0)
    (kept,) = tmp_path.glob("uploads/*/*")
    (kept.parent / "gone").symlink_to("nowhere")  # listed, and then not there
    await uploads.put("acme", HASH[::-1], pieces(10), 0)
    assert await uploads.has("acme", HASH[::-1])


class BusyRecords(MemoryRecords):
    """Others change each record before we do, as long as it is busy."""

    busy = False

    async def put(self, record: Record) -> bool:
        return not self.busy and await super().put(record)


async def test_a_template_that_others_change_all_the_time_is_not_missing() -> None:
    inner = BusyRecords()
    records = TemplateRecords(inner)
    await records.add_build("acme", "mine", Build("b1", 0.0, 0.0))
    inner.busy = True
    with pytest.raises(E2bError, match="changed by others") as refused:
        await records.change("acme", "mine", lambda template: template)
    assert refused.value.status == 409
    with pytest.raises(E2bError, match="no template"):
        await records.change("acme", "other", lambda template: template)


async def test_what_nothing_came_of_makes_way_for_a_template() -> None:
    records, day = TemplateRecords(MemoryRecords()), 86400.0
    ready = replace(Build("ready", day, day, tags=("default",)), status=Status.READY)
    await records.add_build("acme", "used", ready)
    await records.change("acme", "used", lambda now: finished(now, "ready", Status.READY, day, ("", "")))
    await records.add_build("acme", "failed", Build("failed", day + 1, day + 1))
    await records.change("acme", "failed", lambda now: finished(now, "failed", Status.ERROR, day + 1, ("why", "1")))
    for number in range(MAX_TEMPLATES - 2):
        await records.add_build("acme", f"asked-{number}", Build(f"b{number}", day + 2, day + 2))
    await records.add_build("acme", "next", Build("next", day + 3, day + 3))
    assert await records.find("acme", "failed") is None
    with pytest.raises(E2bError, match="the most there may be"):
        await records.add_build("acme", "one-more", Build("one-more", day + 4, day + 4))
    await records.add_build("other", "one-more", Build("one-more", day + 4, day + 4))
    await records.add_build("acme", "one-more", Build("one-more", day + 1000, day + 1000))  # nobody starts the others
    await records.remove_leftovers(day + 1000)
    assert len(await records.list("acme")) == MAX_TEMPLATES
    await records.remove_leftovers(day + 2 * 3600)
    assert [template.name for template in await records.list_all()] == ["used"]


async def test_a_refused_build_takes_its_template_with_it_if_there_is_nothing_else() -> None:
    records = TemplateRecords(MemoryRecords())
    await records.add_build("acme", "mine", Build("b1", 0.0, 0.0))
    await records.add_build("acme", "mine", Build("b2", 0.0, 0.0))
    await records.change("acme", "mine", lambda now: finished(now, "b2", Status.ERROR, 0.0, ("why", "")))
    for build in ("b1", "b2", "b1"):
        await records.drop_build("acme", "mine", build)
    assert list((await records.get("acme", "mine")).builds) == ["b2"]
    await records.add_build("acme", "other", Build("b3", 0.0, 0.0))
    await records.drop_build("acme", "other", "b3")
    assert await records.find("acme", "other") is None
    too_many = tuple(f"t{number}" for number in range(21))
    with pytest.raises(E2bError, match="20 tags"):
        await records.add_build("acme", "other", Build("b4", 0.0, 0.0, tags=too_many))
    assert await records.find("acme", "other") is None


class NoImages:
    def list(self) -> list[ImageVersion]:
        return []

    def parts(self, version: str) -> dict[str, int]:
        raise AssertionError(version)

    def remove(self, which: str, *, when_unused: bool = False) -> ImageVersion:
        raise AssertionError(which)


class SomeImages(NoImages):
    """Two images of a tenant with a layer that both have, and one of another."""

    def list(self) -> list[ImageVersion]:
        names = [tenant_image("acme", "one", "b1"), tenant_image("acme", "two", "b2"), tenant_image("other", "x", "b3")]
        return [ImageVersion(name, "template", 0.0, 1, 500 * MIB, version=f"v{at}") for at, name in enumerate(names)]

    def parts(self, version: str) -> dict[str, int]:
        return {"shared": 6 * MIB, version: 1 * MIB} if version != "v2" else {version: 500 * MIB}


def new_builds(folder: Path, script: str = "true", images: NoImages | None = None, max_mb: int = 10) -> TemplateBuilds:
    command, records = ("/bin/sh", "-c", script), MemoryRecords()
    options = {"timeout_s": 30, "max_mb": max_mb, "disk_reserve_mb": 1}
    return TemplateBuilds(folder, records, images or NoImages(), ManualClock(), command, {}, **options)


async def begin(builds: TemplateBuilds, tenant: str, build_id: str) -> None:
    build = Build(build_id, 0.0, 0.0, tags=("default",))
    template = await builds.records.add_build(tenant, build_id, build)
    await builds.build(template, build, Plan("base", "user", ()))


async def status_of(builds: TemplateBuilds, tenant: str, build_id: str) -> Status:
    return (await builds.records.get(tenant, build_id)).builds[build_id].status


async def all_ended(builds: TemplateBuilds) -> None:
    while builds._running:
        await asyncio.wait(builds._running)


async def test_files_that_images_share_count_once(tmp_path: Path) -> None:
    builds = new_builds(tmp_path, images=SomeImages(), max_mb=8)
    with pytest.raises(E2bError, match="take 8 MiB, and 8 MiB is the most") as refused:
        await begin(builds, "acme", "b4")
    assert refused.value.headers == {"Should-Retry": "false"}
    enough = new_builds(tmp_path, images=SomeImages(), max_mb=9)
    await begin(enough, "acme", "b4")
    await enough.close()


async def test_a_build_that_is_started_again_keeps_its_log(tmp_path: Path) -> None:
    builds = new_builds(tmp_path, """echo '{"output": "hello"}'""")
    await begin(builds, "acme", "b1")
    template = await builds.records.get("acme", "b1")
    with pytest.raises(E2bError, match="started already"):
        await builds.build(template, template.builds["b1"], Plan("base", "user", ()))
    await all_ended(builds)
    log = [entry.message for entry in builds.log("b1")]
    assert log == ["hello"]
    with pytest.raises(E2bError, match="started already"):
        await builds.build(template, template.builds["b1"], Plan("base", "user", ()))
    assert [entry.message for entry in builds.log("b1")] == log
    assert await status_of(builds, "acme", "b1") is Status.READY


async def test_builds_wait_for_their_turn_and_tenants_take_turns(tmp_path: Path) -> None:
    """Each says its name (the last argument) and waits until it may go on."""
    go, begun = tmp_path / "go", tmp_path / "begun"
    go.mkdir()
    builds = new_builds(
        tmp_path, f"name=${{1##*/}}; echo $name >> {begun}; until test -e {go}/$name; do sleep 0.02; done"
    )
    for tenant, build in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("c", "c2")):
        await begin(builds, tenant, build)
    order = ["a1", "b1", "a2", "c1", "a3", "c2"]
    for number, build in enumerate(order):
        most = min(number + 2, len(order))
        while not begun.exists() or len(begun.read_text().split()) < most:
            await asyncio.sleep(0.01)
        assert sorted(begun.read_text().split()) == sorted(order[:most])
        assert await status_of(builds, build[0], build) is Status.BUILDING
        (go / build).touch()
    await all_ended(builds)
    assert [await status_of(builds, build[0], build) for build in order] == [Status.READY] * len(order)
    assert builds.log("a1") == []
    assert [entry.message for entry in builds.log("a2")] == ["waiting for other builds to end"]
    assert repr(builds._queue) == "<BuildQueue: 0 building, 0 waiting>"


async def test_a_tenant_has_a_bound_on_builds_that_wait(tmp_path: Path) -> None:
    builds = new_builds(tmp_path, "exec sleep 60")
    for number in range(MAX_OF_TENANT):
        await begin(builds, "a", f"a{number}")
    with pytest.raises(E2bError, match=f"{MAX_OF_TENANT} templates of yours") as refused:
        await begin(builds, "a", "one-more")
    assert refused.value.status == 429
    await begin(builds, "b", "b1")
    assert repr(builds._queue) == f"<BuildQueue: 2 building, {MAX_OF_TENANT - 1} waiting>"
    await builds.close()
    template = await builds.records.get("a", "a9")
    assert (template.builds["a9"].status, "stopped" in template.builds["a9"].message) == (Status.ERROR, True)
    assert repr(builds._queue) == "<BuildQueue: 0 building, 0 waiting>"
    assert list(tmp_path.glob("templates/builds/*")) == []


class SlowImages(NoImages):
    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def list(self) -> list[ImageVersion]:
        self.may_go_on.wait()
        return super().list()


async def test_the_next_build_may_begin_as_soon_as_one_has_ended(tmp_path: Path) -> None:
    go, images = tmp_path / "go", SlowImages()
    builds = new_builds(tmp_path, f"until test -e {go}; do sleep 0.02; done", images)
    await begin(builds, "acme", "b1")
    images.may_go_on.clear()  # what no tag needs is not removed soon
    go.touch()
    while await status_of(builds, "acme", "b1") is not Status.READY:
        await asyncio.sleep(0.01)
    assert repr(builds._queue) == "<BuildQueue: 0 building, 0 waiting>"
    images.may_go_on.set()
    await builds.close()


def test_a_user_that_does_not_exist_is_told_in_words_that_clients_look_for() -> None:
    steps = read_steps([{"type": "WORKDIR", "args": ["/a"]}, {"type": "RUN", "args": ["who\nami", "root123"]}])
    made = make_recipe("base", ImageConfig(), "user", steps)
    cause = BuildFailed("it cannot be started")
    cause.__cause__ = UnknownUser("there is no user root123")
    failed = BuildFailed("step 4 of 4: RUN who\nami: it cannot be started")
    assert in_words_of_e2b(failed, made) is failed
    failed.__cause__ = cause
    reason = "command failed: unauthenticated: invalid username: 'root123'"
    assert in_words_of_e2b(failed, made).message == f"step 4 of 4: failed to run command 'who\nami': {reason}"


def test_the_address_of_an_upload_is_signed_and_expires() -> None:
    tokens, older = SandboxTokens([b"new", b"old"]), SandboxTokens([b"old"])
    upload = Upload(int(time.time()) + 60, "acme", "key", HASH)
    assert tokens.read_upload(tokens.sign_upload(upload)) == tokens.read_upload(older.sign_upload(upload)) == upload
    stale = tokens.sign_upload(upload._replace(expires=int(time.time()) - 1))
    forged = tokens.sign_upload(upload._replace(tenant="other")).partition(".")[0]
    mac = tokens.sign_upload(upload).partition(".")[2]
    for text in ("", "x", ".", stale, f"{forged}.{mac}", "\u2713.\u2713", older.sign_upload(upload)[:-1]):
        with pytest.raises(Unauthorized):
            tokens.read_upload(text)
