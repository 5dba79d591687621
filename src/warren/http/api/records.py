"""/api/audit and /api/usage: what was done, and what was used; /api/admin/audit and /api/admin/usage of all tenants.

Without admin or audit a caller sees the records of its own tenant, and nothing in the request can name another.
"""

import asyncio
import re
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from typing import Annotated, Any, Final, Literal
from weakref import WeakValueDictionary

from fastapi import Depends, Header, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warren.governance.quota_use import QuotaReader
from warren.governance.usage import as_csv, day_of, row_view
from warren.http.context import Admin, Auditor, Context, Ctx, JsonAnswer, Reader, answer_json, new_router
from warren.http.request import caller_of
from warren.interfaces import audit
from warren.kernel.answer_memory import require_room
from warren.model.access import Caller, check_tenant
from warren.model.audit import AuditEntry
from warren.model.errors import InvalidRequest, NotFound
from warren.model.usage import NO_USAGE
from warren.sessions.long_values import LongList
from warren.sessions.schemas import timestamp

CSV: Final = "text/csv"
_NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_FEW: Final = 100  # an answer with more entries is made while it is sent
_ENTRY_BYTES: Final = 4096  # of memory, for an entry
_searching: Final = WeakValueDictionary[str, asyncio.Lock]()
"""A lock for each tenant: one thread searches the record, and of each tenant only one search waits for it."""
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

router = new_router(prefix="/api", tags=["records"])

OfTenant = Annotated[str, Query(alias="tenant", description="Only those of this tenant; else of all", max_length=64)]
_A_DAY: Final[dict[str, Any]] = {"json_schema_extra": {"format": "date"}, "examples": ["2026-01-31"]}


class DeedView(BaseModel):
    at: str = Field(description="When it was over")
    action: str = Field(description="The operation, or the kind of event", examples=["run_command"])
    tenant: str = Field(description="Empty: of none, such as a request with a wrong key")
    key_id: str
    client: str = Field(description="The address it came from")
    request_id: str
    session_id: str
    status: int = Field(description="The HTTP status; 0: it was no request")
    result: str = Field(
        description="`ok`, `refused`, `failed`, `left` (by the caller, before the end), or the code of an error",
        examples=["ok"],
    )
    duration_ms: float
    detail: dict[str, Any] = Field(description="What else is known of it, without secrets")


class DeedPage(BaseModel):
    deeds: list[DeedView]
    next: str | None = Field(description="`after` of the next page; null: there is nothing older")


class UsageFigures(BaseModel):
    sessions: int = Field(description="Sessions that were created")
    commands: int = Field(description="Commands that have ended")
    cpu_s: float = Field(description="Processor time of commands")
    memory_mb_s: float = Field(description="Memory that was set aside, times the seconds it was")
    session_s: float = Field(description="Time that ended sessions lived")
    exec_s: float = Field(description="Time that commands ran")
    bytes_in: int = Field(description="Bytes of requests")
    bytes_out: int = Field(description="Bytes of answers")
    egress_bytes: int = Field(description="Bytes that sandboxes sent and received over their networks")
    egress_connections: int = Field(description="Connections of sandboxes that were allowed")
    egress_refused: int = Field(description="Connections and look-ups of sandboxes that were refused")


class UsageRow(UsageFigures):
    day: str = Field(description="UTC", examples=["2026-01-31"])
    tenant: str


class UsageTable(BaseModel):
    first: str
    last: str
    usage: list[UsageRow] = Field(description="By day, then by tenant; where nothing was used there is no row")
    total: UsageFigures
    artifact_bytes: int = Field(description="What artifacts take now, whatever the days; not in a table")
    snapshot_bytes: int = Field(description="What snapshots take now")
    volumes_mb: int = Field(description="The sizes of all volumes now, whatever the days; not in a table")


class QuotaView(BaseModel):
    name: str = Field(description="The quota, as in what is set for a tenant", examples=["sessions"])
    of: str = Field(description="`tenant` or `key`")
    per: str = Field(description="`now`: held at once; `minute`, `day`")
    bound: int | None = Field(description="Null: there is none")
    used: int | None = Field(description="Null: not counted; requests and creates are only where they are bounded")


