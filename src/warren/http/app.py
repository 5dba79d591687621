"""The app: every router, the errors, the door."""

from collections.abc import Callable
from importlib.metadata import version

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.http.admission import Admission, Books
from warren.http.context import Context
from warren.http.docs_page import add_reference
from warren.http.exec_fast_path import ExecFastPath
from warren.http.openapi import DESCRIPTION, PROBLEMS, TAGS, completed, operation_id
from warren.http.problems import register
from warren.http.routes import (
    admin,
    cluster,
    e2b,
    exec,
    files,
    flat,
    health,
    processes,
    records,
    sessions,
    sockets,
    webhooks,
)

ROUTERS = (sessions, exec, processes, sockets, files, flat, e2b, webhooks, records, admin, cluster, health)
_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def create_app(
    context: Context, *, wrapped: Callable[[ASGIApp], ASGIApp] = lambda app: app, counts: bool = True
) -> ASGIApp:
    """`wrapped` may put something between the door and the app; without `counts` the door counts nothing."""
    app = with_routes(context.version)
    app.state.context = context
    app.openapi = completed(app, with_key=context.with_key)  # type: ignore[method-assign]
    tenancy = context.tenancy
    books = Books(tenancy.audit, tenancy.usage.add) if counts else Books(tenancy.audit)
    inner = wrapped(ExecFastPath(LenientType(app), context))
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


def is_upload(scope: Scope) -> bool:
    """Requests whose body is a stream of any length, read as it comes."""
    path, method = scope["path"], scope["method"]
    if path == "/upload_file":
        return bool(method == "POST")
    return bool(method == "PUT" and path.startswith("/api/sessions/") and path.endswith(("/content", "/archive")))


class LenientType:
    """Bodies are JSON whatever `curl -d` calls them, or if nobody says. Those that are read raw do not look at it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in _WITH_BODY and not is_upload(scope):
            types = [header for header in scope["headers"] if header[0] == b"content-type"]
            if not any(value.startswith(b"multipart/") for _, value in types):
                kept = [header for header in scope["headers"] if header[0] != b"content-type"]
                scope["headers"] = [*kept, (b"content-type", b"application/json")]  # in place: the door reads the scope
        await self._app(scope, receive, send)


def package_version() -> str:
    return version("warren")
