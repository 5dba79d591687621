"""The road of every request, from top to bottom: what a server, a worker and a coordinator do with it, stage by stage.

1. guard      `HttpGuard` checks Host, Origin and the size of the body, gives the request its id, answers errors and
              logs it. Before that `Identify.recognise` has decided, without waiting, what it is: of the API, in E2B's
              words, a preview, a page. Previews by host have a guard of their own.
2. identify   `Identify.find_caller` finds out who asks. Pages are answered before, for they need no caller, and so is
              what the processes of a cluster ask each other.
3. admit      `Admission` counts the request against the caller's quotas, and records what became of it.
4. forward    On a coordinator, `Router` sends the request to the worker that must answer it, if one must.
   dispatch   Otherwise `Dispatcher` performs the operation of the table that it asks for, ours or E2B's; previews go to
              the server inside the sandbox.
5. FastAPI    answers what is left: WebSockets, admin, records, health, the OpenAPI document.

What was learned about a request travels in its record (http/request.py).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from warren.http.admission import Admission
from warren.http.dispatch import Dispatcher
from warren.http.e2b.errors import ShapedAnswer
from warren.http.identify import OPEN_PATHS
from warren.http.request import REQUEST, Kind, Request, Stage
from warren.http.server.http_guard import HttpGuard, limit_body, refuse_websocket
from warren.model.errors import Unauthorized

MAX_OPEN_BODY = 64 * 1024


class Identifies(Protocol):
    """`recognise` decides what a request is; `find_caller` who sends it, and may change how messages are received and
    sent. It raises Unauthorized."""

    def recognise(self, request: Request) -> None: ...
    async def find_caller(self, request: Request, receive: Receive, send: Send) -> tuple[Receive, Send]: ...


Guard = Callable[[Request, Receive, Send, Stage], Awaitable[None]]
Entrance = Callable[[Request, Receive, Send], Awaitable[Send | None]]
"""Answers what processes of a cluster ask each other, and returns None; else how the answer is sent."""
Forward = Callable[[Request, Receive, Send], Awaitable[Receive | None]]
"""Has a worker answer, and returns None; else how the body is received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What a pipeline is made of. Only a process that clients reach has `preview_guard` and `pages`, only one that has
    sandboxes `previews`, only one of a cluster an `entrance`, and only a coordinator `forward`."""

    guard: HttpGuard
    identify: Identifies
    admission: Admission
    dispatch: Dispatcher
    fastapi: ASGIApp
    preview_guard: Guard | None = None
    pages: Stage | None = None
    entrance: Entrance | None = None
    forward: Forward | None = None
    previews: Stage | None = None


class Pipeline:
    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._guard, self._identify, self._admission = stages.guard, stages.identify, stages.admission
        self._entrance, self._forward = stages.entrance, stages.forward
        self._dispatch, self._fastapi = stages.dispatch, stages.fastapi

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._fastapi(scope, receive, send)
            return
        request: Request | None = scope.get(REQUEST)
        if request is None:
            request = scope[REQUEST] = Request(scope)
        request.headers = dict(scope["headers"])
        self._identify.recognise(request)
        if request.refused is not None:
            await _refuse(request, receive, send)
            return
        if request.show_error is not None:
            send = ShapedAnswer(send, request).send
        guard = self._guard if not request.own_origin else self._stages.preview_guard
        assert guard is not None
        await guard(request, receive, send, self._serve)

    async def _serve(self, request: Request, receive: Receive, send: Send) -> None:
        """Identifies the caller of a request that the guard let in, and admits it."""
        if request.kind is Kind.PAGE:
            assert self._stages.pages is not None
            await self._stages.pages(request, receive, send)
            return
        if self._entrance is not None:
            further = await self._entrance(request, receive, send)
            if further is None:
                return
            send = further
        try:
            receive, send = await self._identify.find_caller(request, receive, send)
        except Unauthorized as exc:
            self._admission.record_unidentified(request, receive, send, exc)
            raise
        if request.scope["path"] in OPEN_PATHS and request.scope["type"] == "http":
            # Nobody's share of the server bounds these requests, so they must be small.
            if b"content-length" in request.headers or b"transfer-encoding" in request.headers:
                receive = limit_body(receive, MAX_OPEN_BODY)
            await self._answer(request, receive, send)
        else:
            await self._admission.admit(request, receive, send, self._answer)

    async def _answer(self, request: Request, receive: Receive, send: Send) -> None:
        """Has an admitted request answered: by a worker, by a sandbox, by an operation, or by FastAPI."""
        if self._forward is not None:
            kept = await self._forward(request, receive, send)
            if kept is None:
                return
            receive = kept
        if request.kind is Kind.PREVIEW:
            assert self._stages.previews is not None
            await self._stages.previews(request, receive, send)
            return
        response = await self._dispatch(request, receive)
        if response is not None:
            await response(request.scope, receive, send)
        else:
            await self._fastapi(request.scope, receive, send)


async def _refuse(request: Request, receive: Receive, send: Send) -> None:
    assert request.refused is not None
    if request.scope["type"] == "websocket":
        await refuse_websocket(request.scope, receive, send, request.refused)
    else:
        await request.refused(request.scope, receive, send)
