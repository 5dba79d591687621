"""/api/sessions: made, shown, kept alive, changed, ended."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Body, Query
from starlette.requests import Request
from starlette.responses import Response

from warren.http.context import (
    Context,
    Ctx,
    IdempotencyKey,
    Reader,
    SessionId,
    SessionUser,
    answer,
    new_router,
)
from warren.http.routes.exec import unless_gone
from warren.http.schemas import (
    PatchBody,
    SessionBody,
    SessionPage,
    SessionView,
    isolation_view,
    session_view,
)
from warren.interfaces.store import Page
from warren.model.errors import InvalidRequest
from warren.model.session import Session, SessionState
from warren.sessions.listing import listed, read_pairs

router = new_router(prefix="/api/sessions", tags=["sessions"])

NewBody = Annotated[SessionBody | None, Body(openapi_examples={"thread": {"value": {"thread_id": "conv-42"}}})]


@router.post(
    "",
    status_code=201,
    response_model=SessionView,
    summary="Create a session, or get the thread's",
    responses={200: {"model": SessionView, "description": "The thread had one: this is it"}},
)
async def create_session(
    request: Request, context: Ctx, tenant: SessionUser, body: NewBody = None, idempotency_key: IdempotencyKey = ""
) -> Response:
    """A sandbox of your own, from the warm pool when one is ready.

    With `thread_id` this is get-or-create, and atomic: however many ask at once, the thread has one session. 201: it
    is new. 200: it was there. When a thread's sandbox has died the answer is 410 `sandbox_lost`, unless
    `replace_lost` asks for a fresh one; `previous` then says whose files are gone.
    """
    body = body or SessionBody()
    check_labels(context, body.labels)
    opened = await unless_gone(request, context.sessions.create(tenant, body.wanted(), idempotency_key))
    view = session_view(opened.session, context.sessions.clock, str(request.base_url))
    headers = {"Location": view["url"], **({"Idempotency-Replayed": "true"} if opened.replayed else {})}
    return answer({**view, "created": opened.created}, 201 if opened.created or opened.replayed else 200, headers)


@router.get("", response_model=SessionPage, summary="List your sessions")
async def list_sessions(
    request: Request,
    context: Ctx,
    tenant: Reader,
    state: Annotated[
        list[SessionState] | None, Query(description="Only those; by default all that have not ended")
    ] = None,
    thread_id: Annotated[str, Query(max_length=255, description="Only this thread's")] = "",
    environment: Annotated[str, Query(description="Only those of this environment")] = "",
    metadata: Annotated[list[str] | None, Query(description="`name=value`; all must match")] = None,
    after: Annotated[str, Query(description="`next` of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="So many at most")] = 100,
) -> Response:
    """Newest first. Looking does not count as use."""
    chosen = {"states": frozenset(state)} if state else {}
    page = Page(
        thread_id=thread_id,
        environment=environment,
        metadata=read_pairs(metadata or []),
        after=after,
        limit=limit,
        **chosen,
    )
    found, more = await listed(context.sessions, tenant, page)
    shown = [session_view(session, context.sessions.clock, str(request.base_url)) for session in found]
    return answer({"sessions": shown, "next": more})


@router.get("/{session_id}", response_model=SessionView, summary="Show a session")
async def get_session(session_id: SessionId, request: Request, context: Ctx, tenant: Reader) -> Response:
    """With the isolation that is really in force, as the kernel reports it. Looking does not count as use."""
    return answer(await described(context, request, await context.sessions.get(tenant, session_id)))


@router.delete("/{session_id}", response_model=SessionView, summary="End a session and destroy its sandbox")
async def delete_session(session_id: SessionId, request: Request, context: Ctx, tenant: SessionUser) -> Response:
    """When this answers, the sandbox is gone: its processes, its files, everything. Repeating it changes nothing."""
    session = await context.sessions.delete(tenant, session_id)
    return answer(session_view(session, context.sessions.clock, str(request.base_url)))


@router.post("/{session_id}/keep-alive", response_model=SessionView, summary="Start the idle clock anew")
async def keep_session_alive(session_id: SessionId, request: Request, context: Ctx, tenant: SessionUser) -> Response:
    """The maximum lifetime stays as it is; PATCH changes it."""
    session = await context.sessions.keep_alive(tenant, session_id)
    return answer(session_view(session, context.sessions.clock, str(request.base_url)))


@router.patch("/{session_id}", response_model=SessionView, summary="Change time-outs and metadata")
async def change_session(
    session_id: SessionId, body: PatchBody, request: Request, context: Ctx, tenant: SessionUser
) -> Response:
    """What is left out stays as it is. Time-outs are counted from the same beginnings as before."""
    session = await context.sessions.patch(
        tenant, session_id, **body.model_dump(exclude_none=True, exclude={"metadata"}), metadata=body.metadata
    )
    return answer(session_view(session, context.sessions.clock, str(request.base_url)))


async def described(context: Context, request: Request, session: Session) -> dict[str, Any]:
    view = session_view(session, context.sessions.clock, str(request.base_url))
    sandbox = await context.sessions.look(session)
    return {**view, "isolation": isolation_view(sandbox.isolation) if sandbox else None}


def check_labels(context: Context, labels: Mapping[str, str]) -> None:
    """Raises InvalidRequest for a label that this worker does not have."""
    for name, value in labels.items():
        if context.labels.get(name) != value:
            raise InvalidRequest(
                f"there is no worker with the label {name}={value} here",
                remedy="leave labels out, or start such a worker",
            )
