"""Who may come in, how often, and what is written down about it.

Every request but those for OPEN paths must be somebody's: the door finds out whose, counts it, and hands it on
with the caller in `scope["caller"]`; whether the caller may use a route is the route's own decision (context.py). When
the request is over, what was done is recorded, however it ended.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warren.clock import Clock
from warren.http.openapi import operation_id
from warren.http.problems import is_disconnect, problem
from warren.http.server.http_guard import request_id
from warren.interfaces.audit import AuditLog
from warren.model.access import Caller
from warren.model.audit import AuditEntry
from warren.model.errors import RateLimited, Unauthorized, WarrenError
from warren.model.usage import Usage
from warren.sessions.request_context import RequestContext, set_request_context
from warren.tenancy.identity import Identity
from warren.tenancy.quotas import Quotas, Standing, standing_of

OPEN: Final = frozenset({"/health", "/ready", "/version", "/docs", "/openapi.json"})
NOBODY: Final = Caller(scopes=frozenset())
BYTES_OUT: Final = "bytes_out"
REFUSED_A_MINUTE: Final = 60
_SWITCHED: Final = 101
_BY_CALLER: Final = 499  # no status was sent: the caller went away first


@dataclass(frozen=True, slots=True)
class Books:
    """Where it is written down: the audit record, and the usage of tenants."""

    audit: AuditLog | None = None
    usage: Callable[[str, Usage], None] = lambda tenant, usage: None


class Admission:
    """Without `counts` a request costs the caller nothing: it was counted at another door."""

    def __init__(
        self, app: ASGIApp, identity: Identity, quotas: Quotas, clock: Clock, books: Books, *, counts: bool = True
    ) -> None:
        self._app = app
        self._identity = identity
        self._quotas = quotas
        self._clock = clock
        self._books = books
        self._counts = counts
        self._refused = _Refused()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif scope["path"] in OPEN and scope["type"] == "http":
            scope["caller"] = NOBODY
            await self._app(scope, receive, send)
        else:
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = _Visit(send, receive)
        try:
            caller = await self._identity.caller(scope["headers"])
        except Unauthorized as exc:
            if self._refused.is_told("", self._clock.now()):
                self._record(scope, visit, RequestContext(NOBODY), exc)
            raise
        request_context = RequestContext(caller)
        set_request_context(request_context)
        scope["caller"] = caller
        failed: BaseException | None = None
        admitted = False
        try:
            if self._counts:
                await self._count(caller, scope, visit)
            admitted = True
            await self._app(scope, visit.receive, visit.send)
        except BaseException as exc:
            failed = exc
            if not await _told_limit(exc, scope, receive, visit):
                raise
        finally:
            if admitted or self._refused.is_told(caller.tenant, self._clock.now()):
                self._record(scope, visit, request_context, failed)

    async def _count(self, caller: Caller, scope: Scope, visit: "_Visit") -> None:
        visit.standing = await self._quotas.request(caller)
        # Who has used up its bytes must still be able to end what it has.
        if scope.get("method") != "DELETE" and self._quotas.bounds(caller, BYTES_OUT):
            self._quotas.check_left(caller, BYTES_OUT)
            visit.pay = self._paying(caller)

    def _paying(self, caller: Caller) -> Any:
        async def pay(amount: int) -> None:
            if not await self._quotas.spend(caller, BYTES_OUT, amount):
                raise self._quotas.spent(caller, BYTES_OUT)

        return pay

    def _record(
        self, scope: Scope, visit: "_Visit", request_context: RequestContext, failed: BaseException | None
    ) -> None:
        caller = request_context.caller
        if caller is not NOBODY:
            self._books.usage(caller.tenant, Usage(bytes_in=visit.bytes_in, bytes_out=visit.bytes_out))
        if self._books.audit is None or scope.get("forwarded"):  # then the worker writes it down, who knows more
            return
        status, named = _status(visit, failed), scope.get("path_params", {})
        notes = dict(request_context.notes)
        if "process_id" in named:
            notes.setdefault("process_id", named["process_id"])
        entry = AuditEntry(
            self._clock.wall(),
            _action(scope),
            caller.tenant if caller is not NOBODY else "",
            caller.key_id,
            scope["client"][0] if scope.get("client") else "",
            request_id.get(),
            str(notes.pop("session_id", "") or named.get("session_id", "")),
            status,
            str(notes.pop("error", "")) or _result(status, failed),
            (time.perf_counter() - visit.began) * 1000,
            notes,
        )
        self._books.audit.record(entry, request_context.secrets)


class _Refused:
    """Of the requests that are refused at the door only so many a minute are recorded, of strangers (who have no
    name) and of each tenant: else anybody could push everything else out of the record."""

    def __init__(self) -> None:
        self._since = 0.0
        self._counts: Counter[str] = Counter()

    def is_told(self, whose: str, now: float) -> bool:
        if now - self._since >= 60:
            self._since = now
            self._counts.clear()
        self._counts[whose] += 1
        return self._counts[whose] <= REFUSED_A_MINUTE


class _Visit:
    """One request on its way through: what was sent, how much of it."""

    __slots__ = ("_held", "_receive", "_send", "began", "bytes_in", "bytes_out", "pay", "standing", "status")

    def __init__(self, send: Send, receive: Receive) -> None:
        self._send, self._receive = send, receive
        self._held: Message | None = None
        self.began = time.perf_counter()
        self.bytes_in = self.bytes_out = self.status = 0
        self.standing: Standing | None = None
        self.pay: Any = None

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes_in += len(message.get("body") or message.get("bytes") or message.get("text") or b"")
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self.status = message["status"]
            if self.standing is not None:
                message["headers"] = [*message.get("headers", ()), *self.standing.headers()]
            if self.pay is not None:
                self._held = message  # an answer that cannot be paid for should not have begun
                return
        elif kind == "websocket.accept":
            self.status = _SWITCHED
        await self._send_paid(message)

    async def _send_paid(self, message: Message) -> None:
        size = len(message.get("body") or message.get("bytes") or message.get("text") or b"")
        if size and self.pay is not None:
            await self.pay(size)
        if self._held is not None:
            held, self._held = self._held, None
            await self._send(held)
        self.bytes_out += size
        await self._send(message)

    async def send_anyway(self, message: Message) -> None:
        """What says that there is nothing left costs nothing."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    @property
    def begun(self) -> bool:
        return self.status != 0 and self._held is None


async def _told_limit(exc: BaseException, scope: Scope, receive: Receive, visit: _Visit) -> bool:
    """Answers a request that was one too many, with how the caller stands; others are answered further out."""
    standing = standing_of(exc) if isinstance(exc, Exception) else None
    if standing is None or not isinstance(exc, RateLimited) or scope["type"] != "http" or visit.begun:
        return False
    response = problem(exc)
    response.raw_headers.extend(standing.headers())
    await response(scope, receive, visit.send_anyway)
    return True


def _status(visit: _Visit, failed: BaseException | None) -> int:
    if isinstance(failed, WarrenError) and not visit.begun:
        return failed.http_status
    if visit.status:
        return visit.status
    return _BY_CALLER if failed is None or is_disconnect(failed) else 500


def _result(status: int, failed: BaseException | None) -> str:
    if isinstance(failed, WarrenError):
        return failed.code
    if status == _BY_CALLER:
        return "left"
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


def _action(scope: Scope) -> str:
    """The name of the operation; what never came to a route is called after its method."""
    route = scope.get("route")
    name = operation_id(route) if isinstance(route, APIRoute) else getattr(route, "name", None)
    return str(scope.get("action") or name or scope.get("method", "websocket").lower())
