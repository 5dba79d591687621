"""An app behind the guard alone: what tests of the guard, of connections and of forwarding serve."""

from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from warren.http.request import Request, request_in
from warren.http.server.http_guard import HttpGuard


def guarded(app: ASGIApp, *, takes_stream: Callable[[Scope], bool] = lambda scope: False, **options: Any) -> ASGIApp:
    """`takes_stream` tells whether the body of a request may have any length."""
    guard = HttpGuard(**options)

    async def serve(request: Request, receive: Receive, send: Send) -> None:
        await app(request.scope, receive, send)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await app(scope, receive, send)
            return
        request = request_in(scope)
        request.headers, request.streams = dict(scope["headers"]), takes_stream(scope)
        await guard(request, receive, send, serve)

    return served
