"""The route of previews by path, for the OpenAPI document: the proxy answers these requests before the app does."""

from typing import Annotated, NoReturn

from fastapi import Path
from starlette.responses import Response

from warren.http.context import Runner, new_router
from warren.model.errors import SessionNotFound
from warren.model.preview import read_port

router = new_router(tags=["ports"])


@router.get(
    "/api/sessions/{session_id}/ports/{port}/{path:path}",
    operation_id="open_preview",
    name="open_preview",
    summary="Send a request to a server inside the sandbox",
    response_class=Response,
    response_model=None,
    responses={200: {"description": "What the server inside answers, whatever its status"}},
)
async def open_preview(
    session_id: Annotated[str, Path(description="The session's id, as creating it gave it")],
    port: Annotated[str, Path(description="A TCP port inside the sandbox", examples=["3000"])],
    path: Annotated[str, Path(description="The path that the server inside gets, with the query")],
    tenant: Runner,
) -> NoReturn:
    """With any method, and as a WebSocket. The request and the answer are passed on as they come, whatever their size,
    without the credentials of the API. A page that is read so has no origin; for pages there are links, which lead to
    a host of their own."""
    read_port(port)
    raise SessionNotFound(f"there is no session {session_id[:80]!r}")
