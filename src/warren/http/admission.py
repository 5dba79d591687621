"""Identifies the caller of each request, counts the request against its quotas, and records it.

Every request needs a caller, except those for OPEN_PATHS. Admission identifies the caller, counts the request, and
passes it on with the caller in `scope["caller"]`. The route decides whether this caller may use it (context.py). While
a stream, an upload or a WebSocket goes on, admission looks at the credentials again: whoever lost them loses it. When
the request is over, whether it succeeded or not, admission adds it to the tenant's usage and to the audit log.
"""

import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from warren.access.bindings import GRANT, PAGE_MARK, Grant
from warren.access.identity import Identity
from warren.governance.audit.page_reads import PageReads
from warren.governance.audit.refusals import RefusalLimit
from warren.governance.quotas import Quotas, Standing, standing_of
from warren.http.event_streams import EVENT_STREAM, error_values
from warren.http.openapi import operation_id
from warren.http.preview_credentials import clean_request
from warren.http.problems import is_disconnect, problem
from warren.http.server.connections import HAS_LEFT
from warren.http.server.http_guard import CALLER_LEFT, MAX_CONNECTIONS, SWITCHING_PROTOCOLS, limit_body, request_id
from warren.interfaces.audit import AuditLog
from warren.kernel.answer_memory import AnswerMemory, AnswerRoom, set_answer_room
from warren.kernel.clock import Clock
from warren.kernel.fair_share import FairShare
from warren.kernel.tracing import trace_id
from warren.model.access import Caller
from warren.model.audit import RequestRecord
from warren.model.e2b import KNOWN_CALLER
from warren.model.errors import RateLimited, Unauthorized, WarrenError
from warren.model.preview import PREVIEW, PREVIEW_CALLER, PREVIEW_CHECK, PREVIEW_ERROR
from warren.sessions.request_context import RequestContext, set_request_context

OPEN_PATHS: Final = frozenset(
    {
        *("/", "/health", "/ready", "/version", "/docs", "/openapi.json"),
        *("/api/ui/session", "/api/ui/sign-in", "/api/ui/sign-out", "/api/ui/tickets/redeem"),
    }
)
MAX_OPEN_BODY: Final = 64 * 1024
ANONYMOUS: Final = Caller(scopes=frozenset())
BYTES_OUT: Final = "bytes_out"
CHECK_S: Final = 2.0
SHARE: Final = 4  # a tenant may use four times as many connections as it leaves free
_NONE: Final[Mapping[str, Any]] = {}
_EVENTS: Final = f"{EVENT_STREAM}; charset=utf-8".encode()


