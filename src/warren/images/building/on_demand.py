"""Builds, fetches or pulls images when they are first needed. `LocalWorker.prepare` asks before each claim.

In a cluster an image that is missing here is taken from a worker that has it, before it is built or pulled. What has a
recipe is built; of the rest, what the operator allows is pulled (model/image_pulls.py).

A build or a pull is a process of its own (`warren image build`), which dies with this one. There is one at a time per
image: it waits for one of the same image by another process (`building_lock`). While a missing image is being made,
callers get ImageBuilding; an outdated image stays in use until the new one is ready. A failed build is repeated after a
minute, or when its recipe has changed. Its last lines are in the log; callers only learn which step failed, but the
tenant that an image is pulled for is told why that failed. How many pulls a tenant may have is in pull_turns.py. Once a
day a pull looks whether the tag of a tenant's image has moved.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warren.images.building.build_locks import is_being_built
from warren.images.building.pull_turns import PullTurns
from warren.interfaces.machine import BuildStatus
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.errors import (
    ImageBuildFailed,
    ImageBuilding,
    ImageNotFound,
    InvalidRequest,
    LimitReached,
    MachineFull,
    NotFound,
    PermissionDenied,
    Unavailable,
    WarrenError,
)
from warren.model.image import Recipe, remaining_s
from warren.model.image_pulls import NO_PULLS, PullRules
from warren.model.tenant_images import pulled_for, reference_in
from warren.sandboxes.host.processes import stop_child

_REPEAT_S: Final = 60.0
_FETCH_AGAIN_S: Final = 5.0
_PULL_AGAIN_S: Final = 10.0
_LOOK_AGAIN_S: Final = 86400.0
_FIND_S: Final = 1.0
_OF_ENVIRONMENTS: Final = "environment/"
_PULL_TIMEOUT_S: Final = 1800.0
_NO_RECIPE: Final = Recipe(())
_RETRY_AFTER_S: Final = (2.0, 30.0)
_MAX_REMEMBERED: Final = 500  # fetches and pulls that have ended
_PATH: Final = re.compile(r"(?:^|\s)/\S")
_TOLD: Final = {
    kind.code: kind
    for kind in (ImageNotFound, InvalidRequest, LimitReached, MachineFull, PermissionDenied, Unavailable)
}
_STOP_S: Final = 15.0
_LONGEST_LINE: Final = 1 << 20
_log = get_log(__name__)

FetchImage = Callable[[str, Callable[[int, int], None]], Awaitable[bool]]
"""Fetches an image from elsewhere and reports the received and total bytes. Returns False if nobody has the image."""

ImageState = str  # ready, missing, outdated, building


@dataclass(slots=True)
class _BuildState:
    """A build that is running, or that ended at `ended_at`. `doing` is what happens to the image. `began`: when the
    process was started, which may have waited for its turn. `error` and `code`: why a pull failed. `is_look`: the image
    is here, and a pull looks whether its tag has moved."""

    source: str
    about: str
    doing: str = "built"
    step: str = "starting"
    fraction: float | None = None
    failed: bool = False
    ended_at: float = 0.0
    task: asyncio.Task[None] | None = None
    lines: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    error: str = ""
    code: str = ""
    is_look: bool = False

    @property
    def remaining_s(self) -> float | None:
        """None for a build, whose steps take very different times."""
        return None if self.doing == "built" else remaining_s(time.monotonic() - self.began, self.fraction)


class ImageBuilds:
    """The builds of this worker. `recipe_of` returns the recipe for an image's name, `source_of` what a version was
    made from. `command` builds an image: this process's id and the image's name are appended, and it reports each step
    as a line of JSON on stdout. It pulls an image that has no recipe. `fetch` gets images from other machines of a
    cluster. `pulls` says what is pulled; a pull for a tenant may take `pull_timeout_s`."""

    def __init__(
        self,
        recipe_of: Callable[[str], Recipe | None],
        source_of: Callable[[str, str], str],
        command: Sequence[str],
        env: Mapping[str, str],
        images: Path,
        fetch: FetchImage | None = None,
        *,
        pulls: PullRules = NO_PULLS,
        pull_timeout_s: float = _PULL_TIMEOUT_S,
    ) -> None:
        self._recipe_of, self._source_of = recipe_of, source_of
        self._command, self._env, self._images = command, env, images
        self._fetch = fetch
        self.pulls, self._pull_timeout_s = pulls, pull_timeout_s
        self._turns = PullTurns()
        self._builds: dict[str, _BuildState] = {}
        self._sources: dict[str, tuple[str, str]] = {}  # image -> a version and what it was made from
        self._closed = False

    def recipe(self, image: str, own: Recipe | None) -> Recipe | None:
        """Returns the recipe of an image. `own` is the recipe of the image's environment and comes first."""
        return own or self._recipe_of(image)

    async def prepare(self, image: str, recipe: Recipe | None, find_version: Callable[[], Awaitable[str]]) -> None:
        """Returns if there is an image to make sandboxes from, or no way to get one. Raises ImageBuilding, or
        ImageBuildFailed if the last attempt failed a moment ago; for an image that is pulled for a tenant, why that
        failed. `recipe` is the environment's own."""
        recipe, pull = self.recipe(image, recipe), self.pulls.pulls_for_tenant(image) or self.pulls.pulls_own(image)
        if recipe is None and not (self._fetch or pull or is_being_built(self._images, image)):
            return
        version = await _version_or_none(find_version)
        if recipe is None and version is None:
            await self._prepare_unbuilt(image, pull=pull)
            return
        if recipe is None:
            self._note_found(image)
            return
        if version is not None and not await self._is_outdated(image, version, recipe):
            if self._has_ended(image):
                del self._builds[image]
            return
        build = self._builds.get(image)
        if build is None or (self._has_ended(image) and self._may_repeat(build, recipe, is_missing=version is None)):
            build = self._start(image, recipe, missing=version is None)
        if version is not None:
            return
        if build.failed:
            by_hand = "environments build" if image.startswith(_OF_ENVIRONMENTS) else f"image build {image}"
            raise ImageBuildFailed(
                f"the image of this environment could not be built: the step {build.step[:200]!r} failed",
                remedy=f"the operator finds why in the server's log, or with `warren {by_hand}`",
                retry_after_s=max(1.0, build.ended_at + _REPEAT_S - time.monotonic()),
            )
        raise _building(build)

    async def find(self, image: str, find_version: Callable[[], Awaitable[str]]) -> bool:
        """Returns whether this machine, or another one of the cluster, has an image that a tenant has named. Raises
        ImageBuilding while it is copied."""
        if await _version_or_none(find_version) is not None:
            return True
        if self._fetch is not None:
            await self._prepare_unbuilt(image, pull=False)
        return self._fetch is not None and await _version_or_none(find_version) is not None

    async def _prepare_unbuilt(self, image: str, *, pull: bool) -> None:
        """Fetches or pulls a missing image without a recipe. Raises ImageBuilding while that runs, also in another
        process, and what `_pull_failure` says when a pull has failed. Returns if nobody has the image."""
        build = self._builds.get(image)
        if self._fetch is None and not pull:
            raise _building(_BuildState("", "", "made", step="another process makes it"))
        again_s = (_PULL_AGAIN_S if pull else _FETCH_AGAIN_S) if build is not None and build.failed else 0.0
        if build is None or (self._has_ended(image) and time.monotonic() >= build.ended_at + again_s):
            build = self._start(image, _NO_RECIPE, missing=True, pull=pull)
            assert build.task is not None
            await asyncio.wait([build.task], timeout=_FIND_S)  # mostly it turns out at once that nobody has it
        if not self._has_ended(image):
            raise _building(build)
        if build.failed and pull:
            named = image if self.pulls.is_own else reference_in(image)
            raise _pull_failure(image, named, build, self._images.parent)

    def _note_found(self, image: str) -> None:
        """Looks in the background, once a day, whether the tag of a tenant's image points to another one now."""
        build = self._builds.get(image)
        if not pulled_for(image):
            self._builds.pop(image, None)
        elif (
            "@" not in image
            and self.pulls.pulls_for_tenant(image)
            and (build is None or (self._has_ended(image) and time.monotonic() >= build.ended_at + _LOOK_AGAIN_S))
        ):
            with suppress(LimitReached, Unavailable):
                self._start(image, _NO_RECIPE, missing=False, pull=True)

    async def state(self, image: str, recipe: Recipe | None, find_version: Callable[[], Awaitable[str]]) -> ImageState:
        version = await _version_or_none(find_version)
        recipe = self.recipe(image, recipe)
        if version is not None and (recipe is None or not await self._is_outdated(image, version, recipe)):
            return "ready"
        if (image in self._builds and not self._has_ended(image)) or is_being_built(self._images, image):
            return "building"
        return "missing" if version is None else "outdated"

    # -- for operators

    def statuses(self) -> Sequence[BuildStatus]:
        return [self._status(image) for image in sorted(self._builds)]

    def start(self, image: str, recipe: Recipe | None) -> BuildStatus:
        if image not in self._builds or self._has_ended(image):
            found = self.recipe(image, recipe)
            if found is None:
                raise InvalidRequest(
                    f"there is no recipe for the image {image!r}", remedy="write one: docs/build.md says how"
                )
            self._start(image, found, missing=False)
        return self._status(image)

    async def cancel(self, image: str) -> BuildStatus:
        build = self._builds.get(image)
        if build is None or build.task is None or build.task.done():
            raise NotFound(f"no build of the image {image!r} runs here")
        build.cancelled = True
        build.task.cancel()
        await asyncio.wait([build.task])
        build.ended_at = time.monotonic()
        _log.info("image_build_cancelled", image=image)
        return self._status(image)

    def _status(self, image: str) -> BuildStatus:
        build, ended_at = self._builds[image], None
        if has_ended := self._has_ended(image):
            ended_at = time.time() - (time.monotonic() - build.ended_at) if build.ended_at else build.started
        ended_as = "cancelled" if build.cancelled else "failed" if build.failed else "done"
        state = ended_as if has_ended else "building"
        return BuildStatus(image, state, build.step, build.fraction, build.started, ended_at, tuple(build.lines[-40:]))

    async def close(self) -> None:
        self._closed = True
        tasks = [build.task for build in self._builds.values() if build.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _is_outdated(self, image: str, version: str, recipe: Recipe) -> bool:
        if not recipe.source:  # `base`, which has no recipe that could change
            return False
        known = self._sources.get(image)
        if known is None or known[0] != version:
            known = self._sources[image] = version, await asyncio.to_thread(self._source_of, image, version)
        return recipe.made_another(known[1])

    def _has_ended(self, image: str) -> bool:
        build = self._builds.get(image)
        return build is not None and (build.task is None or build.task.done())

    def _may_repeat(self, build: _BuildState, recipe: Recipe, *, is_missing: bool) -> bool:
        if build.source != recipe.source or (is_missing and not build.failed):
            return True
        return time.monotonic() >= build.ended_at + _REPEAT_S

    def _start(self, image: str, recipe: Recipe, *, missing: bool, pull: bool = False) -> _BuildState:
        if self._closed:
            raise Unavailable("the server is being stopped", retry_after_s=5.0)
        tenant = pulled_for(image)
        if tenant:
            self._turns.join(tenant)
        self._forget_old()
        doing = "built" if recipe.stages else "pulled" if pull else "copied"
        build = _BuildState(recipe.source, recipe.about, doing, is_look=pull and not missing)
        self._builds[image] = build
        build.task = asyncio.ensure_future(
            self._get_in_turn(image, build, missing=missing, can_make=pull or recipe.stages != ())
        )
        if tenant:
            build.task.add_done_callback(lambda _: self._turns.leave(tenant))
        return build

    def _forget_old(self) -> None:
        """Forgets the oldest of the images without a recipe that were asked for, and those that could not be had a
        while ago: tenants may name any image. A failed look is remembered, or the next one would come too soon."""
        now = time.monotonic()
        ended = [image for image, build in self._builds.items() if not build.source and self._has_ended(image)]
        ended.sort(key=lambda image: self._builds[image].ended_at)
        for number, image in enumerate(ended):
            build = self._builds[image]
            is_old = build.failed and not build.is_look and now > build.ended_at + _REPEAT_S
            if number < len(ended) - _MAX_REMEMBERED or is_old:
                del self._builds[image]

    async def _get_in_turn(self, image: str, build: _BuildState, *, missing: bool, can_make: bool) -> None:
        if not (tenant := pulled_for(image)):
            return await self._get(image, build, missing=missing, can_make=can_make)
        build.step = "waiting for its turn"
        async with self._turns.turn(tenant):
            build.step, build.began = "starting", time.monotonic()
            await self._get(image, build, missing=missing, can_make=can_make, timeout_s=self._pull_timeout_s)

    async def _get(
        self, image: str, build: _BuildState, *, missing: bool, can_make: bool, timeout_s: float | None = None
    ) -> None:
        if missing and self._fetch is not None and await self._take(image, build, self._fetch, timeout_s):
            build.ended_at = time.monotonic()
        elif not can_make or build.error:
            build.ended_at, build.failed = time.monotonic(), True
        else:
            await self._run(image, build, timeout_s)

    async def _take(self, image: str, build: _BuildState, fetch: FetchImage, timeout_s: float | None) -> bool:
        """Returns whether the image was fetched. Notes an error if the tenant may have no more, so no pull can help."""

        def progress(done: int, total: int) -> None:
            build.step = "copying it from another worker"
            build.fraction = min(0.99, done / total) if total else None

        try:
            async with asyncio.timeout(timeout_s):
                return await fetch(image, progress)
        except (WarrenError, OSError) as exc:
            if isinstance(exc, LimitReached):
                build.error, build.code = exc.message, exc.code
            _log.warning("image_not_fetched", image=image, error=exc)
            return False

    async def _run(self, image: str, build: _BuildState, timeout_s: float | None = None) -> None:
        began = time.monotonic()
        _log.info("image_build_started", image=image, about=build.about or None)
        lines = build.lines
        try:
            async with asyncio.timeout(timeout_s):
                code = await self._follow(image, build, lines)
        except TimeoutError:
            code, build.error, build.code = 1, f"it took longer than {timeout_s:g} s", Unavailable.code
            lines.append(build.error)
        except (OSError, ValueError) as exc:
            code = 1
            lines.append(str(exc))
        seconds = round(time.monotonic() - began, 1)
        build.ended_at, build.failed = time.monotonic(), code != 0
        if code == 0:
            _log.info("image_build_done", image=image, seconds=seconds)
            return
        log = _log.warning if pulled_for(image) else _log.error  # tenants may name what there is not
        log("image_build_failed", image=image, step=build.step, seconds=seconds, output="\n".join(lines[-40:]))

    async def _follow(self, image: str, build: _BuildState, lines: list[str]) -> int:
        return await run_build(self._command, image, self._env, lambda line: _note(build, lines, line))


async def run_build(command: Sequence[str], image: str, env: Mapping[str, str], note: Callable[[str], None]) -> int:
    """Runs a build to its end, passing each line of its output to `note`, and returns its exit code. If cancelled, lets
    the build clean up before it returns."""
    process = await asyncio.create_subprocess_exec(
        *command,
        str(os.getpid()),
        image,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
        limit=_LONGEST_LINE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            note(line.decode(errors="replace").rstrip())
        return await process.wait()
    finally:
        if process.returncode is None:
            # Shielded: the child must have ended before this returns, or it would go on building unnoticed.
            await run_shielded(stop_child(process, _STOP_S))


def _building(build: _BuildState) -> ImageBuilding:
    about = f"; it takes about {build.about}" if build.about else ""
    least_s, most_s = _RETRY_AFTER_S
    return ImageBuilding(
        f"the image of this environment is being {build.doing}{about}",
        remedy="try again in a moment",
        retry_after_s=min(most_s, max(least_s, build.remaining_s or 0.0)),
        step=build.step[:200],
        fraction=build.fraction,
        about=build.about,
        remaining_s=build.remaining_s,
    )


def _pull_failure(image: str, named: str, build: _BuildState, state_dir: Path) -> WarrenError:
    """Returns why a pull has failed: in full to who has `named` the image, without what concerns the operator."""
    retry_after_s = max(1.0, build.ended_at + _PULL_AGAIN_S - time.monotonic())
    if not named:
        return ImageBuildFailed(
            "the image of this environment could not be pulled",
            remedy=f"the operator finds why in the server's log, or with `warren image pull {image}`",
            retry_after_s=retry_after_s,
        )
    is_told = bool(build.error) and not _PATH.search(build.error) and str(state_dir) not in build.error
    kind = _TOLD.get(build.code, ImageBuildFailed) if is_told else ImageBuildFailed
    why = build.error if is_told else "the operator finds why in the server's log"
    remedy = "see that its name is right; images that need a password are the operator's to allow"
    return kind(f"the image {named!r} could not be pulled: {why}", remedy=remedy, retry_after_s=retry_after_s)


def _note(build: _BuildState, lines: list[str], line: str) -> None:
    try:
        values: Any = json.loads(line)
    except ValueError:
        values = None
    if isinstance(values, dict) and isinstance(values.get("step"), str):
        fraction = values.get("fraction")
        build.step = values["step"]
        build.fraction = float(fraction) if isinstance(fraction, int | float) else None
    elif isinstance(values, dict) and isinstance(values.get("error"), str):
        lines += [*map(str, values.get("lines") or []), values["error"]]
        build.error, build.code = values["error"], str(values.get("code") or "")
    elif line:
        lines.append(line[:2000])
    del lines[:-60]


async def _version_or_none(find_version: Callable[[], Awaitable[str]]) -> str | None:
    try:
        return await find_version()
    except NotFound:
        return None
