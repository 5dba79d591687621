"""What operators see of a machine that runs sandboxes: the report of its doctor, and the builds of its images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from warren.model.image import Recipe


class Doctor(Protocol):
    """`report` returns `checks` and `counts`, as `warren doctor --json` prints them, `at` (a wall-clock time), and
    `attack`, the report of the last `warren doctor --attack` or None. It raises Unavailable if the checks cannot
    run."""

    async def report(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class BuildStatus:
    """`state`: building, done, failed or cancelled. `lines`: the last lines of the build's output. Times are wall-clock
    times."""

    image: str
    state: str
    step: str
    fraction: float | None
    started_at: float
    ended_at: float | None
    lines: Sequence[str]


class ImageBuildControl(Protocol):
    """`statuses` returns the running builds, and the last finished build of each image. `start` builds an image by its
    own recipe, or by that of its environment, and joins a build that is running already. It raises InvalidRequest if
    there is no recipe. `cancel` waits until the build has cleaned up, and raises NotFound if none is running."""

    def statuses(self) -> Sequence[BuildStatus]: ...
    def start(self, image: str, recipe: Recipe | None) -> BuildStatus: ...
    async def cancel(self, image: str) -> BuildStatus: ...
