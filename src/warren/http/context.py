"""What every route needs: the context of the server, the caller and its scopes, JSON answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import APIRouter, Depends, Security
from fastapi.security import SecurityScopes
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from warren.access.identity import BindingIdentity, Identity
from warren.access.page_sessions import PageSessions
from warren.access.tickets import Tickets
from warren.governance.tenancy import Tenancy
from warren.http.problems import StrictRoute
from warren.http.request import caller_of
from warren.http.server.connections import BODY_IS_NEXT
from warren.http.server.http_guard import StreamedAnswer
from warren.kernel.answer_memory import AnswerMemory
from warren.model.access import Caller, Scope
from warren.model.errors import Forbidden, Unavailable
from warren.model.session import Session
from warren.sessions.long_values import ENCODER, HasLongValues, json_pieces
from warren.sessions.operations.call import OperationContext

if TYPE_CHECKING:
    from warren.governance.metrics.process_metrics import MetricsPage


def new_router(prefix: str = "", tags: Sequence[str] = ()) -> APIRouter:
    return APIRouter(prefix=prefix, tags=list(tags), route_class=StrictRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(OperationContext):
    """`identity` identifies callers; `with_key` tells whether they need a key or a token. `answer_memory` bounds what
    long answers hold until they are read. `metrics` None: there are none. Only a server with a dashboard has
    `page_sessions` and `tickets`, and its identity is a BindingIdentity. `own_sessions` are those of a worker in
    a cluster, whose store has those of others too."""

    tenancy: Tenancy
    identity: Identity
    worker_id: str
    version: str
    with_key: bool = True
    answer_memory: AnswerMemory = field(default_factory=AnswerMemory)
    metrics: "MetricsPage | None" = None
    page_sessions: PageSessions | None = None
    tickets: Tickets | None = None
    own_sessions: Callable[[], Iterable[Session]] | None = None

    @property
    def pages_identity(self) -> BindingIdentity:
        return cast(BindingIdentity, self.identity)


async def _context(connection: HTTPConnection) -> Context:
    context: Context = connection.app.state.context
    return context


def check_scope(caller: Caller, scope: Scope | None) -> None:
    """Raises Forbidden if the caller lacks the scope; None: everybody may."""
    if scope is not None and not caller.may(scope):
        raise Forbidden(f"this key may not do that: it lacks the scope {scope}", remedy="use a key that has it")


async def tenant_of(connection: HTTPConnection, needed: SecurityScopes) -> str:
    """The caller's tenant, if the caller has the scopes. Every route takes one of the types below as a parameter."""
    caller = caller_of(connection)
    for name in needed.scopes:
        check_scope(caller, Scope(name))
    return caller.tenant


Ctx = Annotated[Context, Depends(_context)]
Anyone = Annotated[str, Security(tenant_of, scopes=[])]
Reader = Annotated[str, Security(tenant_of, scopes=[Scope.READ])]
Runner = Annotated[str, Security(tenant_of, scopes=[Scope.EXEC])]
SessionUser = Annotated[str, Security(tenant_of, scopes=[Scope.SESSIONS])]
Auditor = Annotated[str, Security(tenant_of, scopes=[Scope.AUDIT])]
Scraper = Annotated[str, Security(tenant_of, scopes=[Scope.METRICS])]
Admin = Annotated[str, Security(tenant_of, scopes=[Scope.ADMIN])]


class JsonAnswer(Response):
    """A JSON answer, for nearly every request: it sends what Starlette's class would, with less work."""

    def __init__(self, values: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.status_code = status
        self.background = None
        self.body = f"{ENCODER.encode(values)}\n".encode()
        self.raw_headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", b"application/json")]
        for name, value in (headers or {}).items():
            self.raw_headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        start[BODY_IS_NEXT] = True
        await send(start)
        await send({"type": "http.response.body", "body": self.body})


def answer_json(values: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer, which is made while it is sent if it has long values."""
    try:
        return JsonAnswer(values, status, headers)
    except HasLongValues:
        return StreamedAnswer(json_pieces(values), status, headers, "application/json")


async def pool_size(context: Context) -> int:
    """The number of sandboxes that are ready in the pools."""
    if context.cluster is not None:
        return context.cluster.pool_size()
    worker = context.sessions.worker
    return 0 if worker is None else sum(pool.ready for pool in worker.stats().pools.values())


async def active_sessions(context: Context) -> int:
    """The number of sessions that can be used: of a worker in a cluster its own, of all others every one."""
    if context.own_sessions is not None:
        return sum(session.state.is_usable for session in context.own_sessions())
    try:
        counts = await context.sessions.store.count()
    except Unavailable:
        if context.cluster is None:
            raise
        return context.cluster.claimed()
    return sum(number for state, number in counts.items() if state.is_usable)
