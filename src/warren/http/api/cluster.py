"""/api/cluster: the workers of a cluster, for its operator."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from warren.http.context import Admin, Context, Ctx, new_router
from warren.interfaces.cluster import ClusterControl
from warren.model.errors import NotFound
from warren.sessions.schemas import Body

router = new_router(prefix="/api/cluster", tags=["cluster"])

WorkerId = Annotated[str, Path(description="The worker's name")]


class WorkerView(BaseModel):
    id: str
    state: str = Field(
        description="`ready`, `draining`, `stopping`, `dead`, or `incompatible` (another version or cluster secret)"
    )
    address: str
    version: str
    protocol: int
    provider: str
    labels: dict[str, str]
    sessions: int
    capacity: int
    pressure: float = Field(description="How little room its machine has left: 1 takes nothing more")
    memory: float = Field(description="How much of its memory is in use, but for what must stay free, up to 1")
    ready: dict[str, int] = Field(description="Warm sandboxes of each environment")
    waiting: int = Field(description="Callers that wait for a sandbox")
    epoch: int
    lease_left_s: float = Field(description="Negative since the lease ran out")


class ClusterView(BaseModel):
    coordinator: str = Field(description="Which one answers")
    redis: str = Field(description="`there` or `away`")
    settled: bool = Field(description="False after Redis has lost its data, until workers have published theirs again")
    workers: list[WorkerView]


class DemandView(BaseModel):
    wanted: int = Field(description="So many workers; it goes up when that was needed for 10 s, and down late")
    reason: str = Field(description="For what: `sessions`, `room` (memory and disk), `queue`, or `least`")
    workers: int = Field(description="Those that take new sessions now")
    sessions: int
    capacity: int
    waiting: int = Field(description="Callers that wait for a sandbox")
    load: float = Field(description="How full the machines are in the mean, up to 1")
    may_stop: list[str] = Field(description="Workers that are drained and have no session any more")


class DrainBody(Body):
    draining: bool = Field(description="True: it gets no new sessions; those it has go on", examples=[True])


@router.get("", response_model=ClusterView, summary="The workers of the cluster")
async def cluster_status(context: Ctx, tenant: Admin) -> dict[str, Any]:
    return asdict(_control(context).status())


@router.get("/demand", response_model=DemandView, summary="How many workers are needed")
async def cluster_demand(context: Ctx, tenant: Admin) -> dict[str, Any]:
    """For whoever starts and stops machines. Stop only workers that were drained: those in `may_stop`."""
    return asdict(_control(context).demand())


@router.patch("/workers/{worker_id}", response_model=WorkerView, summary="Drain a worker, or end that")
async def drain_worker(worker_id: WorkerId, body: DrainBody, context: Ctx, tenant: Admin) -> dict[str, Any]:
    return asdict(await _control(context).drain(worker_id, body.draining))


@router.delete("/workers/{worker_id}", status_code=204, summary="Forget a worker that is dead")
async def remove_worker(worker_id: WorkerId, context: Ctx, tenant: Admin) -> Response:
    """Its sessions are reported lost at once. A worker that is alive is not removed: stop it first."""
    await _control(context).remove(worker_id)
    return Response(status_code=204)


def _control(context: Context) -> ClusterControl:
    if context.cluster is None:
        raise NotFound(
            "this server runs by itself, it is not in a cluster",
            remedy="to ask a cluster, name the address of one of its coordinators: --url or WARREN_URL",
        )
    return context.cluster
