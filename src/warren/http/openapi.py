"""Builds the OpenAPI document: adds what FastAPI cannot derive from the routes.

Every error of every route is a problem, described once. Names of operations do not depend on paths, so clients
generated from the document keep their names when a path is moved.
"""

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute

from warren.http.problems import MEDIA_TYPE

DESCRIPTION: Final = """
Isolated Linux sandboxes for AI agents. A **session** is a sandbox of your own: create one (or name a `thread_id` and
get the thread's), run commands in it, move files, open terminals. It keeps its state between commands and is gone
when you delete it, or when it was not used for its idle time-out.

Errors are `application/problem+json` with a stable `code`, a sentence (`detail`) and, where there is one, what to do
about it (`remedy`). `/api/sessions` is the full API; the flat endpoints are the same in the words of older clients.

Four addresses are WebSockets: `/api/sessions/{session_id}/exec`, `…/code`, `…/processes/{process_id}/attach` and
`…/terminal`. An error comes as a message `{"type": "error", "code": …, "detail": …}`, then the socket is
closed with 4000 plus the HTTP status.
"""
TAGS: Final = [
    {"name": "sessions", "description": "Create, show, keep alive, change and end sessions"},
    {"name": "environments", "description": "What sessions can be made of: environments and images"},
    {"name": "registry", "description": "Environments, agents, tools and prompts that the operator has described"},
    {
        "name": "commands",
        "description": "Commands that a caller waits for: the result, or the output as it comes",
    },
    {"name": "code", "description": "Cells of code in interpreters that keep their state"},
    {"name": "processes", "description": "Commands and terminals in the background"},
    {
        "name": "ports",
        "description": "Servers inside a sandbox: their ports, and links to previews of them. Any request to "
        "`/api/sessions/{session_id}/ports/{port}/…`, with any method and as a WebSocket, reaches such a server",
    },
    {
        "name": "files",
        "description": "Files of any size, read and written with the rights of the sandbox's user",
    },
    {"name": "artifacts", "description": "Files that outlive their sandbox"},
    {"name": "snapshots", "description": "Disks that sessions start from, and forks"},
    {"name": "volumes", "description": "Named disks that outlive sessions, and that several can share"},
    {"name": "flat", "description": "The same in the words of older clients"},
    {"name": "e2b", "description": "Code and files in the words of E2B-style clients"},
    {"name": "webhooks", "description": "Addresses that get the events of sessions"},
    {"name": "secrets", "description": "Credentials that sessions use and never see"},
    {"name": "records", "description": "What was done, and what was used"},
    {"name": "admin", "description": "Keys and tenants, for the operator of a server"},
    {"name": "cluster", "description": "Workers, for the operator of a cluster"},
    {"name": "pages", "description": "Signing in to the dashboard, and tickets for terminals in other pages"},
    {"name": "server", "description": "Health, version and figures of a server"},
]
_OTHER_APIS: Final = ("flat", "e2b")
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "description": "What was wrong (RFC 9457)",
    "required": ["type", "title", "status", "code", "detail", "retryable"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string", "description": "The HTTP status in words"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "Stable: for programs"},
        "detail": {"type": "string", "description": "A sentence: for people"},
        "remedy": {"type": "string", "description": "What to do about it"},
        "retryable": {"type": "boolean", "description": "Whether the same request may succeed later"},
        "instance": {"type": "string"},
        "error_id": {"type": "string", "description": "Stands in the server's log, if it was the server's fault"},
        "errors": {
            "type": "array",
            "description": "Each field that was wrong",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
    "example": {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "code": "session_not_found",
        "detail": "there is no session 'ses_0'",
        "remedy": "create one: POST /api/sessions",
        "retryable": False,
    },
}
_PROBLEM_BODY: Final[dict[str, Any]] = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"description": "Something is wrong with the request", **_PROBLEM_BODY},
    "5XX": {"description": "The server cannot do it, or not now", **_PROBLEM_BODY},
}


def operation_id(route: APIRoute) -> str:
    """Returns the function's name, with a prefix for the flat and the e2b API."""
    api = next((str(tag) for tag in route.tags if tag in _OTHER_APIS), "")
    return f"{api}_{route.name}" if api else route.name


def openapi_builder(app: FastAPI, *, with_key: bool) -> Callable[[], dict[str, Any]]:
    """Returns a replacement for the app's `openapi` that adds the schemas to which its routes refer."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        components = document["components"]
        components["schemas"]["Problem"] = _PROBLEM
        if with_key:
            components["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            }
            document["security"] = [{"bearer": []}, {"key": []}]
        return document

    return openapi
