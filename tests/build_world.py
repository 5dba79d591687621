"""Image builds for tests: a state directory of their own with `base` and a small image, and settings to change.

`python -m build_world STATE NAME LINE...` builds NAME from `small` in another process; the shell runs each LINE.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from copied_image import add_image

import warren
from warren.app.image_wiring import build_image_settings
from warren.config.settings import read_settings
from warren.images.building.builder import build_recipe
from warren.images.store.store import ImageStore
from warren.images.trees.layers import USUAL_CAPS, LayerCaps
from warren.interfaces.images import ImageVersion
from warren.model.image import Configure, Copy, Recipe, Run, Stage, Step

_LARGEST = 3 << 20


def run(text: str, **about: Any) -> Run:
    return Run(("/bin/sh", "-ec", text), f"RUN {text}", **about)


def copy(*paths: str, **about: Any) -> Copy:
    return Copy(paths[:-1], paths[-1], text=f"COPY {' '.join(paths)}", **about)


def configure(key: str, value: Any) -> Configure:
    return Configure(key, value, text=f"{key.upper()} {value}")


class Recorder:
    """Remembers the progress that a build reports."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.text = ""

    def __call__(self, step: str, fraction: float | None) -> None:
        self.steps.append(step)

    def output(self, text: str) -> None:
        self.text += text

    @property
    def cached(self) -> list[bool]:
        """Returns, for each step that makes a layer, whether it came from the cache."""
        return [step.endswith("(cached)") for step in self.steps if step.startswith("step ") and "ENV" not in step]


class BuildWorld:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.images = ImageStore(state)
        self.recorder = Recorder()
        self.options: dict[str, Any] = {"image_network": ()}

    @classmethod
    def new(cls, state: Path, image_cache: Path) -> "BuildWorld":
        """Makes a world with `base`, and `small`: the shell and the small programs of `base`."""
        world = cls(state)
        base = ImageStore(image_cache).rootfs("base").path
        add_image(state, "base", base.parent)
        small = state / "small"
        for folder in ("usr/bin", f"usr/lib/{os.uname().machine}-linux-gnu", "usr/lib64"):
            if (base / folder).is_dir():
                (small / folder).mkdir(parents=True)
                _copy_small(base / folder, small / folder)
        for name in ("bin", "lib", "lib64"):
            if (base / name).is_symlink():
                (small / name).symlink_to(os.readlink(base / name))
        (small / "opt").mkdir()
        for loader in (base / "usr/lib").glob("ld-*"):
            shutil.copy2(loader, small / "usr/lib", follow_symlinks=False)
        world.images.import_directory("small", small)
        shutil.rmtree(small)
        return world

    def build(
        self,
        name: str,
        *stages: Stage | Step,
        context: Path | None = None,
        no_cache: bool = False,
        caps: LayerCaps = USUAL_CAPS,
        **options: Any,
    ) -> ImageVersion:
        """Builds an image. Steps outside of a stage form one stage based on `small`."""
        self.recorder = Recorder()
        settings = replace(read_settings(), state_dir=self.state, bin_dir=Path(warren.__file__).parent / "bin")
        settings = replace(settings, **{"image_build_disk_mb": 256, **self.options, **options})
        built = build_image_settings(settings)
        whole = [one for one in stages if isinstance(one, Stage)]
        steps = tuple(one for one in stages if not isinstance(one, Stage))
        return build_recipe(
            self.images,
            name,
            Recipe(tuple(whole) or (Stage("small", steps),), "a test"),
            context=context,
            settings=replace(built, limits=replace(built.limits, caps=caps)),
            progress=self.recorder,
            no_cache=no_cache,
        )

    def root(self, name: str) -> Path:
        return self.images.rootfs(name).path

    def text(self, name: str, path: str) -> str:
        return (self.root(name) / path).read_text()

    def left(self) -> list[str]:
        """Returns what builders have left in the folder of the images."""
        return [name for name in os.listdir(self.images.folder) if name.startswith(".making")]


def _copy_small(source: Path, target: Path) -> None:
    for entry in os.scandir(source):
        if entry.is_symlink() or (entry.is_file() and entry.stat().st_size < _LARGEST):
            shutil.copy2(entry.path, target, follow_symlinks=False)


def main(arguments: Sequence[str]) -> None:
    world = BuildWorld(Path(arguments[0]))
    print(world.build(arguments[1], *map(run, arguments[2:])).version)


if __name__ == "__main__":
    main(sys.argv[1:])
