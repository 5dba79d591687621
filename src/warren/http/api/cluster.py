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
    pressure: float = Field(description="How full its machine is: 1 takes nothing more")
    ready: dict[str, int] = Field(description="Warm sandboxes of each environment")
    waiting: int = Field(description="Callers that wait for a sandbox")
    epoch: int
    lease_left_s: float = Field(description="Negative since the lease ran out")


class ClusterView(BaseModel):
    coordinator: str = Field(description="Which one answers")
    redis: str = Field(description="`there` or `away`")
    settled: bool = Field(description="False after Redis has lost its data, until workers have published theirs again")
    workers: list[WorkerView]


class DrainBody(Body):
    draining: bool = Field(description="True: it gets no new sessions; those it has go on", examples=[True])


@router.get("", response_model=ClusterView, summary="The workers of the cluster")
async def cluster_status(context: Ctx, tenant: Admin) -> dict[str, Any]:
    return asdict(_control(context).status())


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
