"""A coordinator process. It owns nothing: any number of them may run, and each answers every request.

Two tasks run beside the requests: `fleet` refreshes the view of the workers and gives up the sessions of dead ones,
`liveness` pings the workers that requests wait for. `cli/serve` starts it; the theory of operation is in
`warren.cluster`.
"""

import asyncio
from functools import partial
from typing import Any, ClassVar

from starlette.types import ASGIApp

from warren.access.identity import BindingIdentity
from warren.app import cluster_wiring as wiring
from warren.app.readings import coordinator_readings
from warren.app.wiring import (
    build_artifact_store,
    build_artifacts,
    build_context,
    build_environments,
    build_logs,
    build_metrics,
    build_metrics_page,
    build_pipeline,
    build_sessions,
    build_snapshot_store,
    build_snapshots,
    e2b_templates,
    recorder_of,
    with_pages,
)
from warren.cluster.auth import ClusterAuth
from warren.cluster.entrance import CoordinatorEntrance
from warren.cluster.failover import Failover
from warren.cluster.fleet import Fleet
from warren.cluster.operator import ClusterOperator
from warren.cluster.peer_calls import PeerCalls
from warren.cluster.proxy.liveness import Liveness
from warren.cluster.proxy.router import Router
from warren.cluster.roster import ClusterSnapshot, Peer, Roster
from warren.cluster.volumes import DrainedVolumes
from warren.config.settings import Settings
from warren.governance.tenancy import Tenancy
from warren.http.e2b.placement import placement_wishes
from warren.kernel.clock import ClusterClock
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.kernel.tracing import OFF, Tracing
from warren.model.errors import WarrenError
from warren.sessions.basis import SessionBasis
from warren.sessions.history import History, Reading
from warren.sessions.lifecycle import Lifecycle, LifecycleOptions
from warren.sessions.manager import Sessions
from warren.sessions.starting import StartWaits
from warren.stores.redis_store import RedisStore

_log = get_log(__name__)


class CoordinatorService:
    sessions: Sessions
    tenancy: Tenancy
    history: History
    role: ClassVar[str] = "coordinator"

    def __init__(self, settings: Settings, *, tracing: Tracing = OFF) -> None:
        self._settings = settings
        self._tracing = tracing
        self._environments = build_environments(settings)
        self._metrics = build_metrics(settings, self._environments, self.role)
        self.response_grace_s = settings.stop_grace_s  # its work is to forward, so responses get the time that work has
        self._link = wiring.build_redis_link(settings)
        self._worker_client = wiring.build_worker_client(settings)
        self._auth = ClusterAuth(settings.cluster_secret, *settings.other_cluster_secrets)
        self._peer_calls = PeerCalls(self._worker_client, self._auth)
        self._liveness = Liveness(self._peer_calls.worker_id)
        self._roster = Roster(self._link)
        self._store = RedisStore(self._link, wiring.build_encryption(settings))
        self._fleet = Fleet(
            self._roster,
            Peer(wiring.coordinator_id(settings), wiring.advertised_address(settings)),
            configured_addresses=settings.workers,
            identify=self._peer_calls.worker_id,
            is_accepted_by=self._peer_calls.is_accepted_by,
        )
        self._tenancy: Tenancy | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Waits for Redis; returns when requests can be answered."""
        try:
            await self._start()
        except BaseException:
            await run_shielded(self._close())
            raise

    async def _start(self) -> None:
        settings, clock = self._settings, ClusterClock(await wiring.wait_for_redis_time(self._link))
        self.history = History(clock, recorder_of(self._metrics))
        await asyncio.to_thread(self._environments.look)
        self.tenancy = self._tenancy = await wiring.build_tenancy(
            settings, self._store, self._link, clock, self._environments, self.history
        )
        await self.tenancy.keys.check_admin_key(settings.api_key)
        artifact_store = await build_artifact_store(settings) if settings.artifact_store else None
        artifacts = build_artifacts(settings, self._store.records, artifact_store, self.tenancy, clock)
        snapshot_store = await build_snapshot_store(settings) if settings.snapshot_store else None
        snapshots = build_snapshots(
            *(settings, self._store.records, snapshot_store, None, self.tenancy, self._environments, clock)
        )
        lifecycle = Lifecycle(
            SessionBasis(self._store, None, clock, in_cluster=True, recorder=self.history),
            LifecycleOptions(
                waits=StartWaits(settings.claim_timeout_s),
                events=self.tenancy.events,
                artifacts=artifacts,
                snapshots=snapshots,
            ),
        )
        self.sessions = build_sessions(settings, lifecycle, self.tenancy, self._environments)
        self.logs = build_logs(settings, self._store, self.tenancy, clock, keeps=False)
        failover = Failover(
            *(self._fleet, self._roster, self._store, lifecycle),
            retention_s=settings.key_retention_s,
            away_s=settings.worker_away_s,
        )
        self.control = ClusterOperator(
            self._fleet,
            self._roster,
            failover,
            self._peer_calls.worker_stats,
            self._peer_calls.session_metrics,
            wiring.demand_goal(settings),
        )
        await self._fleet.refresh()
        self._tasks = [
            asyncio.create_task(self._liveness.run(), name="liveness"),
            asyncio.create_task(self._fleet.run(partial(self._look, failover)), name="fleet"),
            asyncio.create_task(self._environments.watch(clock), name="environments"),
            asyncio.create_task(self.history.run(self._read_history), name="history"),
        ]
        parts = self._fleet, self._worker_client, self._auth, self._store.records
        drained = DrainedVolumes(*parts, self._settings.default_environment)
        self._tasks.append(asyncio.create_task(drained.run(), name="drained volumes"))
        if self._metrics is not None:
            self._tasks.append(asyncio.create_task(self._metrics.run(), name="metrics"))
        self.tenancy.start()

    async def _look(self, failover: Failover, snapshot: ClusterSnapshot) -> None:
        self.control.look()
        await failover.tick(snapshot)

    async def _read_history(self) -> Reading:
        counts = await self._store.count()
        return Reading({str(state): count for state, count in counts.items()})

    def app(self, identity: BindingIdentity) -> ASGIApp:
        settings = self._settings
        context = build_context(
            settings,
            self._environments,
            self.sessions,
            self.tenancy,
            identity,
            self.control,
            build_metrics_page(self._metrics, coordinator_readings(self.control)),
            self.history,
            self.logs,
        )
        context = with_pages(settings, context)

        environment_of = wiring.build_environment_of(self._environments)
        router = Router(
            self._fleet,
            self._store,
            self._worker_client,
            self._auth,
            self._liveness,
            environment=settings.default_environment,
            environment_of=environment_of,
            agent_of=wiring.build_agent_of(self._environments),
            e2b_wishes=lambda values: placement_wishes(values, e2b_templates(settings), environment_of),
            tls=wiring.build_client_tls(settings),
        )
        entrance = CoordinatorEntrance(self._auth, self._fleet, self._worker_client, self._store.records)
        return build_pipeline(settings, context, self._tracing, entrance=entrance, forward=router)

    async def stop(self, grace_s: float = 0.0, *, destroy: bool = False) -> None:
        """Destroys nothing: the sessions belong to their workers."""
        self.sessions.uses.stop()
        await run_shielded(self._close())

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            try:
                await self._roster.withdraw(self._fleet.me)
            except WarrenError as exc:
                _log.info("coordinator_withdrawal_not_saved", error=exc)
        if self._tenancy is not None:
            await self._tenancy.close()
        await self._worker_client.close()
        await self._link.close()
