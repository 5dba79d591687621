"""/api/events: what happens to sessions, as it happens."""

from typing import Annotated, Any, Final

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from warren.governance.event_feed import KINDS
from warren.http.context import Ctx, Reader, new_router
from warren.http.event_streams import EVENT_STREAM
from warren.http.request import caller_of
from warren.http.server.http_guard import StreamedAnswer
from warren.model.access import Scope
from warren.model.errors import InvalidRequest
from warren.sessions.allowances import choose_tenant

router = new_router(prefix="/api", tags=["records"])

_AS_EVENTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {EVENT_STREAM: {}}, "description": "Server-sent events, without end"}
}


@router.get("/events", response_class=Response, responses=_AS_EVENTS, summary="Follow what happens to sessions")
async def follow_events(
    request: Request,
    context: Ctx,
    tenant: Reader,
    kinds: Annotated[str, Query(description=f"Only these, by commas: {', '.join(KINDS)}", max_length=500)] = "",
    session_id: Annotated[str, Query(description="Only those of this session", max_length=256)] = "",
    of: Annotated[
        str,
        Query(
            description="Of this tenant, or `*` for all; needs the scope admin or audit", max_length=64, examples=["*"]
        ),
    ] = "",
    last_event_id: Annotated[str, Header(description="Where a broken stream goes on")] = "",
) -> Response:
    """Server-sent events. The first is `ready`: `{"resumed": true}` says that nothing was missed since
    `Last-Event-ID`. The others have the fields of a webhook's message. `gap` says that some events are not known any
    more, because the reader was slow or came back late: look at everything again. There is no end, unless the key or
    the sign-in ends: then the last event is `error`. A comment comes when nothing happens. `command.finished` is not
    among them: the audit record has the commands."""
    source = context.tenancy.feed.stream(
        tenant,
        of=choose_tenant(caller_of(request), of, Scope.ADMIN, Scope.AUDIT),
        kinds=_read_kinds(kinds),
        session_id=session_id,
        after=last_event_id,
        keepalive_s=context.keepalive_s,
    )
    first = await anext(source)

    async def frames() -> Any:
        try:
            yield first
            async for frame in source:
                yield frame
        finally:
            await source.aclose()

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamedAnswer(frames(), media_type=EVENT_STREAM, headers=headers)


def _read_kinds(text: str) -> list[str]:
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidRequest(f"there are no events {kind[:80]!r} here", remedy=f"some of: {', '.join(KINDS)}")
    return kinds
