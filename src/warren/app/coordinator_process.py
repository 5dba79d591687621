"""A coordinator process: it owns nothing. Any number of them, each answers every request."""

import asyncio
import logging
from typing import Any

from starlette.types import ASGIApp

from warren.app import cluster_wiring as wiring
from warren.app.wiring import build_context, build_edge, build_sessions
from warren.clock import ClusterClock
from warren.cluster.failover import Failover
from warren.cluster.fleet import Fleet
from warren.cluster.members import Peer
from warren.cluster.middleware import CoordinatorMiddleware
from warren.cluster.operator import ClusterOperator
from warren.cluster.peer_calls import PeerCalls
from warren.cluster.proxy.liveness import Liveness
from warren.cluster.proxy.router import Router
from warren.cluster.roster import Roster
from warren.config.settings import Settings
from warren.http.app import create_app
from warren.model.errors import WarrenError
from warren.sessions.lifecycle import Lifecycle
from warren.sessions.manager import Sessions
from warren.shielding import run_shielded
from warren.stores.redis_store import RedisStore
from warren.tenancy.identity import Identity
from warren.tenancy.tenancy import Tenancy

_log = logging.getLogger("warren.cluster")


class CoordinatorService:
    sessions: Sessions
    tenancy: Tenancy

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.goodbye_s = settings.stop_grace_s  # what it does is hand on: that has the time that work has
        self._link = wiring.build_link(settings)
        self._links = wiring.build_links(settings)
        self._auth = wiring.build_trust(settings)
        self._peer_calls = PeerCalls(self._links, self._auth)
        self._liveness = Liveness(self._peer_calls.who)
        self._roster = Roster(self._link)
        self._store = RedisStore(self._link, wiring.build_sealer(settings))
        self._fleet = Fleet(
            self._roster,
            Peer(wiring.coordinator_id(settings), wiring.advertised(settings)),
            addresses=settings.workers,
            find=self._peer_calls.who,
        )
        self._tenancy: Tenancy | None = None
        self._looking: asyncio.Task[Any] | None = None
        self._watching: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """Waits for Redis; returns when requests can be answered."""
        try:
            await self._start()
        except BaseException:
            await run_shielded(self._close())
            raise

    async def _start(self) -> None:
        settings, clock = self._settings, ClusterClock(await wiring.time_of_redis(self._link))
        self.tenancy = self._tenancy = await wiring.build_tenancy(settings, self._store, self._link, clock)
        lifecycle = Lifecycle(
            self._store, {}, clock, claim_timeout_s=settings.claim_timeout_s, others=True, events=self.tenancy.events
        )
        self.sessions = build_sessions(settings, lifecycle, self.tenancy)
        failover = Failover(self._fleet, self._roster, self._store, lifecycle, retention_s=settings.key_retention_s)
        self.control = ClusterOperator(self._fleet, self._roster, failover, self._peer_calls.stats)
        await self._fleet.look()
        self._looking = asyncio.create_task(self._fleet.run(failover.tick), name="fleet")
        self._watching = asyncio.create_task(self._liveness.run(), name="lookout")
        self.tenancy.start()

    def app(self, identity: Identity) -> ASGIApp:
        settings = self._settings
        context = build_context(settings, self.sessions, self.tenancy, identity, self.control)

        def routed(app: ASGIApp) -> ASGIApp:
            return Router(
                app,
                self._fleet,
                self._store,
                self._links,
                self._auth,
                self._liveness,
                environment=settings.default_environment,
                provider_of=wiring.build_provider_of(settings),
                tls=wiring.build_client_tls(settings),
            )

        front = CoordinatorMiddleware(create_app(context, wrapped=routed), self._auth, self._fleet)
        return build_edge(settings, front)

    async def stop(self, grace_s: float = 0.0, *, destroy: bool = False) -> None:
        """There is nothing to destroy: sessions are their workers'."""
        self.sessions.stopping = True
        await run_shielded(self._close())

    async def _close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            try:
                await self._roster.go(self._fleet.me)
            except WarrenError as exc:
                _log.info("the cluster could not be told that this coordinator stops: %s", exc)
        if self._tenancy is not None:
            await self._tenancy.close()
        await self._links.close()
        await self._link.close()
