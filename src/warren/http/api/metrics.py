"""/metrics: the figures of a process for Prometheus. A worker serves it beside the API that coordinators use."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warren.http.context import Ctx, Scraper, check_scope, new_router
from warren.model.access import Scope as AccessScope
from warren.model.errors import NotFound

if TYPE_CHECKING:
    from warren.governance.metrics.process_metrics import ProcessMetrics

METRICS_PATH = "/metrics"
router = new_router(tags=["server"])


@router.get(
    METRICS_PATH,
    response_class=Response,
    responses={
        200: {"description": "The text format of Prometheus", "content": {"text/plain": {"schema": {"type": "string"}}}}
    },
    summary="Metrics for Prometheus",
)
async def scrape_metrics(request: Request, context: Ctx, tenant: Scraper) -> Response:
    """All tenants together. OpenMetrics, if the header Accept asks for it."""
    return await answer_metrics(context.metrics, request)


async def answer_metrics(source: "ProcessMetrics | None", request: Request) -> Response:
    if source is None:
        raise NotFound("this process keeps no metrics", remedy="start it with --metrics, or WARREN_METRICS=true")
    text, content_type = await source.render(request.headers.get("accept", ""))
    return Response(text, headers={"content-type": content_type})


class MetricsApp:
    """Answers every request with the metrics, if its caller may read them."""

    def __init__(self, source: "ProcessMetrics | None") -> None:
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["action"] = "scrape_metrics"
        check_scope(scope["caller"], AccessScope.METRICS)
        response = await answer_metrics(self._source, Request(scope, receive))
        await response(scope, receive, send)
