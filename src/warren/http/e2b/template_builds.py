"""Builds templates, each in a process of its own (`warren image build`): one at a time for a tenant.

The record of a template says `building` before its process starts. The process dies with this one; the next server then
says `error` for that build, and removes what is left of it: its directory, and an image that no tag points to. The
output of the last few builds is kept in memory.
"""

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from warren.http.e2b.errors import E2bError
from warren.http.e2b.template_process import BUILDS, TEMPLATES, Plan, build_directory, write_plan
from warren.http.e2b.template_records import Build, BuiltTemplate, Status, TemplateRecords, finished, with_build
from warren.http.e2b.template_uploads import KEPT_S, Uploads
from warren.images.building.on_demand import run_build
from warren.interfaces.images import ImageVersion
from warren.interfaces.records import RecordStore
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.errors import ImageNotFound, MachineFull, Stopping, WarrenError
from warren.model.spec import MIB
from warren.model.tenant_images import TENANT_IMAGES, is_image_of, template_in, tenant_image
from warren.worker.guard import Room, default_disk_reserve, read_room

MAX_AT_ONCE: Final = 2
LOG_PAGE: Final = 100
_MAX_LOGS: Final = 32
_MAX_KNOWN: Final = 1000
_LOG_BYTES: Final = 1024 * 1024
_LONGEST_LINE: Final = 2000
_LOOK_S: Final = 600.0
_STEP: Final = re.compile(r"step (\d+) of (\d+): ")
_BROKEN_OFF: Final = "the server was stopped while the template was built; build it again"
_INSIDE: Final = "the build failed on this machine; the operator finds why in the server's log"
_log = get_log(__name__)


class ImagesOfTemplates(Protocol):
    """See images/store/store.py."""

    def list(self) -> Sequence[ImageVersion]: ...
    def remove(self, which: str, *, when_unused: bool = False) -> ImageVersion: ...


@dataclass(frozen=True, slots=True)
class LogEntry:
    at: float
    level: str
    message: str
    step: str = ""