class QuotaTable(BaseModel):
    tenant: str
    key_id: str
    day_ends_at: str = Field(description="When quotas of the day start anew")
    quotas: list[QuotaView] = Field(description="All of the tenant; of the key those that bound it")


def _filters(
    since: Annotated[str, Query(description="From then on: ISO 8601 or Unix seconds", examples=["2026-01-31"])] = "",
    until: Annotated[str, Query(description="Before then: ISO 8601 or Unix seconds", examples=["1800000000"])] = "",
    session_id: Annotated[str, Query(description="Only what was done with this session", max_length=256)] = "",
    key_id: Annotated[str, Query(description="Only what was done with this key", max_length=256)] = "",
    action: Annotated[str, Query(description="Only this action", max_length=256, examples=["run_command"])] = "",
    after: Annotated[str, Query(description="`next` of the page before", max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=audit.MAX_ON_PAGE, description="So many at most")] = 100,
) -> audit.Query:
    """Returns the filters without the tenant, which the route adds."""
    return audit.Query("", read_moment(since), read_moment(until), session_id, key_id, action, limit, after)


@dataclass(frozen=True, slots=True)
class _Span:
    """The first and the last day as the caller gave them; `csv`: the answer is a table."""

    first: str | None
    last: str | None
    csv: bool


def _span(
    first: Annotated[str | None, Query(description="The first day; if not given, the month's first", **_A_DAY)] = None,
    last: Annotated[str | None, Query(description="The last day; if not given, today. Days are UTC", **_A_DAY)] = None,
    format: Annotated[Literal["json", "csv"] | None, Query(description="Instead of `Accept`")] = None,
    accept: Annotated[str, Header(description="`text/csv` asks for a table", examples=[CSV])] = "",
) -> _Span:
    return _Span(first, last, format == "csv" or (format is None and CSV in accept.lower()))


Filters = Annotated[audit.Query, Depends(_filters)]
Span = Annotated[_Span, Depends(_span)]
_AS_TABLE: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {CSV: {"schema": {"type": "string"}}}}}


@router.get("/audit", response_model=DeedPage, summary="What was done in the name of your tenant")
async def read_audit(context: Ctx, tenant: Reader, filters: Filters) -> Response:
    """Newest first. A page may have fewer deeds than asked for, or none, and still have a `next`."""
    return await _find_entries(context, tenant, filters)


@router.get("/admin/audit", response_model=DeedPage, summary="What was done, by all tenants or one")
async def read_all_audit(context: Ctx, tenant: Auditor, filters: Filters, of: OfTenant = "") -> Response:
    """As `/api/audit`; also what belongs to no tenant, such as requests with a wrong key."""
    return await _find_entries(context, of or None, filters)


@router.get("/usage", response_model=UsageTable, responses=_AS_TABLE, summary="What your tenant used, by day")
async def read_usage(context: Ctx, tenant: Reader, span: Span) -> Response:
    """The whole life of a session counts on the day it ends. As JSON, or as CSV if that is asked for."""
    return await _read_usage(context, tenant, span)


@router.get("/admin/usage", response_model=UsageTable, responses=_AS_TABLE, summary="What all tenants used, by day")
async def read_all_usage(context: Ctx, tenant: Auditor, span: Span, of: OfTenant = "") -> Response:
    """As `/api/usage`."""
    return await _read_usage(context, of or None, span)


@router.get("/quotas", response_model=QuotaTable, summary="What your quotas allow, and how much is used")
async def read_quotas(request: Request, context: Ctx, tenant: Reader) -> Response:
    return await _read_quotas(context, caller_of(request))


@router.get("/admin/quotas", response_model=QuotaTable, summary="The quotas of a tenant, and how much is used")
async def read_all_quotas(
    context: Ctx, tenant: Admin, of: Annotated[str, Query(description="The tenant", max_length=64)]
) -> Response:
    quota = (await context.tenancy.tenants.of(check_tenant(of))).quota
    return await _read_quotas(context, Caller(of, quota=quota))


