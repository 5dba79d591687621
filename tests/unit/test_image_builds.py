"""Images that are built when they are first needed: one build at a time, its progress, its failure, its end."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from warren.config.image_recipes import Where, recipe_of
from warren.images.building.build_locks import building_lock, is_being_built
from warren.images.building.on_demand import FetchImage, ImageBuilds
from warren.model.errors import ImageBuildFailed, ImageBuilding, ImageNotFound, LimitReached
from warren.model.image import Recipe
from warren.model.image_pulls import ALLOW_LIST, ON, PullRules
from warren.model.tenant_images import pulled_image

pytestmark = pytest.mark.anyio
RECIPE = recipe_of({"python": ["x"], "about": "2 min"}, Where(None))
BUILDER = """
import json, os, pathlib, sys, time
folder = pathlib.Path(os.environ["FOLDER"])
with (folder / "begun").open("a") as file: file.write(f"{sys.argv[1:]} {os.getpid()}\\n")
print(json.dumps({"step": "python x", "fraction": 0.5}), flush=True)
while not (folder / "go").exists(): time.sleep(0.01)
if (folder / "fail").exists():
    print("what the step wrote")
    error = (folder / "fail").read_text() or "/root/secret: no such package"
    print(json.dumps({"error": error, "code": "image_not_found", "lines": ["ERROR: no x"]}))
    sys.exit(1)
