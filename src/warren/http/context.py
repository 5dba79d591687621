"""What every route has at hand: the use cases, the limits, who is asking."""

import base64
import binascii
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Security
from fastapi.security import SecurityScopes
from starlette.requests import HTTPConnection
from starlette.responses import Response

from warren.http.problems import StrictRoute
from warren.interfaces.cluster import ClusterControl
from warren.model.access import Caller, Scope
from warren.model.errors import Forbidden, InvalidRequest, Unavailable
from warren.model.session import SessionState
from warren.sessions.manager import Sessions
from warren.tenancy.identity import Identity
from warren.tenancy.tenancy import Tenancy

JSON: Final = "application/json"


def new_router(prefix: str = "", tags: Sequence[str] = ()) -> APIRouter:
    return APIRouter(prefix=prefix, tags=list(tags), route_class=StrictRoute)


@dataclass(frozen=True, slots=True)
class Context:
    """`identity` says who may come in; `with_key` that something must be shown for it. `labels` are what can be asked
    for of this worker; `cluster` is what a coordinator has beside its sessions."""

    sessions: Sessions
    tenancy: Tenancy
    identity: Identity
    provider: str
    worker_id: str
    version: str
    command_timeout_s: float = 120.0
    max_command_timeout_s: float = 86400.0
    keepalive_s: float = 15.0
    with_key: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
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
FileUser = Annotated[str, Security(tenant_of, scopes=[Scope.FILES])]
SessionUser = Annotated[str, Security(tenant_of, scopes=[Scope.SESSIONS])]
Admin = Annotated[str, Security(tenant_of, scopes=[Scope.ADMIN])]
SessionId = Annotated[str, Path(description="The session's id, as creating it gave it")]
ProcessId = Annotated[str, Path(description="The process's id, as starting it gave it")]
Encoding = Annotated[
    Literal["text", "base64"],
    Query(description="How output is written: `text` replaces what is not UTF-8, `base64` gives every byte"),
]
Accept = Annotated[str, Header(description="`text/event-stream` asks for a stream", examples=["text/event-stream"])]
IdempotencyKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        description="The same key with the same request gives the same answer, also after a restart of the server",
        max_length=255,
    ),
]


def answer(values: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON. Bytes that were no text are in it as lone surrogates, which only escapes can carry."""
    return Response(json.dumps(values), status, headers, JSON)


def query(connection: HTTPConnection, name: str, default: str = "") -> str:
    """A parameter as it was sent: names of files need not be UTF-8."""
    raw: str = connection.scope["query_string"].decode("latin-1")
    values = dict(urllib.parse.parse_qsl(raw, keep_blank_values=True, errors="surrogateescape"))
    return values.get(name, default)


def data_of(text: str, encoded: str) -> bytes:
    if text and encoded:
        raise InvalidRequest("the data came twice, as text and as base64", remedy="give one of them")
    try:
        return base64.b64decode(encoded, validate=True) if encoded else text.encode(errors="surrogateescape")
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"this is not base64: {exc}") from exc


def limited_timeout(context: Context, timeout_s: float | None) -> float:
    timeout_s = context.command_timeout_s if timeout_s is None else timeout_s
    if timeout_s > context.max_command_timeout_s:
        raise InvalidRequest(
            f"a time-out of {timeout_s:g} s is too long: at most {context.max_command_timeout_s:g} s",
            remedy="start it in the background: POST /api/sessions/{id}/processes",
        )
    return timeout_s


async def pool_size(context: Context) -> int:
    """Sandboxes that are ready to be handed out."""
    if context.cluster is not None:
        return context.cluster.pool_size()
    workers = context.sessions.lifecycle.workers.values()
    return sum(pool.ready for worker in workers for pool in worker.stats().pools.values())


async def active_sessions(context: Context) -> int:
    try:
        counts = await context.sessions.store.count()
    except Unavailable:
        if context.cluster is None:
            raise
        return context.cluster.claimed()
    return counts.get(SessionState.RUNNING, 0) + counts.get(SessionState.CREATING, 0)
