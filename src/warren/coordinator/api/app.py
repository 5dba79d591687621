"""The app: every router, the errors, the door."""

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.coordinator.api import e2b, exec, files, flat, health, processes, sessions, sockets
from warren.coordinator.api.context import Context
from warren.coordinator.api.door import Door
from warren.coordinator.api.problems import MEDIA_TYPE, register

DESCRIPTION = """
Isolated Linux sandboxes for AI agents. A **session** is a sandbox of your own: create one (or name a `thread_id` and
get the thread's), run commands in it, move files, open terminals. It keeps its state between commands and is gone
when you delete it, or when it was not used for its idle time-out.

Errors are `application/problem+json` with a stable `code`, a sentence (`detail`) and, where there is one, what to do
about it (`remedy`). `/api/sessions` is the full API; the flat endpoints are the same in the words of older clients.
"""
_ROUTERS = (sessions, exec, processes, sockets, files, flat, e2b, health)
_PROBLEM: dict[str, Any] = {
    "description": "What was wrong, as a problem (RFC 9457)",
    "content": {
        MEDIA_TYPE: {
            "schema": {
                "type": "object",
                "required": ["status", "code", "detail"],
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "code": {"type": "string"},
                    "detail": {"type": "string"},
                    "remedy": {"type": "string"},
                    "retryable": {"type": "boolean"},
                },
            }
        }
    },
}


def create_app(context: Context) -> ASGIApp:
    app = FastAPI(
        title="Warren",
        version=context.version,
        description=DESCRIPTION,
        responses={"4XX": _PROBLEM, "5XX": _PROBLEM},
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    register(app)
    app.state.context = context
    for module in _ROUTERS:
        app.include_router(module.router)
    return Door(LenientType(app), context.api_key)


def is_upload(scope: Scope) -> bool:
    """Requests whose body is a stream of any length, read as it comes."""
    path, method = scope["path"], scope["method"]
    if path == "/upload_file":
        return bool(method == "POST")
    return bool(method == "PUT" and path.startswith("/api/sessions/") and path.endswith(("/content", "/archive")))


class LenientType:
    """Bodies are JSON whatever `curl -d` calls them. Those that are read raw do not look at their type."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("POST", "PATCH", "PUT", "DELETE"):
            kept = []
            for name, value in scope["headers"]:
                if name == b"content-type" and not value.startswith(b"multipart/"):
                    value = b"application/json"
                kept.append((name, value))
            scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)


def package_version() -> str:
    return version("warren")
