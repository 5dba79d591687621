"""A worker process of a cluster: everything that `warren serve` runs on one machine, with shared sessions.

It is a `Service` whose store is Redis with copies of its own rows (`MirroredStore`), which joins the cluster before
it looks at its sessions, and which serves coordinators only. Beside the tasks of a `Service` it runs `heartbeat`.
`cli/serve` starts it; the theory of operation is in `warren.cluster`.
"""

import contextlib
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, ClassVar, Final

from starlette.types import ASGIApp

from warren.app import cluster_wiring as wiring
from warren.app.image_wiring import build_room_check
from warren.app.one_machine import COPIES_FILE
from warren.app.readings import worker_readings
from warren.app.service import Service
from warren.app.wiring import (
    build_admission,
    build_context,
    build_dispatcher,
    build_guard,
    build_identity,
    build_images,
    build_labels,
    build_metrics_page,
)
from warren.cluster.auth import ClusterAuth, CoordinatorIdentity
from warren.cluster.direct import DirectEntrance, KeyIdentify, with_clients
from warren.cluster.entrance import WorkerEntrance, WorkerIdentify
from warren.cluster.heartbeat import Heartbeat
from warren.cluster.images import ImageFetcher, OfferedImages, send_image
from warren.cluster.lease import Lease
from warren.cluster.peer_calls import PeerCalls
from warren.cluster.roster import Peer, Report, Roster
from warren.cluster.volumes import VolumeFetcher, answer_volume
from warren.config.settings import Settings
from warren.governance.tenancy import Tenancy
from warren.http.admission import Admission
from warren.http.api.metrics import MetricsStage
from warren.http.app import create_app
from warren.http.context import Context
from warren.http.pipeline import Pipeline, Stages
from warren.http.previews.proxy import PreviewProxy
from warren.http.request import Stage
from warren.images.building.on_demand import FetchImage
from warren.images.registry.tenant_pulls import make_room
from warren.images.store.share import ImageSharing
from warren.interfaces.store import SessionStore
from warren.model.errors import WarrenError
from warren.model.spec import MIB
from warren.model.version import __version__
from warren.sessions.history import Reading
from warren.sessions.volumes.moving import FetchVolume
from warren.stores.mirrored import MirroredStore
from warren.stores.redis_store import RedisStore
from warren.stores.sqlite import SqliteStore

_REPORTED_TENANTS: Final = 64  # the tenants with the most sessions
_PLENTY: Final = 3  # there is no pressure while this many times the reserve is free beyond it
_MB_PER_SANDBOX: Final = 64  # the least memory of a sandbox, which bounds how many a machine holds