class BuildLog:
    """What a build has said so far, up to a bound. `step` is the one that runs: `base`, or a number from 1."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before = self._after = 0  # steps of the recipe that are not the template's own
        self.entries: list[LogEntry] = []
        self.step = "base"
        self.error = ""
        self._size = 0
        self._line = ""

    def note(self, line: str) -> None:
        """Takes a line of the process that builds."""
        try:
            values: Any = json.loads(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            _log.info("template_build_says", text=line[:_LONGEST_LINE])
        elif {"before", "after"} <= values.keys():
            self._before, self._after = values["before"], values["after"]
        elif isinstance(step := values.get("step"), str):
            self._begin(step)
        elif isinstance(text := values.get("output"), str):
            self._add_output(text)
        elif isinstance(error := values.get("error"), str):
            self.end_line()
            self.error = _STEP.sub(self._counted, error, count=1)
            self.add(self.error, "error")

    def add(self, message: str, level: str = "info") -> None:
        self._size += len(message) + 64
        if self._size <= _LOG_BYTES or level == "error":
            self.entries.append(LogEntry(self._clock.wall(), level, message[:_LONGEST_LINE], self.step))

    def end_line(self) -> None:
        if self._line:
            self.add(self._line)
        self._line = ""

    def _begin(self, step: str) -> None:
        self.end_line()
        match = _STEP.match(step)
        number = int(match[1]) - self._before if match else 0
        is_own = match is not None and 0 < number <= int(match[2]) - self._before - self._after
        if is_own:
            self.step = str(number)
        elif self.step != "base":
            self.step = "finalize"
        if is_own or not match:
            self.add(_STEP.sub(self._counted, step, count=1))

    def _counted(self, match: re.Match[str]) -> str:
        """Numbers a step as the template counts it."""
        return f"step {int(match[1]) - self._before} of {int(match[2]) - self._before - self._after}: "

    def _add_output(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self.add(line.rstrip("\r"))
        self._line = self._line[-_LONGEST_LINE:]


class TemplateBuilds:
    """`command` builds an image, as for ImageBuilds; a whole build may take `timeout_s`. A tenant whose images take
    `max_mb` builds no more. `disk_reserve_mb` must stay free on the disk of the state directory; 0: the usual
    reserve."""

    def __init__(
        self,
        state_dir: Path,
        records: RecordStore,
        images: ImagesOfTemplates,
        clock: Clock,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        timeout_s: float,
        max_mb: int = 10_240,
        disk_reserve_mb: int = 0,
    ) -> None:
        self._max_mb = max_mb
        self._state_dir, self._images, self._clock = state_dir, images, clock
        self._command, self._env, self._timeout_s = command, env, timeout_s
        self._disk_reserve_mb = disk_reserve_mb
        self.records = TemplateRecords(records)
        self.uploads = Uploads(state_dir / TEMPLATES / "uploads", self.check_room)
        self._running: set[asyncio.Task[None]] = set()
        self._building: set[str] = set()  # tenants
        self._in_work: set[str] = set()  # images to which no tag points yet
        self._logs = BoundedDict[str, BuildLog](_MAX_LOGS)
        self._known = BoundedDict[str, Build](_MAX_KNOWN)  # by image
        self._recovering: asyncio.Task[None] | None = None
        self._removing: asyncio.Task[None] | None = None
        self._closed = False

    # -- life

    def start(self) -> None:
        """Removes what an earlier server has left, and every few minutes what is too old."""
        self._recovering = asyncio.create_task(self._recover(), name="templates")
        self._removing = asyncio.create_task(self._remove_old(), name="template uploads")

    async def ready(self) -> None:
        """Returns when what an earlier server has left is cleared away."""
        assert self._recovering is not None
        await asyncio.shield(self._recovering)

    async def close(self) -> None:
        self._closed = True
        tasks = [*self._running, *(task for task in (self._recovering, self._removing) if task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _recover(self) -> None:
        try:
            for template in await self.records.list_all():
                for build in template.builds.values():
                    if build.status is Status.BUILDING:
                        await self._finish(template, build.id, Status.ERROR, (_BROKEN_OFF, ""))
            await asyncio.to_thread(shutil.rmtree, self._state_dir / TEMPLATES / BUILDS, ignore_errors=True)
            await asyncio.to_thread(self.uploads.remove_old, restarted=True)
            await self.remove_unneeded()
        except (WarrenError, E2bError, OSError) as exc:
            _log.warning("templates_not_recovered", error=exc)

    async def _remove_old(self) -> None:
        while True:
            await self._clock.sleep(min(_LOOK_S, KEPT_S))
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self.uploads.remove_old)

    def check_room(self) -> None:
        """Raises MachineFull if the disk has no room for more."""
        room: Room = read_room(self._state_dir)
        reserve = self._disk_reserve_mb or default_disk_reserve(room)
        if room.disk_free < reserve:
            raise MachineFull(
                f"the server's disk has {room.disk_free} MiB free, {reserve} MiB must stay free",
                remedy="the operator frees some space, or removes images that nobody needs",
                retry_after_s=60.0,
            )

    def _check_size(self, tenant: str) -> None:
        own = (image.size_bytes for image in self._images.list() if is_image_of(tenant, image.name))
        size_mb = sum(own) // MIB
        if size_mb >= self._max_mb:
            raise E2bError(
                429, f"your templates take {size_mb} MiB, and {self._max_mb} MiB is the most; delete some first"
            )

    async def build_of(self, tenant: str, image: str) -> Build | None:
        """Returns the build that an image of the tenant came from, if it is not forgotten."""
        known = self._known.get(image)
        if known is None:
            template = await self.records.find(tenant, template_in(image))
            known = template.builds.get(image.rpartition("/")[2]) if template else None
            if known is not None and known.status is Status.READY:
                self._known[image] = known
        return known

    # -- building

    def log(self, build_id: str) -> Sequence[LogEntry]:
        found = self._logs.get(build_id)
        return found.entries if found else ()

    def images(self) -> Sequence[ImageVersion]:
        """Returns the images of this machine. Takes its time: call it in a thread."""
        return self._images.list()

    async def build(self, template: BuiltTemplate, build: Build, plan: Plan) -> None:
        """Starts a build, and returns when its record says so. Raises E2bError if it cannot be started now."""
        tenant = template.tenant
        if self._closed:
            raise Stopping("the server is being stopped", retry_after_s=5.0)
        if tenant in self._building:
            raise E2bError(429, "a template of yours is being built; one at a time is the most, wait until it is done")
        if len(self._building) >= MAX_AT_ONCE:
            raise E2bError(429, f"{MAX_AT_ONCE} templates are being built on this server; try again later")
        image = tenant_image(tenant, template.name, build.id)
        begun = asyncio.get_running_loop().create_future()
        work = self._run(template, build, image, plan, begun)
        self._building.add(tenant)
        task = asyncio.create_task(work, name=f"template {template.name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.wait([task, begun], return_when=asyncio.FIRST_COMPLETED)
        if task.cancelled():
            raise Stopping("the server is being stopped", retry_after_s=5.0)
        if not begun.done():
            task.result()  # raises why it could not be started

    async def _run(
        self,
        template: BuiltTemplate,
        build: Build,
        image: str,
        plan: Plan,
        begun: "asyncio.Future[None]",
    ) -> None:
        directory = build_directory(self._state_dir, image)
        status, why = Status.ERROR, (_BROKEN_OFF, "")
        self._in_work.add(image)
        try:
            await asyncio.to_thread(self._fill, directory, template.tenant, plan)
            started = replace(build, status=Status.BUILDING, updated_at=self._clock.wall())
            await self.records.change(template.tenant, template.name, lambda now: _started(now, started))
            log = self._logs[build.id] = BuildLog(self._clock)  # not before: the build may have one from its only start
            begun.set_result(None)
            status, why = await self._run_process(image, log)
        finally:
            await run_shielded(self._end(template, build, image, status, why, began=begun.done()))

    def _fill(self, directory: Path, tenant: str, plan: Plan) -> None:
        self.check_room()
        self._check_size(tenant)
        directory.mkdir(mode=0o700, parents=True)
        for step in plan.steps:
            if step.files_hash:
                self.uploads.link(tenant, step.files_hash, directory / step.files_hash)
        write_plan(directory, plan)

    async def _run_process(self, image: str, log: BuildLog) -> tuple[Status, tuple[str, str]]:
        _log.info("template_build_started", image=image)
        try:
            async with asyncio.timeout(self._timeout_s):
                code = await run_build(self._command, image, self._env, log.note)
        except TimeoutError:
            code, log.error = 1, f"the build took longer than {self._timeout_s:g} s"
        except (OSError, ValueError) as exc:
            _log.error("template_build_failed", image=image, error=exc)
            code, log.error = 1, _INSIDE
        log.end_line()
        if code == 0:
            _log.info("template_build_done", image=image)
            return Status.READY, ("", "")
        message = log.error or _INSIDE
        _log.warning("template_build_failed", image=image, step=log.step, error=message)
        if str(self._state_dir) in message:
            message = _INSIDE
        return Status.ERROR, (message[:_LONGEST_LINE], log.step)

    async def _end(
        self,
        template: BuiltTemplate,
        build: Build,
        image: str,
        status: Status,
        why: tuple[str, str],
        *,
        began: bool,
    ) -> None:
        await asyncio.to_thread(shutil.rmtree, build_directory(self._state_dir, image), ignore_errors=True)
        # Not after the record says that it ended: who reads that may ask for the next at once.
        self._building.discard(template.tenant)
        if began:
            await self._finish(template, build.id, status, why)
        # Not before the record has its tag: `remove_unneeded` would take the image for one that nobody needs.
        self._in_work.discard(image)
        if began:
            await self.remove_unneeded()

    async def _finish(self, template: BuiltTemplate, build_id: str, status: Status, why: tuple[str, str]) -> None:
        try:
            await self.records.change(
                template.tenant, template.name, lambda now: finished(now, build_id, status, self._clock.wall(), why)
            )
        except (E2bError, WarrenError) as exc:
            _log.warning("template_not_recorded", template=template.name, error=exc)

    # -- images

    async def remove_unneeded(self) -> None:
        """Removes the images of templates that no tag points to; one that is in use goes when its last sandbox ends."""
        needed = set(self._in_work)  # before the records are read: one of them may get its tag meanwhile
        try:
            for template in await self.records.list_all():
                images = (tenant_image(template.tenant, template.name, tag.build) for tag in template.tags.values())
                needed.update(images)
            await asyncio.to_thread(self._remove_images, lambda name: name not in needed | self._in_work)
        except (WarrenError, OSError) as exc:
            _log.warning("template_images_not_removed", error=exc)

    def _remove_images(self, is_unneeded: Callable[[str], bool]) -> None:
        for image in self._images.list():
            if image.current and image.name.startswith(TENANT_IMAGES) and is_unneeded(image.name):
                with contextlib.suppress(ImageNotFound):
                    self._images.remove(image.name, when_unused=True)


def _started(template: BuiltTemplate, build: Build) -> BuiltTemplate:
    """Raises E2bError if the build was started already."""
    if template.build(build.id).status is not Status.WAITING:
        raise E2bError(400, f"the build {build.id} was started already; ask for a new one")
    return with_build(template, build)
