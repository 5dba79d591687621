"""Everything that one machine runs, without HTTP: store, worker, sessions, reaper.

A service owns its state directory by a lock. It takes over the sessions and sandboxes of the service before it, then
accepts work. After `stop`, or after a kill -9, the next service finds everything in the store and in the state
directory.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from warren.app.one_machine import UNIT, has_rows_in_redis
from warren.app.wiring import (
    build_artifact_store,
    build_artifacts,
    build_clock,
    build_environments,
    build_lifecycle,
    build_logs,
    build_metrics,
    build_provider,
    build_reaper,
    build_sessions,
    build_snapshot_store,
    build_snapshots,
    build_store,
    build_template_builds,
    build_tenancy,
    build_worker,
    makers_of,
    recorder_of,
)
from warren.config.settings import Settings
from warren.governance.session_logs.logs import Logs
from warren.governance.tenancy import Tenancy
from warren.interfaces.artifacts import ArtifactStore
from warren.interfaces.provider import Provider
from warren.interfaces.store import SessionStore
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.kernel.tracing import OFF, Tracing
from warren.model.errors import Stopping, Unavailable, WarrenError
from warren.sessions.artifact_expiry import ArtifactExpiry
from warren.sessions.history import History, Reading
from warren.sessions.lifecycle import Lifecycle
from warren.sessions.manager import Sessions
from warren.sessions.reaper import Reaper
from warren.sessions.snapshots.expiry import SnapshotExpiry
from warren.worker.worker import LocalWorker

if TYPE_CHECKING:
    from warren.http.e2b.template_builds import TemplateBuilds
    from warren.images.building.on_demand import FetchImage
    from warren.sessions.volumes.moving import FetchVolume

LOCK: Final = "server.lock"
_LOOK_AGAIN_S: Final = 5.0
_ORPHANED_LOCK_S: Final = 5.0

_log = get_log(__name__)


class Service:
    """`fault` is called with each step in the life of sessions and sandboxes ("worker destroyed"), for crash tests.
    `is_local`: the only caller is this process, and whatever it names is the operator's."""

    sessions: Sessions
    tenancy: Tenancy
    logs: Logs
    in_cluster: ClassVar[bool] = False  # whether other workers share the store
    role: ClassVar[str] = "server"
    response_grace_s: float = 1.0  # the time in which clients may read their last answers

    def __init__(
        self,
        settings: Settings,
        *,
        tracing: Tracing = OFF,
        fault: Callable[[str], None] = lambda _: None,
        is_local: bool = False,
    ) -> None:
        self._settings, self._is_local = settings, is_local
        self.tracing = tracing
        self.environments = build_environments(settings)
        self.metrics = build_metrics(settings, self.environments, self.role)
        self._fault = fault
        self._lock = -1
        self._clock: Clock = build_clock()
        self.history = History(self._clock, recorder_of(self.metrics))
        self._rebooted = False
        self._store: SessionStore | None = None
        self._tenancy: Tenancy | None = None
        self._artifact_store: ArtifactStore | None = None
        self._snapshot_store: ArtifactStore | None = None
        self._providers: list[Provider] = []
        self._worker: LocalWorker | None = None
        self._lifecycle: Lifecycle | None = None
        self._logs: Logs | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._template_builds: TemplateBuilds | None = None

    def template_builds(self) -> "TemplateBuilds":
        """Returns what builds templates for E2B's clients, made with the first call; it ends with the service."""
        if self._template_builds is None:
            assert self._store is not None
            self._template_builds = build_template_builds(self._settings, self._store)
            self._template_builds.start()
        return self._template_builds

    async def start(self) -> None:
        """Takes over and begins to accept work; if that fails, nothing is left running."""
        try:
            await self._start()
        except BaseException:
            await run_shielded(self._close())
            raise

    async def _start(self) -> None:
        settings = self._settings
        with state_dir_errors(settings.state_dir):
            settings.state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
            # Before anything is read: of two services in one directory, each would destroy the other's sandboxes.
            self._lock = lock_state(settings.state_dir)
            if not self.in_cluster and has_rows_in_redis(settings.state_dir):
                raise Unavailable(
                    f"the sessions in {settings.state_dir} belong to several workers, which `warren serve` starts",
                    remedy="use that server, or take another state directory; one process serves it after "
                    "`warren serve --workers 1`",
                )
        await asyncio.to_thread(self.environments.look)
        self._store = await self._open_store()
        for name in settings.providers:
            fault, makers = partial(self._call_fault, "provider"), 0 if self._is_local else makers_of(settings)
            self._providers.append(build_provider(settings, name, fault, makers=makers))
        failing = partial(self._call_fault, "worker")
        self._worker = build_worker(
            *(settings, self._providers, self.environments, failing, self.tracing, self.history, self._fetch_image()),
            is_local=self._is_local,
        )
        self.tenancy = self._tenancy = await self._open_tenancy(self._store)
        if not self._is_local:  # there, the variable is a client's only
            await self.tenancy.keys.check_admin_key(settings.api_key)
        fault = partial(self._call_fault, "lifecycle")
        saving = partial(self._call_fault, "artifacts")
        self._artifact_store = await build_artifact_store(settings, saving)
        artifacts = build_artifacts(
            settings,
            self._store.records,
            self._artifact_store,
            self.tenancy,
            self._clock,
            saving,
            in_cluster=self.in_cluster,
        )
        snapping = partial(self._call_fault, "snapshots")
        self._snapshot_store = await build_snapshot_store(settings, snapping)
        snapshots = build_snapshots(
            *(settings, self._store.records, self._snapshot_store, self._worker, self.tenancy, self.environments),
            *(self._clock, snapping),
            in_cluster=self.in_cluster,
        )
        self._lifecycle = build_lifecycle(
            settings,
            self._store,
            self._worker,
            self.tenancy,
            self.environments,
            fault,
            clock=self._clock,
            artifacts=artifacts,
            snapshots=snapshots,
            in_cluster=self.in_cluster,
            recorder=self.history,
            fetch_volume=self._fetch_volume(),
        )
        self.logs = self._logs = build_logs(
            settings, self._store, self.tenancy, self._clock, keeps=True, in_cluster=self.in_cluster
        )
        self.sessions = build_sessions(settings, self._lifecycle, self.tenancy, self.environments)
        await self._before_recovery()
        reaper: Reaper = build_reaper(settings, self.sessions, rebooted=self._rebooted)
        await reaper.recover()
        await self._lifecycle.volumes.recover()
        await self._worker.start()
        await self._after_recovery()
        self._run(reaper.run(), "reaper")
        self._run(reaper.watch_losses(self._worker), "losses")
        self._run(self._lifecycle.networks.run_meter(), "networks")
        self._run(self._lifecycle.metrics.run(), "session-metrics")
        self._run(ArtifactExpiry(artifacts, self._clock).run(), "artifacts")
        self._run(SnapshotExpiry(snapshots, self._clock, self._store.get).run(), "snapshots")
        self._run(self._logs.run(), "session-logs")
        self._run(self.environments.watch(self._clock), "environments")
        self._run(self._report_obstacle(self._worker), "readiness")
        if self.metrics is not None:
            self._run(self.metrics.run(), "metrics")
        self._run(self.history.run(self._read_history), "history")

    async def _read_history(self) -> Reading:
        counts = await self.sessions.store.count()
        assert self._worker is not None
        return Reading({str(state): count for state, count in counts.items()}, self._worker.stats())

    async def _report_obstacle(self, worker: LocalWorker) -> None:
        """Logs why no sandbox can be made, until one can. From then on the pools report failures."""
        last = ""
        while True:
            try:
                await worker.check()
            except Stopping:
                return
            except WarrenError as exc:
                if exc.message != last:
                    last = exc.message
                    _log.error("server_not_ready", error=exc.message, remedy=exc.remedy)
                await self._clock.sleep(_LOOK_AGAIN_S)
                continue
            if last:
                _log.info("server_ready")
            return

    def _fetch_image(self) -> "FetchImage | None":
        """Returns what gets missing images from other machines; None outside of a cluster."""
        return None

    def _fetch_volume(self) -> "FetchVolume | None":
        """Returns what gets volumes from other machines; None outside of a cluster."""
        return None

    async def _open_store(self) -> SessionStore:
        return await build_store(self._settings)

    async def _open_tenancy(self, store: SessionStore) -> Tenancy:
        return await build_tenancy(self._settings, store, self._clock, self.environments, self.history)

    async def _before_recovery(self) -> None:
        """Called before the service takes over what an earlier one has left."""

    async def _after_recovery(self) -> None:
        """Called when the service has taken over."""
        self.tenancy.start()

    def _call_fault(self, part: str, step: str) -> None:
        self._fault(f"{part} {step}")

    def _run(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_log_failure)
        self._tasks.append(task)

    async def stop(self, grace_s: float = 0.0, *, destroy: bool = False) -> None:
        """Accepts no more work, waits up to `grace_s` for running commands, and with `destroy` ends the sessions."""
        try:
            await self.sessions.drain(grace_s)
            if self._worker is not None:
                await self._worker.drain()  # callers that wait for a sandbox get their error now, not at their time-out
            await self.sessions.stop(0.0, destroy=destroy)
        finally:
            await run_shielded(self._close())

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._template_builds is not None:
            await self._template_builds.close()
        if self._tenancy is not None:
            await self._tenancy.close()
        if self._logs is not None:
            await self._logs.close()
        if self._lifecycle is not None:
            await self._lifecycle.volumes.close()
        if self._worker is not None:
            await self._worker.close()
        for provider in self._providers:
            await provider.close()
        if self._artifact_store is not None:
            await self._artifact_store.close()
        if self._snapshot_store is not None:
            await self._snapshot_store.close()
        if self._store is not None:
            await self._store.close()
        if self._lock >= 0:  # last: from now on another service may use the state directory
            os.close(self._lock)
            self._lock = -1


