"""A worker process: everything that one machine runs, in a cluster. The store is shared, the sandboxes are its own."""

import contextlib
import signal
from collections import Counter
from dataclasses import asdict
from typing import Any, ClassVar, Final

from starlette.types import ASGIApp

from warren.app import cluster_wiring as wiring
from warren.app.cluster_wiring import (
    advertised,
    build_links,
    build_sealer,
    build_tenancy,
    build_trust,
    home_of,
    kept_clock,
)
from warren.app.service import Service
from warren.app.wiring import build_context, build_edge, build_labels
from warren.cluster.auth import Trusted
from warren.cluster.heartbeat import Heartbeat
from warren.cluster.lease import Lease
from warren.cluster.members import Report
from warren.cluster.middleware import WorkerMiddleware
from warren.cluster.peer_calls import PeerCalls
from warren.cluster.roster import Roster
from warren.config.settings import Settings
from warren.http.app import create_app, package_version
from warren.interfaces.store import SessionStore
from warren.model.errors import WarrenError
from warren.stores.mirrored import MirroredStore
from warren.stores.redis_store import RedisStore
from warren.stores.sqlite import SqliteStore
from warren.tenancy.tenancy import Tenancy

_COPIES: Final = "cluster.db"
_TENANTS: Final = 64  # so many of those with most sessions are told of
_PLENTY: Final = 3  # times what must be kept
_MB_EACH: Final = 64  # what a sandbox takes at least, for how many a machine holds


class WorkerService(Service):
    others: ClassVar[bool] = True

    def __init__(self, settings: Settings, **more: Any) -> None:
        super().__init__(settings, **more)
        self._link = wiring.build_link(settings)
        self._auth = build_trust(settings)
        self._links = build_links(settings)
        self._copies: SqliteStore | None = None
        self._mirror: MirroredStore | None = None
        self._heartbeat: Heartbeat | None = None
        self._address = advertised(settings)
        self._labels = build_labels(settings)
        self._version = package_version()
        self._home = ""
        self._in_order = False

    async def _opened_store(self) -> SessionStore:
        settings = self._settings
        self._home = home_of(settings.state_dir)
        self._clock, self._rebooted = kept_clock(settings.state_dir, await wiring.time_of_redis(self._link))
        sealer = build_sealer(settings)
        self._copies = await SqliteStore.open(settings.state_dir / _COPIES, sealer=sealer)
        shared = RedisStore(self._link, sealer)
        self._mirror = MirroredStore(shared, self._copies.records, settings.worker_id, sealer)
        await self._mirror.load()
        return self._mirror

    async def _open_tenancy(self, store: SessionStore) -> Tenancy:
        return await build_tenancy(self._settings, store, self._link, self._clock)

    async def _join(self) -> None:
        self.lease = Lease(self._clock)
        self._heartbeat = Heartbeat(
            Roster(self._link),
            self.lease,
            self._clock,
            report=self.report,
            reconcile=self._reconcile,
            ask=PeerCalls(self._links, self._auth).renew,
            superseded=lambda: signal.raise_signal(signal.SIGTERM),
        )
        await self._heartbeat.join()
        assert self._mirror is not None
        await self._mirror.reconcile()

    async def _serve(self) -> None:
        assert self._heartbeat is not None
        await self._heartbeat.serve()
        self.tenancy.start(courier=False)
        self._run(self._heartbeat.run(), "membership")

    async def _reconcile(self) -> None:
        """What is not ours any more is destroyed; of what is ours all sandboxes must be there."""
        assert self._mirror is not None
        assert self._lifecycle is not None
        await self._mirror.reconcile()
        await self._lifecycle.forget_lost()
        for session in await self._mirror.active():
            await self._lifecycle.check(session)

    def report(self) -> Report:
        settings, worker, mirror = self._settings, self._worker, self._mirror
        assert worker is not None
        assert mirror is not None
        stats = worker.stats()
        room, reserve = worker.guard.room(), worker.guard.reserve
        tenants = Counter(session.tenant for session in mirror.own())
        spare = [(room.memory_free, reserve.memory), (room.disk_free, reserve.disk)]
        return Report(
            settings.worker_id,
            self._address,
            self._home,
            self._version,
            provider=next(iter(worker.providers)),
            providers=tuple(worker.providers),
            labels=self._labels,
            capacity=max(1, min(settings.max_sandboxes, room.memory_total // _MB_EACH)),
            claimed=stats.claimed,
            ready={name: pool.ready for name, pool in stats.pools.items()},
            tenants=dict(tenants.most_common(_TENANTS)),
            waiting=sum(pool.waiting for pool in stats.pools.values()),
            pressure=max(_pressure(free, kept) for free, kept in spare),
            leaving=getattr(self, "sessions", None) is not None and self.sessions.stopping,
        )

    def described(self) -> dict[str, Any]:
        assert self._worker is not None
        return {"id": self._settings.worker_id, "stats": asdict(self._worker.stats())}

    def app(self) -> ASGIApp:
        context = build_context(self._settings, self.sessions, self.tenancy, Trusted(self._auth))
        front = WorkerMiddleware(create_app(context, counts=False), self._auth, self.lease, self.described)
        return build_edge(self._settings, front, any_host=True)

    async def stop(self, grace_s: float = 0.0, *, destroy: bool = False) -> None:
        """Coordinators hear at once that nothing new should come; at the end, that it may come back."""
        self.sessions.stopping = True
        if self._heartbeat is not None:
            with contextlib.suppress(WarrenError):
                await self._heartbeat.beat()
        self._in_order = True
        await super().stop(grace_s, destroy=destroy)

    async def _close(self) -> None:
        self._store = None  # the way to Redis is needed to the end
        await super()._close()
        if self._heartbeat is not None and self._in_order:
            await self._heartbeat.leave()
        await self._links.close()
        if self._copies is not None:
            await self._copies.close()
        await self._link.close()


def _pressure(free: int, kept: int) -> float:
    """0 while there is plenty, 1 when no more is given away than must be kept."""
    return round(min(1.0, max(0.0, 1 - (free - kept) / max(1, _PLENTY * kept))), 3)