(folder / "image").write_text(os.environ["SOURCE"])
"""


class Machine:
    """A builder whose image is a file with what it was made from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recipes: dict[str, Recipe] = {"python": RECIPE}
        self.builds = self.new_builds()

    def new_builds(self, source: str = RECIPE.source, fetch: FetchImage | None = None) -> ImageBuilds:
        env = {**os.environ, "FOLDER": str(self.folder), "SOURCE": source}
        command = (sys.executable, "-c", BUILDER)
        read = self.image.read_text
        return ImageBuilds(self.recipes.get, lambda *_: read(), command, env, self.folder, fetch, pulls=PullRules(ON))

    @property
    def image(self) -> Path:
        return self.folder / "image"

    @property
    def begun(self) -> list[str]:
        file = self.folder / "begun"
        return file.read_text().splitlines() if file.exists() else []

    async def version(self) -> str:
        if not self.image.exists():
            raise ImageNotFound("none")
        return str(self.image.stat().st_mtime_ns)

    async def prepare(self, image: str = "python") -> None:
        await self.builds.prepare(image, None, self.version)

    async def state(self) -> str:
        return await self.builds.state("python", None, self.version)

    async def when(self, kind: type[Exception] | None, step: str = "", image: str = "python") -> Exception | None:
        """Asks until this is the answer."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            found: Exception | None = None
            try:
                await self.prepare(image)
            except Exception as exc:
                found = exc
            is_it = found is None if kind is None else isinstance(found, kind)
            if is_it and (not step or getattr(found, "step", "") == step):
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"{kind} never came, but {found!r}")


@pytest.fixture
async def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_many_callers_start_one_build_and_hear_how_far_it_is(machine: Machine) -> None:
    assert await machine.state() == "missing"
    asked = [asyncio.ensure_future(machine.prepare()) for _ in range(20)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(answer, ImageBuilding) for answer in answers)
    building = await machine.when(ImageBuilding, "python x")
    assert isinstance(building, ImageBuilding)
    assert (building.fraction, building.about, building.retry_after_s) == (0.5, "2 min", 2.0)
    assert "it takes about 2 min" in building.message
    assert await machine.state() == "building"
    (machine.folder / "go").touch()
    await machine.when(None)
    assert len(machine.begun) == 1
    assert machine.begun[0].startswith(f"['{os.getpid()}', 'python']")
    assert await machine.state() == "ready"
    await machine.builds.close()


async def test_an_image_without_a_recipe_is_not_asked_for(machine: Machine) -> None:
    machine.builds.pulls = PullRules()
    await machine.builds.prepare("ubuntu:22.04", None, machine.version)
    assert await machine.builds.state("ubuntu:22.04", None, machine.version) == "missing"
    assert machine.begun == []


async def test_nothing_is_pulled_for_tenants_while_pulls_are_off(machine: Machine) -> None:
    """Neither an image that the tenant names as its machine does, nor the newer one of a tag that was pulled before."""
    mine = pulled_image("acme", "evil.example.com/team/image:1")
    machine.builds.pulls = PullRules()
    await machine.prepare(mine)
    machine.image.touch()
    await machine.prepare(mine)
    machine.builds.pulls = PullRules.read(ALLOW_LIST, ["python"])
    await machine.prepare(mine)
    assert machine.builds._builds == {}
    assert machine.begun == []


async def test_an_image_that_another_process_makes_is_waited_for(machine: Machine) -> None:
    machine.builds.pulls = PullRules()
    with building_lock(machine.folder, "ubuntu:22.04"), pytest.raises(ImageBuilding, match="is being made"):
        await machine.prepare("ubuntu:22.04")
    await machine.prepare("ubuntu:22.04")
    assert machine.begun == []


async def test_a_pull_says_how_long_it_will_take_and_why_it_failed(machine: Machine) -> None:
    mine, (go, fail) = pulled_image("acme", "python:3.99"), (machine.folder / "go", machine.folder / "fail")
    building = await machine.when(ImageBuilding, "python x", mine)
    assert isinstance(building, ImageBuilding)
    assert "is being pulled" in building.message
    machine.builds._builds[mine].began -= 20  # it is half done
    with pytest.raises(ImageBuilding) as caught:
        await machine.prepare(mine)
    assert caught.value.remaining_s == pytest.approx(20, abs=2)
    assert caught.value.retry_after_s == pytest.approx(20, abs=2)
    fail.write_text("the registry has no manifests/3.99 of library/python")
    go.touch()
    failed = await machine.when(ImageNotFound, image=mine)
    assert "'python:3.99' could not be pulled: the registry has no manifests/3.99" in str(failed)
    fail.write_text("the file of passwords /root/.docker/config.json cannot be read")
    machine.builds._builds.clear()
    hidden = await machine.when(ImageBuildFailed, image=mine)
    assert "/root" not in str(hidden)
    fail.write_text(f"making the image: File name too long ({machine.folder}/x)")
    machine.builds._builds.clear()
    hidden = await machine.when(ImageBuildFailed, image=mine)
    assert str(machine.folder) not in str(hidden)
    own = await machine.when(ImageBuildFailed, image="ubuntu:22.04")
    assert "`warren image pull ubuntu:22.04`" in str(own)
    machine.builds.pulls = replace(machine.builds.pulls, is_own=True)
    fail.write_text("the registry has no manifests/22.04")
    machine.builds._builds.clear()
    own = await machine.when(ImageNotFound, image="ubuntu:22.04")  # who named it is the operator
    assert "'ubuntu:22.04' could not be pulled: the registry has no manifests/22.04" in str(own)
    await machine.builds.close()


async def test_a_tenant_has_a_bounded_number_of_pulls(machine: Machine) -> None:
    names = [pulled_image("acme", f"image:{number}") for number in range(9)]
    asked = await asyncio.gather(*(machine.prepare(name) for name in names), return_exceptions=True)
    assert [type(answer) for answer in asked] == [*[ImageBuilding] * 8, LimitReached]
    assert len(machine.begun) == 1
    with pytest.raises(ImageBuilding):
        await machine.prepare(pulled_image("other", "image:1"))
    assert len(machine.begun) == 2
    await machine.builds.close()


async def test_what_a_tenant_gets_from_other_workers_takes_turns_and_may_be_refused(machine: Machine) -> None:
    running, most, may_end = list[str](), list[int](), asyncio.Event()

    async def fetch(image: str, progress: Callable[[int, int], None]) -> bool:
        running.append(image)
        most.append(len(running))
        await may_end.wait()
        running.remove(image)
        if image.endswith(":1"):
            raise LimitReached("yours take too much", retry_after_s=60.0)
        machine.image.write_text("")
        return True

    machine.builds = machine.new_builds(fetch=fetch)
    names = [pulled_image("acme", f"image:{number}") for number in range(3)]
    asked = await asyncio.gather(*(machine.prepare(name) for name in names), return_exceptions=True)
    assert [type(answer) for answer in asked] == [ImageBuilding] * 3
    assert running == names[:1]
    may_end.set()
    await asyncio.gather(*(build.task for build in machine.builds._builds.values() if build.task))
    assert max(most) == 1
    machine.image.unlink()
    with pytest.raises(LimitReached, match="could not be pulled: yours take too much"):
        await machine.prepare(names[1])
    assert machine.begun == []
    await machine.builds.close()


async def test_a_failed_look_for_a_newer_image_is_not_repeated_before_the_next_day(machine: Machine) -> None:
    machine.image.touch()
    (machine.folder / "fail").touch()
    (machine.folder / "go").touch()
    mine = pulled_image("acme", "image:1")
    await machine.prepare(mine)
    look = machine.builds._builds[mine]
    assert look.task is not None
    await look.task
    assert look.failed
    for hours, looks in ((1, 1), (23.9, 1), (24.1, 2)):
        look.ended_at = time.monotonic() - hours * 3600
        machine.builds._forget_old()
        await machine.prepare(mine)
        task = machine.builds._builds[mine].task
        assert task is not None
        await task
        assert len(machine.begun) == looks
    await machine.builds.close()


async def test_an_outdated_image_stays_in_use_until_the_new_one_is_ready(machine: Machine) -> None:
    machine.image.write_text("recipe older")
    await machine.prepare()
    assert await machine.state() == "building"
    await machine.prepare()
    (machine.folder / "go").touch()
    while await machine.state() != "ready":
        await asyncio.sleep(0.02)
    await machine.prepare()
    assert len(machine.begun) == 1
    await machine.builds.close()


async def test_an_image_made_by_hand_is_never_outdated(machine: Machine) -> None:
    machine.image.write_text("tar from stdin")
    await machine.prepare()
    assert await machine.state() == "ready"
    assert machine.begun == []


async def test_a_failed_build_is_not_repeated_at_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    (machine.folder / "go").touch()
    (machine.folder / "fail").touch()
    failed = await machine.when(ImageBuildFailed)
    assert isinstance(failed, ImageBuildFailed)
    assert "the step 'python x' failed" in failed.message
    assert "secret" not in str(failed)  # where things are is the operator's business
    assert failed.retry_after_s is not None
    assert 50 < failed.retry_after_s <= 60
    for _ in range(3):
        with pytest.raises(ImageBuildFailed):
            await machine.prepare()
    assert len(machine.begun) == 1
    said = " ".join(str(vars(record)) for record in caplog.records)
    assert "no such package" in said
    assert "ERROR: no x" in said

    (machine.folder / "fail").unlink()
    machine.recipes["python"] = recipe_of({"python": ["y"]}, Where(None))
    machine.builds._env = {**machine.builds._env, "SOURCE": machine.recipes["python"].source}  # type: ignore[dict-item]
    await machine.when(None)
    assert len(machine.begun) == 2


async def test_closing_ends_the_build(machine: Machine) -> None:
    await machine.when(ImageBuilding, "python x")
    process = int(machine.begun[0].rpartition(" ")[2])
    await machine.builds.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_the_lock_of_a_build_is_seen_by_others(tmp_path: Path) -> None:
    assert not is_being_built(tmp_path, "environment/x")
    with building_lock(tmp_path, "environment/x") as waited:
        assert not waited
        assert is_being_built(tmp_path, "environment/x")
        assert not is_being_built(tmp_path, "environment/y")
    assert not is_being_built(tmp_path, "environment/x")


def test_the_lock_of_a_build_that_was_killed_goes_with_the_next_build(tmp_path: Path) -> None:
    with building_lock(tmp_path, "held"):
        (tmp_path / ".building/killed").touch()
        with building_lock(tmp_path, "next"):
            assert {path.name for path in (tmp_path / ".building").iterdir()} == {"held", "next"}
            assert is_being_built(tmp_path, "held")


def test_locks_leave_no_files_and_hold_each_other_off(tmp_path: Path) -> None:
    held: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(50):
            with building_lock(tmp_path, "python"):
                held.append(1)
                most.append(len(held))
                held.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (200, 1)
    assert list((tmp_path / ".building").iterdir()) == []
