"""Admits requests: counts them against the caller's quotas, and records what became of them.

Whoever asks is known by then (http/identify.py); the route decides whether this caller may use it. While a stream, an
upload or a WebSocket goes on, admission looks at the credentials again: whoever lost them loses it. When the request is
over, whether it succeeded or not, admission adds it to the tenant's usage and to the audit log.
"""

import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fastapi.routing import APIRoute
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from warren.access.keys import looks_like_key
from warren.governance.audit.page_reads import PageReads
from warren.governance.audit.refusals import RefusalLimit
from warren.governance.quotas import Quotas, Standing, standing_of
from warren.http.event_streams import EVENT_STREAM, error_values
from warren.http.openapi import operation_id
from warren.http.preview_credentials import clean_request
from warren.http.problems import is_disconnect, problem
from warren.http.request import ANONYMOUS, Kind, Request, Stage
from warren.http.server.http_guard import CALLER_LEFT, MAX_CONNECTIONS, SWITCHING_PROTOCOLS
from warren.interfaces.audit import AuditLog
from warren.kernel.answer_memory import AnswerMemory, AnswerRoom, set_answer_room
from warren.kernel.clock import Clock
from warren.kernel.fair_share import FairShare
from warren.kernel.tracing import current_span
from warren.model.access import Caller
from warren.model.audit import RequestRecord
from warren.model.errors import RateLimited, Unauthorized, WarrenError
from warren.sessions.request_context import RequestContext, set_request_context

BYTES_OUT: Final = "bytes_out"
CHECK_S: Final = 2.0
SHARE: Final = 4  # a tenant may use four times as many connections as it leaves free
_NONE: Final[Mapping[str, Any]] = {}
_EVENTS: Final = f"{EVENT_STREAM}; charset=utf-8".encode()


class Admission:
    """With `counts` False a request costs the caller nothing: a coordinator has counted it already. `memory` is what
    the answers of all requests may hold. `is_credential` is that of Identity.

    When a request is over `add_usage` gets its tenant, its bytes in and out, and `audit` everything that is known of
    it; each may be None. `refusals` decides which of the refused requests get an audit entry of their own, and counts
    the others; `page_reads` decides it for requests of open pages.
    """

    def __init__(
        self,
        quotas: Quotas,
        clock: Clock,
        *,
        audit: AuditLog | None = None,
        refusals: RefusalLimit | None = None,
        page_reads: PageReads | None = None,
        add_usage: Callable[[str, int, int], None] | None = None,
        counts: bool = True,
        memory: AnswerMemory | None = None,
        is_credential: Callable[[str], bool] = looks_like_key,
    ) -> None:
        self._quotas = quotas
        self._clock = clock
        self._audit = audit
        self._add_usage = add_usage
        self._counts = counts
        self._refusals = refusals
        self._page_reads = page_reads
        self._memory = memory or AnswerMemory()
        self._is_credential = is_credential
        self._open = _OpenRequests()

    def record_unidentified(self, request: Request, receive: Receive, send: Send, exc: Unauthorized) -> None:
        """Records a request of nobody who may send one."""
        if self._refusals is None or self._refusals.may_record(""):
            self._record(request, _CountedExchange(send, receive), RequestContext(ANONYMOUS), exc)

    async def admit(self, request: Request, receive: Receive, send: Send, serve: Stage) -> None:
        """Lets `serve` answer the request of a caller that has not used up what it may. Raises RateLimited, and what
        the answering raises."""
        caller, exchange = request.caller, _CountedExchange(send, receive)
        exchange.check_again = request.check_again
        if request.preview is not None:
            request.set_headers(clean_request(request.scope["headers"], request.preview, self._is_credential))
        request_context = RequestContext(caller)
        set_request_context(request_context)
        has_left = request.has_left
        exchange.is_in_vain = lambda: request_context.if_undelivered is not None and has_left()
        room = AnswerRoom(self._memory, caller.tenant)
        set_answer_room(room)
        error: BaseException | None = None
        admitted = entered = False
        try:
            self._open.enter(caller.tenant, request.scope)
            entered = True
            if self._counts:
                # Who looks at a preview by a link does not use up the requests of its owner.
                if request.kind is not Kind.PREVIEW or request.known is None:
                    exchange.standing = await self._quotas.request(caller)
                # A caller that has used up its bytes must still be able to end its sessions.
                if request.scope.get("method") != "DELETE" and self._quotas.bounds(caller, BYTES_OUT):
                    self._quotas.check_left(caller, BYTES_OUT)
                    exchange.spend_bytes = self._byte_spender(caller)
            admitted = True
            await serve(request, exchange.receive, exchange.send)
        except BaseException as exc:
            error = exchange.cut_off_by or exc
            if request_context.if_undelivered is not None:
                request_context.if_undelivered()
            if not await _answer_rate_limited(exc, request.scope, receive, exchange):
                raise
        finally:
            room.release()
            if entered:
                self._open.leave(caller.tenant)
            if admitted or self._refusals is None or self._refusals.may_record(caller.tenant):
                self._record(request, exchange, request_context, error)

    def _byte_spender(self, caller: Caller) -> Callable[[int], Awaitable[None]]:
        async def spend(amount: int) -> None:
            if not await self._quotas.spend(caller, BYTES_OUT, amount):
                raise self._quotas.spent(caller, BYTES_OUT)

        return spend

    def _record(
        self,
        request: Request,
        exchange: "_CountedExchange",
        request_context: RequestContext,
        error: BaseException | None,
    ) -> None:
        caller = request_context.caller
        if self._add_usage is not None and caller is not ANONYMOUS:
            self._add_usage(caller.tenant, exchange.bytes_in, exchange.bytes_out)
        if self._audit is None or request.forwarded:  # the worker records what it was forwarded, and knows more
            return
        status = exchange.status if error is None and exchange.status else _status(exchange, error)
        result = "ok" if error is None and status < 400 else _result(status, error)
        notes = request_context.notes
        if request.action:
            action, params = request.action, request.params
        else:
            named = request.params if request.kind is Kind.E2B else _NONE
            action, params = _action(request.scope), request.scope.get("path_params", named)
        if request.page_mark and self._page_reads is not None and result == "ok":
            session_id = str(notes.get("session_id") or params.get("session_id", ""))
            if "error" not in notes and not self._page_reads.may_record(request.page_mark, action, session_id):
                return
        if (span := current_span.get()) is not None:
            notes["trace"] = span.context.trace_id
        # The writer's thread makes the entry; here, on the event loop, every microsecond counts for each request.
        client = request.scope.get("client")
        self._audit.record(
            RequestRecord(
                self._clock.wall(),
                action,
                caller.tenant if caller is not ANONYMOUS else "",
                caller.key_id,
                client[0] if client else "",
                request.id,
                params,
                status,
                result,
                (time.perf_counter() - exchange.began) * 1000,
                notes,
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


class _CountedExchange:
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


async def _answer_rate_limited(exc: BaseException, scope: Scope, receive: Receive, exchange: _CountedExchange) -> bool:
    """Answers a request that was one too many, with headers that tell the limit. HttpGuard answers other errors."""
    standing = standing_of(exc) if isinstance(exc, Exception) else None
    if standing is None or not isinstance(exc, RateLimited) or scope["type"] != "http" or exchange.begun:
        return False
    response = problem(exc)
    response.raw_headers.extend(standing.headers())
    await response(scope, receive, exchange.send_free)
    return True


def _status(exchange: _CountedExchange, error: BaseException | None) -> int:
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
