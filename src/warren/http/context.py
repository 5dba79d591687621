"""What every route has at hand: the use cases, the limits, who is asking."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Security
from fastapi.security import SecurityScopes
from starlette.requests import HTTPConnection
from starlette.responses import Response

from warren.http.problems import StrictRoute
from warren.interfaces.cluster import ClusterControl
from warren.model.access import Caller, Scope
from warren.model.errors import Forbidden, Unavailable
from warren.sessions.operations.call import OperationContext
from warren.tenancy.identity import Identity
from warren.tenancy.tenancy import Tenancy

JSON: Final = "application/json"


def new_router(prefix: str = "", tags: Sequence[str] = ()) -> APIRouter:
    return APIRouter(prefix=prefix, tags=list(tags), route_class=StrictRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(OperationContext):
    """`identity` says who may come in; `with_key` that something must be shown for it. `cluster` is what a coordinator
    has beside its sessions."""

    tenancy: Tenancy
    identity: Identity
    worker_id: str
    version: str
    with_key: bool = True
    cluster: ClusterControl | None = None


async def _context(connection: HTTPConnection) -> Context:
    context: Context = connection.app.state.context
    return context


def check_scope(caller: Caller, scope: Scope) -> None:
    if not caller.may(scope):
        raise Forbidden(f"this key may not do that: it lacks the scope {scope}", remedy="use a key that has it")


async def tenant_of(connection: HTTPConnection, needed: SecurityScopes) -> str:
    """Whose request it is. Every route takes one of the kinds below; that is its decision about who may use it."""
    caller: Caller = connection.scope["caller"]
    for name in needed.scopes:
        check_scope(caller, Scope(name))
    return caller.tenant


Ctx = Annotated[Context, Depends(_context)]
Anyone = Annotated[str, Security(tenant_of, scopes=[])]
Reader = Annotated[str, Security(tenant_of, scopes=[Scope.READ])]
Runner = Annotated[str, Security(tenant_of, scopes=[Scope.EXEC])]
SessionUser = Annotated[str, Security(tenant_of, scopes=[Scope.SESSIONS])]
Admin = Annotated[str, Security(tenant_of, scopes=[Scope.ADMIN])]


def answer(values: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON. Bytes that were no text are in it as lone surrogates, which only escapes can carry."""
    return Response(json.dumps(values), status, headers, JSON)


async def pool_size(context: Context) -> int:
    """Sandboxes that are ready to be handed out."""
    if context.cluster is not None:
        return context.cluster.pool_size()
    workers = context.sessions.lifecycle.workers.values()
    return sum(pool["ready"] for worker in workers for pool in worker.stats()["pools"].values())


async def active_sessions(context: Context) -> int:
    try:
        counts = await context.sessions.store.count()
    except Unavailable:
        if context.cluster is None:
            raise
        return context.cluster.claimed()
    return sum(number for state, number in counts.items() if state.is_usable)
