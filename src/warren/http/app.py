"""Builds the FastAPI app, which has the routes beside the operations, and the OpenAPI document of all."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.responses import JSONResponse

from warren.http import operation_routes
from warren.http.api import (
    admin,
    cluster,
    events,
    health,
    metrics,
    pages,
    records,
    secrets,
    sockets,
    webhooks,
)
from warren.http.context import Context
from warren.http.docs_page import add_pages
from warren.http.openapi import DESCRIPTION, PROBLEMS, TAGS, openapi_builder, operation_id
from warren.http.problems import register

# FastAPI tries one route after the other. `operation_routes` is last: the dispatcher answers nearly all that it has.
ROUTERS = (events, metrics, health, pages, records, secrets, webhooks, admin, cluster, sockets, operation_routes)


# FastAPI's own would report paths, bodies and exceptions to whatever is set up in the process. Ours is kernel.tracing.
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


def create_app(context: Context) -> FastAPI:
    app = new_fastapi_app(context.version)
    app.state.context = context
    app.openapi = openapi_builder(app, with_key=context.with_key)  # type: ignore[method-assign]
    _resolve_routes(app)
    return app


def _resolve_routes(app: FastAPI) -> None:
    """Lets FastAPI build now what it would build at the first request, for a tenth of a second and more."""
    for route in app.routes:
        route.matches({"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []})


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