class WorkerService(Service):
    in_cluster: ClassVar[bool] = True
    role: ClassVar[str] = "worker"

    def __init__(self, settings: Settings, **more: Any) -> None:
        super().__init__(settings, **more)
        self._link = wiring.build_redis_link(settings)
        self._auth = ClusterAuth(settings.cluster_secret, *settings.other_cluster_secrets)
        self._worker_client = wiring.build_worker_client(settings)
        images = build_images(settings)
        make_room_here = partial(make_room, images, max_bytes=settings.image_pull_mb * MIB)
        self._images = ImageSharing(images, make_room_here, build_room_check(settings))
        self._offered = OfferedImages(self._images)
        self._copies: SqliteStore | None = None
        self._mirror: MirroredStore | None = None
        self._heartbeat: Heartbeat | None = None
        self._address = wiring.advertised_address(settings)
        self._labels = build_labels(settings)
        self._version = __version__
        self._home = ""
        self._stops_in_order = False

    async def _open_store(self) -> SessionStore:
        settings = self._settings
        self._home = wiring.state_dir_id(settings.state_dir)
        offset_s = await wiring.wait_for_redis_time(self._link)
        self._clock, self._rebooted = wiring.open_clock(settings.state_dir, offset_s)
        encryption = wiring.build_encryption(settings)
        self._copies = await SqliteStore.open(settings.state_dir / COPIES_FILE, encryption=encryption)
        shared = RedisStore(self._link, encryption)
        self._mirror = MirroredStore(shared, self._copies.records, settings.worker_id, encryption)
        await self._mirror.load()
        return self._mirror

    def _fetch_image(self) -> FetchImage:
        return ImageFetcher(self._images, self._worker_client, self._auth, self._coordinators).fetch

    def _fetch_volume(self) -> FetchVolume:
        return VolumeFetcher(self._worker_client, self._auth, self._coordinators).fetch

    def _coordinators(self) -> Sequence[Peer]:
        return () if self._heartbeat is None else self._heartbeat.coordinators

    async def _open_tenancy(self, store: SessionStore) -> Tenancy:
        return await wiring.build_tenancy(
            self._settings, store, self._link, self._clock, self.environments, self.history
        )

    async def _before_recovery(self) -> None:
        self.lease = Lease(self._clock)
        self._heartbeat = Heartbeat(
            Roster(self._link),
            self.lease,
            self._clock,
            report=self.report,
            reconcile=self._reconcile,
            renew_through=PeerCalls(self._worker_client, self._auth).renew_lease,
            on_superseded=lambda: signal.raise_signal(signal.SIGTERM),
        )
        await self._offered.refresh()
        await self._heartbeat.join()
        assert self._mirror is not None
        await self._mirror.reconcile()

    async def _after_recovery(self) -> None:
        assert self._heartbeat is not None
        await self._heartbeat.beat()
        self.tenancy.start(deliver_webhooks=False)
        self._run(self._heartbeat.run(), "heartbeat")
        self._run(self._offered.run(), "images")
        assert self._lifecycle is not None
        self._run(self._lifecycle.secret_renewal.watch(), "secrets")

    async def _reconcile(self) -> None:
        """Destroys the sandboxes of sessions that are not ours any more, and checks that the others have theirs."""
        assert self._mirror is not None
        assert self._lifecycle is not None
        await self._mirror.reconcile()
        await self._lifecycle.losses.destroy_disowned()
        for session in await self._mirror.active():
            await self._lifecycle.losses.check_sandbox(session)

    def report(self) -> Report:
        settings, worker, mirror = self._settings, self._worker, self._mirror
        assert worker is not None
        assert mirror is not None
        stats = worker.stats()
        room, reserve = worker.guard.room(), worker.guard.reserve
        tenants = Counter(session.tenant for session in mirror.own())
        return Report(
            settings.worker_id,
            self._address,
            self._home,
            self._version,
            provider=next(iter(worker.providers)),
            providers=tuple(worker.providers),
            capabilities={name: sorted(has) for name, has in worker.providers.items()},
            labels=self._labels,
            capacity=max(1, min(settings.max_sandboxes, room.memory_total // _MB_PER_SANDBOX)),
            claimed=stats.claimed,
            ready={name: pool.ready for name, pool in stats.pools.items()},
            tenants=dict(tenants.most_common(_REPORTED_TENANTS)),
            waiting=sum(pool.waiting for pool in stats.pools.values()),
            pressure=max(_pressure(room.memory_free, reserve.memory), _pressure(room.disk_free, reserve.disk)),
            memory=_use(room.memory_free, room.memory_total, reserve.memory),
            images=self._offered.contents,
            gpus=stats.gpus,
            gpus_free=stats.gpus_free,
            leaving=getattr(self, "sessions", None) is not None and self.sessions.stopping,
        )

    async def _read_history(self) -> Reading:
        """Counts only its own sessions: a coordinator's history has those of all workers."""
        assert self._mirror is not None
        assert self._worker is not None
        return Reading(Counter(str(session.state) for session in self._mirror.own()), self._worker.stats())

    def describe(self) -> dict[str, Any]:
        assert self._worker is not None
        return {"id": self._settings.worker_id, "stats": asdict(self._worker.stats())}

    def app(self) -> ASGIApp:
        context = build_context(
            self._settings,
            self.environments,
            self.sessions,
            self.tenancy,
            CoordinatorIdentity(self._auth),
            history=self.history,
            logs=self.logs,
        )
        scheme = "http" if self._settings.cluster_ca is None else "https"
        assert self._mirror is not None
        address = f"{scheme}://{self._address}"
        takes_clients, own = self._settings.direct_clients, self._mirror.own
        context = replace(context, worker_url=address, takes_clients=takes_clients, own_sessions=own)

        entrance = WorkerEntrance(
            self._auth,
            self.lease,
            self.describe,
            self.sessions.lifecycle.metrics.latest,
            partial(send_image, self._images, self._offered),
            partial(answer_volume, self.sessions.lifecycle.volumes.moves),
            self._metrics_stage(context),
        )
        coordinators = Pipeline(
            Stages(
                guard=build_guard(self._settings, self.tracing, self.history, any_host=True),
                identify=WorkerIdentify(context.identity),
                entrance=entrance,
                admission=build_admission(context, counts=False),
                previews=PreviewProxy(self.sessions, context.port_connections, behind_coordinator=True),
                dispatch=build_dispatcher(self._settings, context),
                fastapi=create_app(context),
            )
        )
        return with_clients(coordinators, self._for_clients(context)) if self._settings.direct_clients else coordinators

    def _for_clients(self, context: Context) -> ASGIApp:
        """Returns what answers clients that ask this worker itself."""
        settings = self._settings
        context = replace(context, identity=build_identity(settings, self.tenancy))
        own_host = self._address.rpartition(":")[0]
        settings = replace(settings, allowed_hosts=(*settings.allowed_hosts, own_host))
        return Pipeline(
            Stages(
                guard=build_guard(settings, self.tracing, self.history),
                identify=KeyIdentify(context.identity),
                entrance=DirectEntrance(self.lease),
                admission=build_admission(context),
                dispatch=build_dispatcher(settings, context),
                fastapi=create_app(context),
            )
        )

    def _metrics_stage(self, context: Context) -> Stage:
        """Returns the stage that serves Prometheus, which asks workers directly. It always needs a key, also in a
        cluster whose coordinators ask for none."""
        assert self._mirror is not None
        assert self._worker is not None
        read = worker_readings(self._mirror, self._worker, context.port_connections, self.lease)
        tenancy = self.tenancy
        admission = Admission(
            tenancy.metering.quotas, self._clock, audit=tenancy.audit, refusals=tenancy.refusals, counts=False
        )
        identity = build_identity(replace(self._settings, auth=True), tenancy)
        return MetricsStage(build_metrics_page(self.metrics, read), identity, admission)

    async def stop(self, grace_s: float = 0.0, *, destroy: bool = False) -> None:
        """Tells coordinators at once to send no new sessions, and at the end that the worker may come back."""
        self.sessions.uses.stop()
        if self._heartbeat is not None:
            with contextlib.suppress(WarrenError):
                await self._heartbeat.beat()
        self._stops_in_order = True
        await super().stop(grace_s, destroy=destroy)

    async def _close(self) -> None:
        self._store = None  # it would close the link to Redis, which `leave` needs
        await super()._close()
        if self._heartbeat is not None and self._stops_in_order:
            await self._heartbeat.leave()
        await self._worker_client.close()
        if self._copies is not None:
            await self._copies.close()
        await self._link.close()


def _use(free: int, total: int, reserve: int) -> float:
    return round(min(1.0, max(0.0, (total - free) / max(1, total - reserve))), 3)


def _pressure(free: int, reserve: int) -> float:
    """Returns 0 while there is plenty, 1 when nothing is left but the reserve."""
    return round(min(1.0, max(0.0, 1 - (free - reserve) / max(1, _PLENTY * reserve))), 3)
