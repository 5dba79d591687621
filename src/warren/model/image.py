"""What an image says about itself, and how one is made: a recipe of stages and steps.

A recipe comes from a Dockerfile, from the `image:` block of an environment's file, or from the options of `warren image
build`. It holds no logic: worker/images builds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """`env`, `workdir` and `user` hold for commands in a sandbox of the image; the rest is kept and shown. `digest` is
    that of the manifest it was pulled by, with its algorithm, or the id that a Docker engine knows it by."""

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
    """A command, with its shell already in `argv`. `text` is how it was written, `line` where; 0: in no file. `env`
    holds for this command alone, beside the image's own; `user` too, in place of the image's."""

    argv: tuple[str, ...]
    text: str
    line: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """`sources` are patterns below the build's directory, or paths in the root of `stage` (a stage's name or number, or
    an image). `unpack`: local tar archives are unpacked, as ADD does."""

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
    """Changes what the image says about itself, for the steps that follow and for its sandboxes. `key` is a field of
    ImageConfig. Values of `env` and `labels` are added to those there are; others replace."""

    key: str
    value: Any
    text: str = ""
    line: int = 0


Step = Run | Copy | Configure
RECIPE = "recipe"  # with a digest after it, the source of an image whose recipe is a block of YAML


@dataclass(frozen=True, slots=True)
class Stage:
    """`base` is an image of this machine, `scratch`, an earlier stage, `docker:REF`, `oci:REF`, or a name such as
    `debian:bookworm`."""

    base: str
    steps: tuple[Step, ...] = ()
    name: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """The last stage is the image. `source` says where the recipe came from, in a word or two; `about` how long
    building it takes, as people say it."""

    stages: tuple[Stage, ...]
    source: str = ""
    about: str = ""

    def made_another(self, source: str) -> bool:
        """Whether an image of this source was built from another recipe of its kind; one that was made by hand, or from
        a Dockerfile, was not."""
        kind = self.source.partition(" ")[0]
        return kind == RECIPE and source.startswith(f"{RECIPE} ") and source != self.source
