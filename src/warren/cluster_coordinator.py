"""A coordinator process: it owns nothing. Any number of them, each answers every request."""

import asyncio
import logging
from typing import Any

from starlette.types import ASGIApp

from warren import cluster_wiring as wiring
from warren.clock import ClusterClock
from warren.config import Settings
from warren.coordinator.access.identity import Identity
from warren.coordinator.api.app import create_app
from warren.coordinator.cluster.control import Control
from warren.coordinator.cluster.errands import Errands
from warren.coordinator.cluster.fleet import Fleet
from warren.coordinator.cluster.front import CoordinatorFront
from warren.coordinator.cluster.members import Peer
from warren.coordinator.cluster.roster import Roster
from warren.coordinator.cluster.warden import Warden
from warren.coordinator.forwarding.lookout import Lookout
from warren.coordinator.forwarding.router import Router
from warren.coordinator.lifecycle import Lifecycle
from warren.coordinator.office import Office
from warren.coordinator.sessions import Sessions
from warren.coordinator.stores.redis_store import RedisStore
from warren.finishing import to_its_end
from warren.model.errors import WarrenError
from warren.wiring import build_context, build_edge, build_sessions

_log = logging.getLogger("warren.cluster")


class CoordinatorService:
    sessions: Sessions
    office: Office

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.goodbye_s = settings.stop_grace_s  # what it does is hand on: that has the time that work has
        self._link = wiring.build_link(settings)
        self._links = wiring.build_links(settings)
        self._trust = wiring.build_trust(settings)
        self._errands = Errands(self._links, self._trust)
        self._lookout = Lookout(self._errands.who)
        self._roster = Roster(self._link)
        self._store = RedisStore(self._link, wiring.build_sealer(settings))
        self._fleet = Fleet(
            self._roster,
            Peer(wiring.coordinator_id(settings), wiring.advertised(settings)),
            addresses=settings.workers,
            find=self._errands.who,
        )
        self._office: Office | None = None
        self._looking: asyncio.Task[Any] | None = None
        self._watching: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """Waits for Redis; returns when requests can be answered."""
        try:
            await self._start()
        except BaseException:
            await to_its_end(self._close())
            raise

    async def _start(self) -> None:
        settings, clock = self._settings, ClusterClock(await wiring.time_of_redis(self._link))
        self.office = self._office = await wiring.build_office(settings, self._store, self._link, clock)
        lifecycle = Lifecycle(
            self._store, {}, clock, claim_timeout_s=settings.claim_timeout_s, others=True, events=self.office.events
        )
        self.sessions = build_sessions(settings, lifecycle, self.office)
        warden = Warden(self._fleet, self._roster, self._store, lifecycle, retention_s=settings.key_retention_s)
        self.control = Control(self._fleet, self._roster, warden, self._errands.stats)
        await self._fleet.look()
        self._looking = asyncio.create_task(self._fleet.run(warden.tick), name="fleet")
        self._watching = asyncio.create_task(self._lookout.run(), name="lookout")
        self.office.start()

    def app(self, identity: Identity) -> ASGIApp:
        settings = self._settings
        context = build_context(settings, self.sessions, self.office, identity, self.control)

        def routed(app: ASGIApp) -> ASGIApp:
            return Router(
                app,
                self._fleet,
                self._store,
                self._links,
                self._trust,
                self._lookout,
                environment=settings.default_environment,
                tls=wiring.build_client_tls(settings),
            )

        front = CoordinatorFront(create_app(context, wrapped=routed), self._trust, self._fleet)
        return build_edge(settings, front)

    async def stop(self, grace_s: float = 0.0, *, destroy: bool = False) -> None:
        """There is nothing to destroy: sessions are their workers'."""
        self.sessions.stopping = True
        await to_its_end(self._close())

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
        if self._office is not None:
            await self._office.close()
        await self._links.close()
        await self._link.close()
