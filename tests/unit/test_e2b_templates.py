"""Parts of E2B's templates: recipes, records, uploads, and the addresses to which files are uploaded."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from warren.http.e2b.errors import E2bError
from warren.http.e2b.template_builds import TemplateBuilds
from warren.http.e2b.template_process import Plan
from warren.http.e2b.template_records import (
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
from warren.model.errors import MachineFull, Unauthorized
from warren.model.image import Configure, Copy, ImageConfig, Run
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
    await records.ensure("acme", "mine", 0.0)
    inner.busy = True
    with pytest.raises(E2bError, match="changed by others") as refused:
        await records.change("acme", "mine", lambda template: template)
    assert refused.value.status == 409
    with pytest.raises(E2bError, match="no template"):
        await records.change("acme", "other", lambda template: template)


class NoImages:
    def list(self) -> list[ImageVersion]:
        return []

    def remove(self, which: str, *, when_unused: bool = False) -> ImageVersion:
        raise AssertionError(which)


async def test_a_build_that_is_started_again_keeps_its_log(tmp_path: Path) -> None:
    command = ("/bin/sh", "-c", """echo '{"output": "hello"}'""")
    builds = TemplateBuilds(
        tmp_path, MemoryRecords(), NoImages(), ManualClock(), command, {}, timeout_s=30, disk_reserve_mb=1
    )
    build = Build("b1", 0.0, 0.0)
    await builds.records.ensure("acme", "mine", 0.0)
    template = await builds.records.change("acme", "mine", lambda now: with_build(now, build))
    await builds.build(template, build, Plan("base", "user", ()))
    while builds._running:
        await asyncio.wait(builds._running)
    log = [entry.message for entry in builds.log("b1")]
    assert log == ["hello"]
    with pytest.raises(E2bError, match="started already"):
        await builds.build(template, build, Plan("base", "user", ()))
    assert [entry.message for entry in builds.log("b1")] == log


class SlowImages(NoImages):
    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def list(self) -> list[ImageVersion]:
        self.may_go_on.wait()
        return super().list()


async def test_the_next_build_may_begin_as_soon_as_one_has_ended(tmp_path: Path) -> None:
    go, images = tmp_path / "go", SlowImages()
    command = ("/bin/sh", "-c", f"until test -e {go}; do sleep 0.02; done")
    builds = TemplateBuilds(
        tmp_path, MemoryRecords(), images, ManualClock(), command, {}, timeout_s=30, disk_reserve_mb=1
    )
    await builds.records.ensure("acme", "mine", 0.0)
    first, second = Build("b1", 0.0, 0.0), Build("b2", 0.0, 0.0)
    template = await builds.records.change("acme", "mine", lambda now: with_build(with_build(now, first), second))
    await builds.build(template, first, Plan("base", "user", ()))
    with pytest.raises(E2bError, match="one at a time"):
        await builds.build(template, second, Plan("base", "user", ()))
    images.may_go_on.clear()  # what no tag needs is not removed soon
    go.touch()
    while template.builds["b1"].status is not Status.READY:
        await asyncio.sleep(0.01)
        template = await builds.records.get("acme", "mine")
    starting = asyncio.create_task(builds.build(template, second, Plan("base", "user", ())))
    await asyncio.wait([starting], timeout=0.05)
    images.may_go_on.set()
    await starting
    await builds.close()


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
