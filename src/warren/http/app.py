"""Builds the ASGI app: routes, operations, error answers and admission."""

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from warren.http.admission import Admission
from warren.http.api import (
    admin,
    cluster,
    events,
    health,
    metrics,
    operations,
    pages,
    records,
    secrets,
    sockets,
    webhooks,
)
from warren.http.context import Context
from warren.http.dispatch import Dispatcher
from warren.http.docs_page import add_pages
from warren.http.openapi import DESCRIPTION, PROBLEMS, TAGS, openapi_builder, operation_id
from warren.http.problems import register

# FastAPI tries one route after the other, and the dispatcher answers nearly all that `operations` has.
ROUTERS = (events, metrics, health, pages, records, secrets, webhooks, admin, cluster, sockets, operations)


# FastAPI's own would tell whatever is set up in the process of paths, bodies and exceptions. Ours is kernel.tracing.
_NO_TELEMETRY: Final[TelemetryConfig] = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


class _JsonLine(JSONResponse):
    """JSON and a newline, for those who read it at a terminal."""

    def render(self, content: Any) -> bytes:
        return super().render(content) + b"\n"


def create_app(
    context: Context, *, wrapped: Callable[[ASGIApp], ASGIApp] = lambda app: app, counts: bool = True
) -> ASGIApp:
    """`wrapped` may put a part between admission and the dispatcher; without `counts` no quota and usage is counted."""
    app = new_fastapi_app(context.version)
    app.state.context = context
    app.openapi = openapi_builder(app, with_key=context.with_key)  # type: ignore[method-assign]
    tenancy = context.tenancy
    return Admission(
        wrapped(Dispatcher(app, context)),
        context.identity,
        tenancy.metering.quotas,
        context.sessions.clock,
        audit=tenancy.audit,
        refusals=tenancy.refusals,
        page_reads=tenancy.page_reads,
        add_usage=tenancy.usage.add_request if counts else None,
        counts=counts,
        memory=context.answer_memory,
    )


def new_fastapi_app(version: str) -> FastAPI:
    app = FastAPI(
        default_response_class=_JsonLine,
        title="Warren",
        version=version,
        description=DESCRIPTION,
        openapi_tags=TAGS,
        responses=PROBLEMS,
        generate_unique_id_function=operation_id,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        telemetry=_NO_TELEMETRY,
    )
    register(app)
    for module in ROUTERS:
        app.include_router(module.router)
    add_pages(app, version)
    return app
