"""/health, /ready, /version, /api/stats: the state of the server, for load balancers and monitoring."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.routing import BaseRoute

from warren.http.context import Admin, Context, Ctx, active_sessions, new_router, pool_size

router = new_router()


class HealthView(BaseModel):
    status: str = Field(description="`healthy`, or `stopping`")
    pool_size: int = Field(description="Sandboxes that are ready to be handed out")
    active_sessions: int
    worker_id: str


class ReadyView(BaseModel):
    status: str
    pool_size: int
    active_sessions: int


class VersionView(BaseModel):
    name: str
    version: str
    provider: str
    worker_id: str


class StatsView(BaseModel):
    sessions: dict[str, int]
    workers: dict[str, dict[str, Any]]


@router.get("/health", response_model=HealthView, summary="How the server is", tags=["flat"])
async def health(context: Ctx) -> dict[str, Any]:
    stopping = context.sessions.stopping
    return {
        "status": "stopping" if stopping else "healthy",
        "pool_size": await pool_size(context),
        "active_sessions": await active_sessions(context),
        "worker_id": context.worker_id,
    }


@router.get("/ready", tags=["server"], response_model=ReadyView, summary="Whether the server takes work")
async def ready(context: Ctx) -> dict[str, Any]:
    """503 while the server stops, its store does not work, or no sandbox can be made, for the reason that is given.

    From a coordinator also if there is no worker."""
    context.sessions.uses.check_open()
    if context.sessions.worker is not None:
        await context.sessions.worker.check()
    if context.cluster is not None:
        context.cluster.check_ready()
    pooled, active = await pool_size(context), await active_sessions(context)
    return {"status": "ready", "pool_size": pooled, "active_sessions": active}


@router.get("/version", tags=["server"], response_model=VersionView, summary="Which server this is")
async def version(context: Ctx) -> dict[str, Any]:
    return {"name": "warren", "version": context.version, "provider": context.provider, "worker_id": context.worker_id}


@router.get(
    "/api/stats",
    tags=["server"],
    response_model=StatsView,
    summary="Figures of the pools, the machine and the sessions",
)
async def stats(context: Ctx, tenant: Admin) -> dict[str, Any]:
    """Per environment: ready, creating, waiting, claims, hits, misses, creations, failures, claim latency."""
    found = await context.sessions.stats()
    return asdict(found if context.cluster is None else replace(found, workers=await context.cluster.figures()))


ASKED_OFTEN: Final[Mapping[str, tuple[BaseRoute, Callable[[Context], Awaitable[dict[str, Any]]]]]] = {
    route.path: (route, route.endpoint)
    for route in router.routes
    if isinstance(route, APIRoute) and route.endpoint in (health, ready, version)
}
"""Routes by path that the dispatcher answers without a search, because programs ask for them all day."""
