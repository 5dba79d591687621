"""Shows what sessions use: processors, memory, disk, processes and network."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from pydantic import BaseModel, Field

from warren.model.access import ANY_TENANT, Scope
from warren.model.errors import InvalidRequest
from warren.model.metrics import LatestMetrics, MetricLimits, SandboxMetrics
from warren.sessions.allowances import choose_tenant
from warren.sessions.operations.call import Call, Handler, OperationContext, Values
from warren.sessions.request_context import current_caller
from warren.sessions.schemas import timestamp

MAX_ASKED: Final = 100


class FiguresView(BaseModel):
    """What a session uses at a moment."""

    at: str
    cpu_s: float = Field(description="Seconds of processor time that it has used in all")
    cpus: float = Field(description="Cores in use on average since the point before; 0 in the first")
    memory_bytes: int = Field(description="Without `cache_bytes`")
    cache_bytes: int = Field(description="Files that the kernel keeps in memory as long as nobody needs it")
    disk_bytes: int
    processes: int = Field(description="With their threads, as the limit counts them; 0 where a far side does not tell")
    sent_bytes: int = Field(description="To the network, since the sandbox has one")
    received_bytes: int


class FigureLimitsView(BaseModel):
    cpus: float
    memory_bytes: int
    disk_bytes: int
    processes: int


class LatestFiguresView(BaseModel):
    limits: FigureLimitsView
    now: FiguresView


class MetricsView(LatestFiguresView):
    session_id: str
    interval_s: float = Field(description="Between the points of the series; on a machine with much to read it grows")
    series: list[FiguresView] = Field(description="Oldest first; it begins anew when the server is restarted")


class FiguresPage(BaseModel):
    metrics: dict[str, LatestFiguresView] = Field(description="By session id")


class MetricsQuery(BaseModel):
    session_ids: str = Field(
        min_length=1,
        max_length=16384,
        description=f"The ids of 1 to {MAX_ASKED} sessions, with commas between them",
        examples=["ses_a,ses_b"],
    )
    of: str = Field(
        "", max_length=64, description="Sessions of this tenant, or `*` for those of any; needs the scope admin"
    )


async def get_metrics(call: Call) -> Values:
    """As the kernel of the host counts it; nothing runs in the sandbox for it. `now` is at most a second old, `series`
    has the points of the last minutes, each `interval_s` after the one before. Looking does not count as use, and
    resumes no paused session; 409 `session_paused`: it is paused since before a restart of the server."""
    meter = call.sessions.lifecycle.metrics
    async with call.using(counts=False, wakes=False) as (session, sandbox):
        now = await meter.now(session, sandbox)
    return {
        "session_id": session.id,
        "interval_s": meter.interval_s,
        "limits": asdict(MetricLimits.of(session.limits)),
        "now": point_view(now),
        "series": [point_view(point) for point in meter.series(session)],
    }


async def list_metrics(call: Call, query: MetricsQuery) -> Values:
    """The last point known of each, some seconds old. Sessions that are not yours, have ended, or were not looked at
    yet are left out."""
    names = [name for name in dict.fromkeys(query.session_ids.split(",")) if name]
    if not 1 <= len(names) <= MAX_ASKED:
        raise InvalidRequest(
            f"session_ids names {len(names)} sessions", remedy=f"name 1 to {MAX_ASKED}, with commas between them"
        )
    tenant = choose_tenant(current_caller(), query.of, Scope.ADMIN) if query.of else call.tenant
    found = await latest_metrics(call.context, tenant, names)
    return {"metrics": {name: latest_view(metrics) for name, metrics in found.items()}}


async def latest_metrics(
    context: OperationContext, tenant: str, session_ids: Sequence[str]
) -> Mapping[str, LatestMetrics]:
    """The last points of the tenant's sessions (ANY_TENANT: of anybody's), by session id. In a cluster their workers
    are asked."""
    cluster, metrics, store = context.cluster, context.sessions.lifecycle.metrics, context.sessions.store
    if cluster is None and tenant != ANY_TENANT:
        return metrics.latest(tenant, session_ids)
    places: dict[str, dict[str, list[str]]] = {}  # by tenant and worker
    for session_id in session_ids:
        session = await (store.find(session_id) if tenant == ANY_TENANT else store.get(tenant, session_id))
        if session is not None and session.state.can_be_lost and session.worker:
            places.setdefault(session.tenant, {}).setdefault(session.worker, []).append(session_id)
    if cluster is None:
        parts = [metrics.latest(owner, ids) for owner, workers in places.items() for ids in workers.values()]
    else:
        parts = await asyncio.gather(*(cluster.session_metrics(owner, workers) for owner, workers in places.items()))
    return {name: latest for part in parts for name, latest in part.items()}


def latest_view(latest: LatestMetrics) -> Values:
    return {"limits": asdict(latest.limits), "now": point_view(latest.now)}


def point_view(point: SandboxMetrics) -> Values:
    return {**point.as_mapping(), "at": timestamp(point.at), "cpu_s": round(point.cpu_s, 3)}


HANDLERS = (
    Handler("get_metrics", get_metrics, result=MetricsView),
    Handler("list_metrics", list_metrics, query=MetricsQuery, result=FiguresPage),
)
