"""What an image says about itself, and the recipe that makes one: stages and their steps.

A recipe comes from a Dockerfile, from the `image:` block of an environment's file, or from the options of `warren image
build`. It is only data; warren.images builds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """`env`, `workdir` and `user` apply to commands in a sandbox of the image; the other fields are only kept and
    shown. `digest`: the digest of the manifest it was pulled by, with its algorithm, or the id that a Docker engine
    gave it."""

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    exposed_ports: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    healthcheck: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""


NO_CONFIG = ImageConfig()


@dataclass(frozen=True, slots=True)
class Run:
    """A command, with its shell already in `argv`. `text`: the command as it was written. `line`: its line in the file;
    0 if there is no file. `env` and `user` apply to this command only: `env` is added to the image's, `user` replaces
    it."""

    argv: tuple[str, ...]
    text: str
    line: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """`sources`: patterns below the directory of the build, or paths in the root of `stage` (a stage's name or number,
    or an image). `unpack`: local tar archives are unpacked, as ADD does."""

    sources: tuple[str, ...]
    target: str
    stage: str = ""
    owner: str = ""
    mode: str = ""
    unpack: bool = False
    text: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Configure:
    """Changes what the image says about itself, for the following steps and for its sandboxes. `key` is a field of
    ImageConfig. Values of `env` and `labels` are added to the existing ones, other values replace them."""

    key: str
    value: Any
    text: str = ""
    line: int = 0


Step = Run | Copy | Configure
RECIPE = "recipe"  # `recipe DIGEST` is the source of an image that was built from a block of YAML


@dataclass(frozen=True, slots=True)
class Stage:
    """`base` is an image on this machine, `scratch`, an earlier stage, `docker:REF`, `oci:REF`, or a name such as
    `debian:bookworm`."""

    base: str
    steps: tuple[Step, ...] = ()
    name: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """The last stage is the image. `source`: where the recipe came from, in a word or two. `about`: how long building
    it takes, in words."""

    stages: tuple[Stage, ...]
    source: str = ""
    about: str = ""

    def made_another(self, source: str) -> bool:
        """Returns whether an image with this source was built from a different recipe in YAML. Images made by hand or
        from a Dockerfile were not."""
        kind = self.source.partition(" ")[0]
        return kind == RECIPE and source.startswith(f"{RECIPE} ") and source != self.source


def remaining_s(elapsed_s: float, fraction: float | None) -> float | None:
    """Returns how long something will still take if it goes on as it began; None if too little of it is done to say."""
    return round(elapsed_s * (1 - fraction) / fraction, 1) if fraction and fraction >= 0.02 else None
