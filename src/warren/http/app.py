"""The app: every router, the errors, the admission of callers."""

from collections.abc import Callable
from importlib.metadata import version

from fastapi import FastAPI
from starlette.types import ASGIApp

from warren.http.admission import Admission, Books
from warren.http.context import Context
from warren.http.dispatch import Dispatcher
from warren.http.docs_page import add_reference
from warren.http.openapi import DESCRIPTION, PROBLEMS, TAGS, completed, operation_id
from warren.http.problems import register
from warren.http.routes import admin, cluster, health, operations, records, sockets, webhooks

ROUTERS = (operations, sockets, webhooks, records, admin, cluster, health)


def create_app(
    context: Context, *, wrapped: Callable[[ASGIApp], ASGIApp] = lambda app: app, counts: bool = True
) -> ASGIApp:
    """`wrapped` may put something between admission and the app; without `counts` admission counts nothing."""
    app = with_routes(context.version)
    app.state.context = context
    app.openapi = completed(app, with_key=context.with_key)  # type: ignore[method-assign]
    tenancy = context.tenancy
    books = Books(tenancy.audit, tenancy.usage.add) if counts else Books(tenancy.audit)
    inner = wrapped(Dispatcher(app, context))
    return Admission(inner, context.identity, tenancy.metering.quotas, context.sessions.clock, books, counts=counts)


def with_routes(version: str) -> FastAPI:
    app = FastAPI(
        title="Warren",
        version=version,
        description=DESCRIPTION,
        openapi_tags=TAGS,
        responses=PROBLEMS,
        generate_unique_id_function=operation_id,
        docs_url=None,
        redoc_url=None,
    )
    register(app)
    for module in ROUTERS:
        app.include_router(module.router)
    add_reference(app)
    return app


def package_version() -> str:
    return version("warren")