@contextlib.contextmanager
def state_dir_errors(state_dir: Path) -> Iterator[None]:
    """Turns an OSError into one sentence about the state directory."""
    try:
        yield
    except OSError as exc:
        raise Unavailable(
            f"the state directory {state_dir} cannot be used: {exc.strerror or exc}",
            remedy="give another one with --state-dir or WARREN_STATE_DIR, one that this user may write to",
        ) from exc


def lock_state(state_dir: Path) -> int:
    """Locks the state directory for this process, until the descriptor is closed or the process ends.

    A server that was killed while it started a program may leave a copy of itself that has the lock until it becomes
    that program: for some milliseconds, or for longer on a busy machine. So it waits for a lock without a server.
    """
    fd = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    until = time.monotonic() + _ORPHANED_LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            if time.monotonic() < until and holder.isdecimal() and not Path(f"/proc/{holder}").exists():
                time.sleep(0.02)
                continue
            os.close(fd)
            holder = str(server_pid(state_dir / UNIT) or holder)
            raise Unavailable(
                f"another server uses the state directory {state_dir} (process {holder or 'unknown'})",
                remedy="stop that one, or give this one a state directory of its own with --state-dir",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd


def server_pid(state_dir: Path) -> int:
    """Returns the process that holds the state directory, or 0."""
    try:
        fd = os.open(state_dir / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(fd, 32, 0) or b"0")
    finally:
        os.close(fd)
    return 0


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (exc := task.exception()) is not None:
        _log.error("task_failed", task=task.get_name(), exc=exc)
