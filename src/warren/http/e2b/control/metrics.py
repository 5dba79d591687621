"""What sandboxes use, in E2B's words: the metrics of sessions (sessions/metrics.py)."""

import math
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.bodies import bad, whole_in_query
from warren.http.e2b.control.sandboxes import living_session
from warren.model.e2b import sandbox_id_of, session_id_of
from warren.model.errors import SandboxLost
from warren.model.metrics import MetricLimits, SandboxMetrics
from warren.sessions.operations.metrics import MAX_ASKED, latest_metrics
from warren.sessions.schemas import timestamp

_FRESH_S: Final = 5  # how much later than `end` the point of now may be: the clocks of clients differ
_LATEST: Final = 1 << 36  # in seconds: the year 4147


async def show_metrics(call: E2bCall) -> Response:
    start = _seconds(call, "start") or 0
    end = _seconds(call, "end")
    if end is not None and end < start:
        raise bad("end is before start")
    session = await living_session(call)
    last = _LATEST if end is None else end
    meter, limits = call.sessions.lifecycle.metrics, MetricLimits.of(session.limits)
    points = [point for point in meter.series(session) if start <= int(point.at) <= last]
    if session.state.can_run and start <= call.sessions.clock.wall() <= last + _FRESH_S:
        sandbox = await call.sessions.find_sandbox(session)
        if sandbox is None:
            raise SandboxLost("the sandbox cannot be reached")
        now = await meter.now(session, sandbox)
        if not points or points[-1].at < now.at:
            points.append(now)
    return answer_json([_view(point, limits) for point in points])


def _seconds(call: E2bCall, name: str) -> int | None:
    """Clients of 2.7 send milliseconds."""
    value = whole_in_query(call.parameter(name), name, 0, 1000 * _LATEST)
    return value // 1000 if value is not None and value > _LATEST else value


async def show_metrics_of_many(call: E2bCall) -> Response:
    wanted = [name for text in call.query.get("sandbox_ids", []) for name in text.split(",") if name]
    if not wanted or len(wanted) > MAX_ASKED:
        raise bad(f"sandbox_ids must name 1 to {MAX_ASKED} sandboxes, with commas between them")
    names = list(dict.fromkeys(map(session_id_of, wanted)))
    found = await latest_metrics(call.context, call.tenant, names)
    shown = {sandbox_id_of(name): _view(latest.now, latest.limits) for name, latest in found.items()}
    return answer_json({"sandboxes": shown})


def _view(point: SandboxMetrics, limits: MetricLimits) -> dict[str, Any]:
    count = max(1, math.ceil(limits.cpus))
    return {
        "timestamp": timestamp(point.at),
        "timestampUnix": int(point.at),
        "cpuCount": count,
        "cpuUsedPct": round(100 * point.cpus / count, 2),
        "memUsed": min(point.memory_bytes, limits.memory_bytes),
        "memTotal": limits.memory_bytes,
        "memCache": point.cache_bytes,
        "diskUsed": point.disk_bytes,
        "diskTotal": max(point.disk_bytes, limits.disk_bytes),
    }


HANDLERS: Mapping[str, Run] = {"e2b_get_metrics": show_metrics, "e2b_list_metrics": show_metrics_of_many}
