"""Puts a copy of an image into another state directory, so that what a test does with images concerns nobody else."""

import shutil
from pathlib import Path

from warren.images.store.versions import Versions
from warren.images.trees.layers import flatten


def add_image(state: Path, name: str, image: Path) -> None:
    """Adds the image whose rootfs/ and image.json are in `image`. The files of the copy are hard links."""
    made = state / "images" / f".{name}"
    made.mkdir(parents=True)
    flatten(image / "rootfs", [], made / "rootfs")
    shutil.copy(image / "image.json", made)
    Versions(state / "images").add(name, made)
