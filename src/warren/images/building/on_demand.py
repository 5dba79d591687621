"""Builds or fetches images when they are first needed. `LocalWorker.prepare` asks before each claim.

In a cluster an image that is missing here is taken from a worker that has it, before it is built.

A build is a process of its own (`warren image build`), which dies with this one. There is one at a time per image: it
waits for a build of the same image by another process (`building_lock`). While a missing image is being built, callers
get ImageBuilding; an outdated image stays in use until the new one is ready. A failed build is repeated after a minute,
or when its recipe has changed. Its last lines are in the log; callers only learn which step failed.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from warren.interfaces.machine import BuildStatus
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.errors import ImageBuildFailed, ImageBuilding, InvalidRequest, NotFound, Unavailable, WarrenError
from warren.model.image import Recipe
from warren.sandboxes.host.processes import stop_child

LOCKS: Final = ".building"
_REPEAT_S: Final = 60.0
_FETCH_AGAIN_S: Final = 5.0
_FIND_S: Final = 1.0
_NO_RECIPE: Final = Recipe(())
_RETRY_AFTER_S: Final = 2.0
_STOP_S: Final = 15.0
_LONGEST_LINE: Final = 1 << 20
_log = get_log(__name__)

FetchImage = Callable[[str, Callable[[int, int], None]], Awaitable[bool]]
"""Fetches an image from elsewhere and reports the received and total bytes. Returns False if nobody has the image."""

ImageState = str  # ready, missing, outdated, building


@dataclass(slots=True)
class _BuildState:
    """A build that is running, or that ended at `ended_at`."""

    source: str
    about: str
    step: str = "starting"
    fraction: float | None = None
    failed: bool = False
    ended_at: float = 0.0
    task: asyncio.Task[None] | None = None
    lines: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    cancelled: bool = False


class ImageBuilds:
    """The builds of this worker. `recipe_of` returns the recipe for an image's name, `source_of` what a version was
    made from. `command` builds an image: this process's id and the image's name are appended, and it reports each step
    as a line of JSON on stdout. `fetch` gets images from other machines of a cluster."""

    def __init__(
        self,
        recipe_of: Callable[[str], Recipe | None],
        source_of: Callable[[str, str], str],
        command: Sequence[str],
        env: Mapping[str, str],
        images: Path,
        fetch: FetchImage | None = None,
    ) -> None:
        self._recipe_of, self._source_of = recipe_of, source_of
        self._command, self._env, self._images = command, env, images
        self._fetch = fetch
        self._builds: dict[str, _BuildState] = {}
        self._sources: dict[str, tuple[str, str]] = {}  # image -> a version and what it was made from
        self._closed = False

    def recipe(self, image: str, own: Recipe | None) -> Recipe | None:
        """Returns the recipe of an image. `own` is the recipe of the image's environment and comes first."""
        return own or self._recipe_of(image)

    def can_get(self, image: str, own: Recipe | None) -> bool:
        return self._fetch is not None or self.recipe(image, own) is not None

    async def prepare(self, image: str, recipe: Recipe | None, find_version: Callable[[], Awaitable[str]]) -> None:
        """Returns if there is an image to make sandboxes from, or no way to get one. Raises ImageBuilding, or
        ImageBuildFailed if the last attempt failed a moment ago. `recipe` is the environment's own."""
        recipe = self.recipe(image, recipe)
        if recipe is None and self._fetch is None:
            return
        version = await _version_or_none(find_version)
        if recipe is None:
            await self._prepare_fetched(image, version)
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
            raise ImageBuildFailed(
                f"the image of this environment could not be built: the step {build.step[:200]!r} failed",
                remedy="the operator finds why in the server's log, or with `warren environments build`",
                retry_after_s=max(1.0, build.ended_at + _REPEAT_S - time.monotonic()),
            )
        raise _building(build)

    async def _prepare_fetched(self, image: str, version: str | None) -> None:
        """Fetches a missing image without a recipe, again every few seconds. Raises ImageBuilding while it runs."""
        if version is not None:
            self._builds.pop(image, None)
            return
        build = self._builds.get(image)
        if build is None or (self._has_ended(image) and time.monotonic() >= build.ended_at + _FETCH_AGAIN_S):
            build = self._start(image, _NO_RECIPE, missing=True)
            assert build.task is not None
            await asyncio.wait([build.task], timeout=_FIND_S)  # mostly it turns out at once that nobody has it
        if not self._has_ended(image):
            raise _building(build)

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

    def _start(self, image: str, recipe: Recipe, *, missing: bool) -> _BuildState:
        if self._closed:
            raise Unavailable("the server is being stopped", retry_after_s=5.0)
        build = self._builds[image] = _BuildState(recipe.source, recipe.about)
        build.task = asyncio.ensure_future(self._get(image, build, missing=missing, can_build=bool(recipe.stages)))
        return build

    async def _get(self, image: str, build: _BuildState, *, missing: bool, can_build: bool) -> None:
        if missing and self._fetch is not None and await self._take(image, build, self._fetch):
            return
        if can_build:
            await self._run(image, build)
        else:
            build.ended_at, build.failed = time.monotonic(), True

    async def _take(self, image: str, build: _BuildState, fetch: FetchImage) -> bool:
        def progress(done: int, total: int) -> None:
            build.step = "copying it from another worker"
            build.fraction = min(0.99, done / total) if total else None

        try:
            return await fetch(image, progress)
        except (WarrenError, OSError) as exc:
            _log.warning("image_not_fetched", image=image, error=exc)
            return False

    async def _run(self, image: str, build: _BuildState) -> None:
        began = time.monotonic()
        _log.info("image_build_started", image=image, about=build.about or None)
        lines = build.lines
        try:
            code = await self._follow(image, build, lines)
        except (OSError, ValueError) as exc:
            code = 1
            lines.append(str(exc))
        seconds = round(time.monotonic() - began, 1)
        build.ended_at, build.failed = time.monotonic(), code != 0
        if code == 0:
            _log.info("image_build_done", image=image, seconds=seconds)
            return
        _log.error("image_build_failed", image=image, step=build.step, seconds=seconds, output="\n".join(lines[-40:]))

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
    return ImageBuilding(
        f"the image of this environment is being built{about}",
        remedy="try again in a moment",
        retry_after_s=_RETRY_AFTER_S,
        step=build.step[:200],
        fraction=build.fraction,
        about=build.about,
    )


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
    elif line:
        lines.append(line[:2000])
    del lines[:-60]


async def _version_or_none(find_version: Callable[[], Awaitable[str]]) -> str | None:
    try:
        return await find_version()
    except NotFound:
        return None


# -- one build at a time, among all processes


@contextlib.contextmanager
def building_lock(images: Path, image: str, wait: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Holds the lock of an image's build. Yields whether another build held it. Calls `wait` before it waits. Removes
    the lock files of builds that were killed."""
    (images / LOCKS).mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_free_locks(images / LOCKS)
    path, waited = _lock_file(images, image), False
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = True
                wait()
                fcntl.flock(fd, fcntl.LOCK_EX)
            if not _is_at(path, fd):
                continue  # the last holder removed this file: its lock excludes nobody
            try:
                yield waited
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(fd)


def _remove_free_locks(folder: Path) -> None:
    """Whoever has opened one of these files and waits for its lock finds it gone, and makes a new one."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # its build has it, or has just removed it
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(path, fd):
                    path.unlink()
            finally:
                os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def is_being_built(images: Path, image: str) -> bool:
    try:
        fd = os.open(_lock_file(images, image), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _lock_file(images: Path, image: str) -> Path:
    return images / LOCKS / quote(image, safe="")
