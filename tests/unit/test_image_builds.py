"""Images that are built when they are first needed: one build at a time, its progress, its failure, its end."""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from warren.config.image_recipes import Where, recipe_of
from warren.images.building.on_demand import ImageBuilds, building_lock, is_being_built
from warren.model.errors import ImageBuildFailed, ImageBuilding, ImageNotFound
from warren.model.image import Recipe

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
    print(json.dumps({"error": "/root/secret: no such package", "lines": ["ERROR: no x"]}))
    sys.exit(1)
(folder / "image").write_text(os.environ["SOURCE"])
"""


class Machine:
    """A builder whose image is a file with what it was made from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recipes: dict[str, Recipe] = {"python": RECIPE}
        self.builds = self.new_builds()

    def new_builds(self, source: str = RECIPE.source) -> ImageBuilds:
        env = {**os.environ, "FOLDER": str(self.folder), "SOURCE": source}
        command = (sys.executable, "-c", BUILDER)
        return ImageBuilds(self.recipes.get, lambda *_: self.image.read_text(), command, env, self.folder)

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

    async def prepare(self) -> None:
        await self.builds.prepare("python", None, self.version)

    async def state(self) -> str:
        return await self.builds.state("python", None, self.version)

    async def when(self, kind: type[Exception] | None, step: str = "") -> Exception | None:
        """Asks until this is the answer."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            found: Exception | None = None
            try:
                await self.prepare()
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
    await machine.builds.prepare("ubuntu:22.04", None, machine.version)
    assert await machine.builds.state("ubuntu:22.04", None, machine.version) == "missing"
    assert machine.begun == []


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