class Admission:
    """With `counts` False a request costs the caller nothing: a coordinator has counted it already. `memory` is what
    the answers of all requests may hold.

    When a request is over `add_usage` gets its tenant, its bytes in and out, and `audit` everything that is known of
    it; each may be None. `refusals` decides which of the refused requests get an audit entry of their own, and counts
    the others; `page_reads` decides it for requests of open pages.
    """

    def __init__(
        self,
        app: ASGIApp,
        identity: Identity,
        quotas: Quotas,
        clock: Clock,
        *,
        audit: AuditLog | None = None,
        refusals: RefusalLimit | None = None,
        page_reads: PageReads | None = None,
        add_usage: Callable[[str, int, int], None] | None = None,
        counts: bool = True,
        memory: AnswerMemory | None = None,
    ) -> None:
        self._app = app
        self._identity = identity
        self._quotas = quotas
        self._clock = clock
        self._audit = audit
        self._add_usage = add_usage
        self._counts = counts
        self._refusals = refusals
        self._page_reads = page_reads
        self._memory = memory or AnswerMemory()
        self._open = _OpenRequests()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif scope["path"] in OPEN_PATHS and scope["type"] == "http":
            scope["caller"] = ANONYMOUS
            # Nobody's share of the server bounds these requests, so they must be small.
            await self._app(scope, limit_body(receive, MAX_OPEN_BODY), send)
        else:
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(send, receive)
        try:
            if PREVIEW_ERROR in scope:
                raise scope[PREVIEW_ERROR]
            grant: Grant | None = scope.get(GRANT)
            caller: Caller | None = scope.get(PREVIEW_CALLER) or scope.get(KNOWN_CALLER)
            if caller is None:
                caller = grant.caller if grant is not None else await self._identity.caller(scope["headers"])
        except Unauthorized as exc:
            if self._refusals is None or self._refusals.may_record(""):
                self._record(scope, exchange, RequestContext(ANONYMOUS), exc)
            raise
        by_key = partial(self._identity.check_again, scope["headers"])
        if PREVIEW_CALLER in scope:
            exchange.check_again = scope.get(PREVIEW_CHECK)
        elif grant is not None:
            exchange.check_again = grant.check_again
        elif KNOWN_CALLER not in scope:
            exchange.check_again = by_key
        if PREVIEW in scope:
            scope["headers"] = clean_request(scope["headers"], scope[PREVIEW])
        request_context = RequestContext(caller)
        set_request_context(request_context)
        has_left: Callable[[], bool] = scope.get(HAS_LEFT, _stays)
        exchange.is_in_vain = lambda: request_context.if_undelivered is not None and has_left()
        room = AnswerRoom(self._memory, caller.tenant)
        set_answer_room(room)
        scope["caller"] = caller
        error: BaseException | None = None
        admitted = entered = False
        try:
            self._open.enter(caller.tenant, scope)
            entered = True
            if self._counts:
                await self._count(caller, scope, exchange)
            admitted = True
            await self._app(scope, exchange.receive, exchange.send)
        except BaseException as exc:
            error = exchange.cut_off_by or exc
            if request_context.if_undelivered is not None:
                request_context.if_undelivered()
            if not await _answer_rate_limited(exc, scope, receive, exchange):
                raise
        finally:
            room.release()
            if entered:
                self._open.leave(caller.tenant)
            if admitted or self._refusals is None or self._refusals.may_record(caller.tenant):
                self._record(scope, exchange, request_context, error)

    async def _count(self, caller: Caller, scope: Scope, exchange: "_Exchange") -> None:
        if PREVIEW_CALLER not in scope:  # who looks at a preview does not use up the requests of its owner
            exchange.standing = await self._quotas.request(caller)
        # A caller that has used up its bytes must still be able to end its sessions.
        if scope.get("method") != "DELETE" and self._quotas.bounds(caller, BYTES_OUT):
            self._quotas.check_left(caller, BYTES_OUT)
            exchange.spend_bytes = self._byte_spender(caller)

    def _byte_spender(self, caller: Caller) -> Callable[[int], Awaitable[None]]:
        async def spend(amount: int) -> None:
            if not await self._quotas.spend(caller, BYTES_OUT, amount):
                raise self._quotas.spent(caller, BYTES_OUT)

        return spend

    def _record(
        self, scope: Scope, exchange: "_Exchange", request_context: RequestContext, error: BaseException | None
    ) -> None:
        caller = request_context.caller
        if self._add_usage is not None and caller is not ANONYMOUS:
            self._add_usage(caller.tenant, exchange.bytes_in, exchange.bytes_out)
        if self._audit is None or scope.get("forwarded"):  # the worker records what it was forwarded, and knows more
            return
        status = exchange.status if error is None and exchange.status else _status(exchange, error)
        result = "ok" if error is None and status < 400 else _result(status, error)
        action, path_params = scope.get("action") or _action(scope), scope.get("path_params", _NONE)
        if PAGE_MARK in scope and self._page_reads is not None and result == "ok":
            notes = request_context.notes
            session_id = str(notes.get("session_id") or path_params.get("session_id", ""))
            if "error" not in notes and not self._page_reads.may_record(scope[PAGE_MARK], action, session_id):
                return
        if trace := trace_id():
            request_context.notes["trace"] = trace
        # The writer's thread makes the entry; here, on the event loop, every microsecond counts for each request.
        client = scope.get("client")
        self._audit.record(
            RequestRecord(
                self._clock.wall(),
                action,
                caller.tenant if caller is not ANONYMOUS else "",
                caller.key_id,
                client[0] if client else "",
                request_id.get(),
                path_params,
                status,
                result,
                (time.perf_counter() - exchange.began) * 1000,
                request_context.notes,
            ),
            request_context.secrets,
        )


def _stays() -> bool:
    return False


class _OpenRequests:
    """The requests that are being served, and so the connections that are in use, by tenant.

    One tenant alone may use four fifths of the connections, two tenants four ninths each, and so on: whoever comes
    later finds some left.
    """

    def __init__(self) -> None:
        self._share: FairShare | None = None

    def enter(self, tenant: str, scope: Scope) -> None:
        if self._share is None:
            self._share = FairShare(scope.get("state", _NONE).get(MAX_CONNECTIONS) or math.inf, of_rest=SHARE)
        if not self._share.try_take(tenant):
            held = self._share.held(tenant)
            raise RateLimited(
                f"{held} requests of this tenant are being served: its share of the server's connections",
                remedy="wait for answers, and close streams and WebSockets that are not needed",
                retry_after_s=1,
            )

    def leave(self, tenant: str) -> None:
        assert self._share is not None
        self._share.give_back(tenant)


