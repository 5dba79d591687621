"""Shows what sessions use: processors, memory, disk, processes and network."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from pydantic import BaseModel, Field

from warren.model.errors import InvalidRequest
from warren.model.figures import FigureLimits, Figures, LatestFigures
from warren.sessions.operations.call import Call, Handler, OperationContext, Values
from warren.sessions.schemas import FiguresPage, MetricsView, timestamp

MOST_ASKED: Final = 100


class MetricsQuery(BaseModel):
    session_ids: str = Field(
        min_length=1,
        max_length=16384,
        description=f"The ids of 1 to {MOST_ASKED} sessions, with commas between them",
        examples=["ses_a,ses_b"],
    )


async def get_metrics(call: Call) -> Values:
    """As the kernel of the host counts it; nothing runs in the sandbox for it. `now` is at most a second old, `series`
    has the points of the last minutes, each `interval_s` after the one before. Looking does not count as use."""
    meter, session = call.sessions.lifecycle.figures, call.session
    now = await meter.now(session, call.sandbox)
    return {
        "session_id": session.id,
        "interval_s": meter.interval_s,
        "limits": asdict(FigureLimits.of(session.limits)),
        "now": point_view(now),
        "series": [point_view(point) for point in meter.series(session)],
    }


async def list_metrics(call: Call, query: MetricsQuery) -> Values:
    """The last point known of each, some seconds old. Sessions that are not yours, have ended, or were not looked at
    yet are left out."""
    names = [name for name in dict.fromkeys(query.session_ids.split(",")) if name]
    if not 1 <= len(names) <= MOST_ASKED:
        raise InvalidRequest(
            f"session_ids names {len(names)} sessions", remedy=f"name 1 to {MOST_ASKED}, with commas between them"
        )
    found = await latest_figures(call.context, call.tenant, names)
    return {"metrics": {name: latest_view(figures) for name, figures in found.items()}}


async def latest_figures(
    context: OperationContext, tenant: str, session_ids: Sequence[str]
) -> Mapping[str, LatestFigures]:
    """The last points of the tenant's sessions, by session id. In a cluster their workers are asked."""
    if context.cluster is None:
        return context.sessions.lifecycle.figures.latest(tenant, session_ids)
    workers: dict[str, list[str]] = {}
    for session_id in session_ids:
        session = await context.sessions.store.get(tenant, session_id)
        if session is not None and session.state.can_run and session.worker:
            workers.setdefault(session.worker, []).append(session_id)
    return await context.cluster.session_figures(tenant, workers)


def latest_view(latest: LatestFigures) -> Values:
    return {"limits": asdict(latest.limits), "now": point_view(latest.now)}


def point_view(point: Figures) -> Values:
    return {**point.as_mapping(), "at": timestamp(point.at), "cpu_s": round(point.cpu_s, 3)}


HANDLERS = (
    Handler("get_metrics", get_metrics, result=MetricsView),
    Handler("list_metrics", list_metrics, query=MetricsQuery, result=FiguresPage),
)
