"""What operators see of a machine that runs sandboxes: what its doctor says, and the builds of its images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from warren.model.image import Recipe


class Doctor(Protocol):
    """`report` gives `checks` and `counts`, as `warren doctor --json` prints them, `at` (a time of day), and `attack`:
    what the last `warren doctor --attack` has found, or None. Raises Unavailable if the checks cannot be made."""

    async def report(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class BuildStatus:
    """`state` is building, done, failed or cancelled. `lines` are the last that it wrote. Times are times of day."""

    image: str
    state: str
    step: str
    fraction: float | None
    started_at: float
    ended_at: float | None
    lines: Sequence[str]


class ImageBuildControl(Protocol):
    """`statuses` has the builds that run, and the last of each image that has ended. `start` builds an image by its
    own recipe, or that of its environment; one that is being built goes on. It raises InvalidRequest if there is no
    recipe. `cancel` waits until the build has cleaned up, and raises NotFound if none runs."""

    def statuses(self) -> Sequence[BuildStatus]: ...
    def start(self, image: str, recipe: Recipe | None) -> BuildStatus: ...
    async def cancel(self, image: str) -> BuildStatus: ...
