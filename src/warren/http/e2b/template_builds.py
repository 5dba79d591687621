"""Builds templates, each in a process of its own (`warren image build`), in turn (template_queue.py).

The record of a template says `building` before its process starts, and while the build waits for its turn. The process
dies with this one; the next server then says `error` for that build, and removes what is left of it: its directory, and
an image that no tag points to. The output of the last few builds is kept in memory.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from warren.http.e2b.errors import E2bError, wait_for_change
from warren.http.e2b.template_log import LONGEST_LINE, BuildLog, LogEntry
from warren.http.e2b.template_process import BUILDS, TEMPLATES, Plan, build_directory, write_plan
from warren.http.e2b.template_queue import BuildQueue, Turn
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

LOG_PAGE: Final = 100
_MAX_LOGS: Final = 32
_MAX_KNOWN: Final = 1000
_LOOK_S: Final = 600.0
_BROKEN_OFF: Final = "the server was stopped while the template was built; build it again"
_INSIDE: Final = "the build failed on this machine; the operator finds why in the server's log"
_log = get_log(__name__)


class ImagesOfTemplates(Protocol):
    """See images/store/store.py."""

    def list(self) -> Sequence[ImageVersion]: ...
    def parts(self, version: str) -> Mapping[str, int]: ...
    def remove(self, which: str, *, when_unused: bool = False) -> ImageVersion: ...


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
        self._queue = BuildQueue()
        self._in_work: dict[str, str] = {}  # images to which no tag points yet, each with the image it is built on
        self._logs = BoundedDict[str, BuildLog](_MAX_LOGS)  # of builds that have ended
        self._current: dict[str, BuildLog] = {}  # of others
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
            with contextlib.suppress(WarrenError, E2bError):  # the store is away, and the next look comes
                await self.records.remove_leftovers(self._clock.wall())

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
        parts: dict[str, int] = {}  # images share files, which take their place once
        for image in self._images.list():
            if is_image_of(tenant, image.name):
                parts |= self._images.parts(image.version)
        size_mb = sum(parts.values()) // MIB
        if size_mb >= self._max_mb:
            raise wait_for_change(
                f"your templates take {size_mb} MiB, and {self._max_mb} MiB is the most; delete some first"
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
        found = self._current.get(build_id) or self._logs.get(build_id)
        return found.entries if found else ()

    def images(self) -> Sequence[ImageVersion]:
        """Returns the images of this machine. Takes its time: call it in a thread."""
        return self._images.list()

    async def build(self, template: BuiltTemplate, build: Build, plan: Plan) -> None:
        """Starts a build, which may have to wait for its turn, and returns when its record says so. Raises E2bError if
        it cannot be started."""
        if self._closed:
            raise Stopping("the server is being stopped", retry_after_s=5.0)
        image = tenant_image(template.tenant, template.name, build.id)
        if image in self._in_work:
            raise _started_already(build)
        turn = self._queue.join(template.tenant)
        self._in_work[image] = plan.base
        begun = asyncio.get_running_loop().create_future()
        work = self._run(template, build, image, plan, turn, begun)
        task = asyncio.create_task(work, name=f"template {template.name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.wait([task, begun], return_when=asyncio.FIRST_COMPLETED)
        if task.cancelled():
            raise Stopping("the server is being stopped", retry_after_s=5.0)
        if not begun.done():
            task.result()  # raises why it could not be started

    async def drop(self, template: BuiltTemplate, build: Build) -> None:
        """Forgets a build that was refused. One that was started before stays."""
        if tenant_image(template.tenant, template.name, build.id) in self._in_work:
            return
        with contextlib.suppress(E2bError, WarrenError):  # it is gone, or goes later
            await self.records.drop_build(template.tenant, template.name, build.id)

    async def _run(
        self,
        template: BuiltTemplate,
        build: Build,
        image: str,
        plan: Plan,
        turn: Turn,
        begun: "asyncio.Future[None]",
    ) -> None:
        directory = build_directory(self._state_dir, image)
        status, why = Status.ERROR, (_BROKEN_OFF, "")
        try:
            await asyncio.to_thread(self._fill, directory, template.tenant, plan)
            started = replace(build, status=Status.BUILDING, updated_at=self._clock.wall())
            await self.records.change(template.tenant, template.name, lambda now: _started(now, started))
            log = self._current[build.id] = BuildLog(self._clock)
            begun.set_result(None)
            status, why = await self._run_in_turn(template.tenant, image, turn, log)
        finally:
            await run_shielded(self._end(template, build, image, turn, status, why, began=begun.done()))

    async def _run_in_turn(self, tenant: str, image: str, turn: Turn, log: BuildLog) -> tuple[Status, tuple[str, str]]:
        if not turn.done():
            log.add("waiting for other builds to end")
            await turn
            try:
                await asyncio.to_thread(self._check_bounds, tenant)  # what was built before may have taken the room
            except (E2bError, WarrenError) as exc:
                return Status.ERROR, (exc.message, "")
        return await self._run_process(image, log)

    def _check_bounds(self, tenant: str) -> None:
        self.check_room()
        self._check_size(tenant)

    def _fill(self, directory: Path, tenant: str, plan: Plan) -> None:
        self._check_bounds(tenant)
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
        return Status.ERROR, (message[:LONGEST_LINE], log.step)

    async def _end(
        self,
        template: BuiltTemplate,
        build: Build,
        image: str,
        turn: Turn,
        status: Status,
        why: tuple[str, str],
        *,
        began: bool,
    ) -> None:
        await asyncio.to_thread(shutil.rmtree, build_directory(self._state_dir, image), ignore_errors=True)
        # Not after the record says that it ended: who reads that may ask for the next at once.
        self._queue.leave(template.tenant, turn)
        if began:
            self._logs[build.id] = self._current.pop(build.id)
            await self._finish(template, build.id, status, why)
        # Not before the record has its tag: `remove_unneeded` would take the image for one that nobody needs.
        del self._in_work[image]
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
        needed = self._held()  # before the records are read: one of them may get its tag meanwhile
        try:
            for template in await self.records.list_all():
                images = (tenant_image(template.tenant, template.name, tag.build) for tag in template.tags.values())
                needed.update(images)
            await asyncio.to_thread(self._remove_images, lambda name: name not in needed | self._held())
        except (WarrenError, OSError) as exc:
            _log.warning("template_images_not_removed", error=exc)

    def _held(self) -> set[str]:
        return {*self._in_work, *self._in_work.values()}

    def _remove_images(self, is_unneeded: Callable[[str], bool]) -> None:
        for image in self._images.list():
            if image.current and image.name.startswith(TENANT_IMAGES) and is_unneeded(image.name):
                with contextlib.suppress(ImageNotFound):
                    self._images.remove(image.name, when_unused=True)


def _started(template: BuiltTemplate, build: Build) -> BuiltTemplate:
    """Raises E2bError if the build was started already."""
    if template.build(build.id).status is not Status.WAITING:
        raise _started_already(build)
    return with_build(template, build)


def _started_already(build: Build) -> E2bError:
    return E2bError(400, f"the build {build.id} was started already; ask for a new one")