class _Exchange:
    """The messages of one request and its response: counts their bytes, remembers the status.

    With `spend_bytes` each piece of the response is paid for before it is sent, and the head waits for the first piece:
    a response that the caller's quota does not allow must not have begun.
    """

    __slots__ = (
        *("_checked", "_head", "_is_events", "_receive", "_send", "began", "bytes_in", "bytes_out", "check_again"),
        *("cut_off_by", "is_in_vain", "spend_bytes", "standing", "status"),
    )

    def __init__(self, send: Send, receive: Receive) -> None:
        self._send, self._receive = send, receive
        self._head: Message | None = None
        self._is_events = False
        self.cut_off_by: Unauthorized | None = None
        self.is_in_vain: Callable[[], bool] = _stays
        self.began = self._checked = time.perf_counter()
        self.check_again: Callable[[], Awaitable[None]] | None = None
        self.bytes_in = self.bytes_out = self.status = 0
        self.standing: Standing | None = None
        self.spend_bytes: Callable[[int], Awaitable[None]] | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        size = len(message.get("body") or message.get("bytes") or message.get("text") or b"")
        if self.bytes_in:
            await self._check_if_due()
        self.bytes_in += size
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            if self.is_in_vain():
                raise ClientDisconnected
            self.status = message["status"]
            self._is_events = (b"content-type", _EVENTS) in message.get("headers", ())
            if self.standing is not None:
                message["headers"] = [*message.get("headers", ()), *self.standing.headers()]
            if self.spend_bytes is not None:
                self._head = message
                return
        elif kind == "websocket.accept":
            self.status = SWITCHING_PROTOCOLS
        size = len(message.get("body") or message.get("bytes") or message.get("text") or b"")
        if size and self.bytes_out:
            try:
                await self._check_if_due()
            except Unauthorized as exc:
                await self._end_events(exc)
                raise
        if size and self.spend_bytes is not None:
            await self.spend_bytes(size)
        if self._head is not None:
            head, self._head = self._head, None
            await self._send(head)
        self.bytes_out += size
        await self._send(message)

    async def _check_if_due(self) -> None:
        """Raises Unauthorized if the caller is no longer let in. If that cannot be told the request goes on."""
        now = time.perf_counter()
        if self.check_again is None or now - self._checked < CHECK_S:
            return
        self._checked = now
        try:
            await self.check_again()
        except Unauthorized:
            raise
        except WarrenError:
            return

    async def _end_events(self, exc: Unauthorized) -> None:
        """A stream of events has an end that says why; whatever else is cut off stays visibly incomplete."""
        if not self._is_events:
            return
        self.cut_off_by = exc
        frame = f"event: error\ndata: {json.dumps(error_values(exc))}\n\n".encode()
        await self._send({"type": "http.response.body", "body": frame, "more_body": False})
        raise ClientDisconnected from exc

    async def send_free(self, message: Message) -> None:
        """Sends the response that refuses a request, at no cost to the caller."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    @property
    def begun(self) -> bool:
        return self.status != 0 and self._head is None


async def _answer_rate_limited(exc: BaseException, scope: Scope, receive: Receive, exchange: _Exchange) -> bool:
    """Answers a request that was one too many, with headers that tell the limit. HttpGuard answers other errors."""
    standing = standing_of(exc) if isinstance(exc, Exception) else None
    if standing is None or not isinstance(exc, RateLimited) or scope["type"] != "http" or exchange.begun:
        return False
    response = problem(exc)
    response.raw_headers.extend(standing.headers())
    await response(scope, receive, exchange.send_free)
    return True


def _status(exchange: _Exchange, error: BaseException | None) -> int:
    if isinstance(error, WarrenError) and not exchange.begun:
        return error.http_status
    if exchange.status:
        return exchange.status
    return CALLER_LEFT if error is None or is_disconnect(error) else 500


def _result(status: int, error: BaseException | None) -> str:
    if isinstance(error, WarrenError):
        return error.code
    if status == CALLER_LEFT:
        return "left"
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


def _action(scope: Scope) -> str:
    """The name of the operation; the method for a request that reached no route."""
    route = scope.get("route")
    name = operation_id(route) if isinstance(route, APIRoute) else getattr(route, "name", None)
    return str(name or scope.get("method", "websocket").lower())