async def _read_quotas(context: Context, caller: Caller) -> Response:
    async def artifact_bytes(tenant: str) -> int:
        return await context.artifacts.records.used_bytes(tenant) if context.artifacts else 0

    async def snapshot_bytes(tenant: str) -> int:
        return await context.snapshots.records.used_bytes(tenant) if context.snapshots else 0

    async def log_bytes(tenant: str) -> int:
        return await context.logs.used_bytes(tenant) if context.logs else 0

    async def volumes_used(tenant: str) -> dict[str, int]:
        return (await context.sessions.lifecycle.volumes.records.used(tenant))._asdict()

    quotas = context.tenancy.metering.quotas
    spent_today = context.tenancy.spent_today
    reader = QuotaReader(
        context.sessions.store, quotas, spent_today, artifact_bytes, snapshot_bytes, log_bytes, volumes_used
    )
    return JsonAnswer(
        {
            "tenant": caller.tenant,
            "key_id": caller.key_id,
            "day_ends_at": timestamp(quotas.day_ends_at),
            "quotas": [asdict(row) for row in await reader.read(caller)],
        }
    )


async def _find_entries(context: Context, tenant: str | None, filters: audit.Query) -> Response:
    log = context.tenancy.audit
    if log is None:
        raise NotFound("this server keeps no audit record", remedy="start it with --audit (WARREN_AUDIT=true)")
    async with _searching.setdefault(tenant or "", asyncio.Lock()):
        page = await log.find(replace(filters, tenant=tenant))
    require_room(len(page.entries) * _ENTRY_BYTES)
    deeds = map(deed_view, page.entries)
    return answer_json(
        {"deeds": list(deeds) if len(page.entries) <= _FEW else LongList(deeds), "next": page.after or None}
    )


async def _read_usage(context: Context, tenant: str | None, span: _Span) -> Response:
    first, last = read_span(span.first, span.last, day_of(context.sessions.clock.wall()))
    rows = await context.tenancy.usage.between(tenant, first, last)
    if span.csv:
        name = f'attachment; filename="usage-{first}-{last}.csv"'
        return Response(as_csv(rows), media_type=CSV, headers={"Content-Disposition": name})
    total = NO_USAGE
    for row in rows:
        total = total.plus(row.usage)
    return JsonAnswer(
        {
            "first": first.isoformat(),
            "last": last.isoformat(),
            "usage": [row_view(row) for row in rows],
            "total": total.as_mapping(),
            "artifact_bytes": await context.artifacts.records.used_bytes(tenant) if context.artifacts else 0,
            "snapshot_bytes": await context.snapshots.records.used_bytes(tenant) if context.snapshots else 0,
            "volumes_mb": (await context.sessions.lifecycle.volumes.records.used(tenant)).volumes_mb,
        }
    )


def deed_view(deed: AuditEntry) -> dict[str, Any]:
    return {
        "at": timestamp(deed.at),
        "action": deed.action,
        "tenant": deed.tenant,
        "key_id": deed.key_id,
        "client": deed.client,
        "request_id": deed.request_id,
        "session_id": deed.session_id,
        "status": deed.status,
        "result": deed.result,
        "duration_ms": round(deed.duration_ms, 3),
        "detail": dict(deed.detail),
    }


def read_moment(text: str) -> float | None:
    """Reads a time: ISO 8601 (UTC if it does not say) or Unix seconds; None for an empty text."""
    if not text:
        return None
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        # In a query an unescaped + is a blank.
        moment = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{text[:80]!r} is no time", remedy="write ISO 8601 (2026-01-31T12:00:00Z) or Unix seconds"
        ) from None


def read_span(first: str | None, last: str | None, today: date) -> tuple[date, date]:
    """Returns the first day and the last, both included; by default from the first of the month until today."""
    end = today if last is None else read_day(last)
    begin = end.replace(day=1) if first is None else read_day(first)
    if begin > end:
        raise InvalidRequest(f"the first day, {begin}, is after the last, {end}", remedy="give both: first and last")
    return begin, end


def read_day(text: str) -> date:
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise InvalidRequest(f"{text[:80]!r} is no day", remedy="write it as 2026-01-31")
