"""/metrics: the figures of a process for Prometheus. A worker serves it beside the API that coordinators use."""

from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send

from warren.access.identity import Identity
from warren.http.admission import Admission
from warren.http.context import Ctx, Scraper, check_scope, new_router
from warren.http.request import Request as AskedRequest
from warren.model.access import Scope as AccessScope
from warren.model.errors import NotFound, Unauthorized

if TYPE_CHECKING:
    from warren.governance.metrics.process_metrics import MetricsPage

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


async def answer_metrics(source: "MetricsPage | None", request: Request) -> Response:
    if source is None:
        raise NotFound("this process keeps no metrics", remedy="start it with --metrics, or WARREN_METRICS=true")
    text, content_type = await source.render(request.headers.get("accept", ""))
    return Response(text, headers={"content-type": content_type})


class MetricsStage:
    """Answers every request with the metrics, if its caller, whom `identity` finds, may read them."""

    def __init__(self, source: "MetricsPage | None", identity: Identity, admission: Admission) -> None:
        self._source = source
        self._identity = identity
        self._admission = admission

    async def __call__(self, request: AskedRequest, receive: Receive, send: Send) -> None:
        headers = request.scope["headers"]
        try:
            request.caller = await self._identity.caller(headers)
        except Unauthorized as exc:
            self._admission.record_unidentified(request, receive, send, exc)
            raise
        request.check_again = partial(self._identity.check_again, headers)
        await self._admission.admit(request, receive, send, self._answer)

    async def _answer(self, request: AskedRequest, receive: Receive, send: Send) -> None:
        request.action = "scrape_metrics"
        check_scope(request.caller, AccessScope.METRICS)
        response = await answer_metrics(self._source, Request(request.scope, receive))
        await response(request.scope, receive, send)
