"""The machine itself, for operators: what its doctor says, and the builds of its images."""

from dataclasses import asdict
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from warren.interfaces.machine import BuildStatus, ImageBuildControl
from warren.model.errors import InvalidRequest, NotFound
from warren.model.spec import check_image_name
from warren.sessions.history import COLUMNS
from warren.sessions.operations.call import Call, Handler, OperationReply, Values
from warren.sessions.request_context import note
from warren.sessions.schemas import Body, timestamp

MAX_WORKER_NAME: Final = 64
_WORKER: Final = "In a cluster: the worker that is asked, else any of them"


class MachineQuery(BaseModel):
    worker: str = Field("", max_length=MAX_WORKER_NAME, description=_WORKER)


class CancelQuery(MachineQuery):
    image: str = Field(max_length=255, description="Whose build ends")


class BuildBody(Body):
    environment: str = Field("", max_length=255, description="Build the image of this environment", examples=["base"])
    image: str = Field("", max_length=200, description="Or this image, which has a recipe in the registry")


class HistoryQuery(BaseModel):
    span: Literal["1h", "24h"] = Field("1h", description="A point every 10 s for an hour, or every 5 min for a day")
    worker: str = Field(
        "", max_length=MAX_WORKER_NAME, description="In a cluster: this worker's instead of the coordinator's"
    )


class HistoryView(BaseModel):
    process: str = Field(description="Whose figures they are: the worker's, or the coordinator's name")
    interval_s: float
    first_at: str = Field(description="When the oldest point was made; the others follow, one each interval")
    columns: dict[str, list[float | None]] = Field(
        description=f"One value for each point; null: nothing to tell. {', '.join(COLUMNS)}"
    )
    pools: dict[str, dict[str, list[float | None]]] = Field(
        description="By environment: ready, waiting, hits and misses; of at most 20"
    )


class CheckView(BaseModel):
    name: str
    level: str = Field(description="`ok`, `warn` or `FAIL`")
    found: str
    remedy: str


class DoctorView(BaseModel):
    worker: str = Field(description="Whose machine it is")
    at: str = Field(description="When the checks were made: at most a minute ago")
    counts: dict[str, int]
    checks: list[CheckView]
    attack: dict[str, Any] | None = Field(
        description="The last `warren doctor --attack` on this machine: `at`, `summary`, `counts`, `seconds`, `probes`"
    )


class BuildView(BaseModel):
    image: str
    state: str = Field(description="`building`, `done`, `failed` or `cancelled`")
    step: str
    fraction: float | None = Field(description="How much of it is done; null: not known")
    started_at: str
    ended_at: str | None
    lines: list[str] = Field(description="The last lines that it wrote")


class BuildList(BaseModel):
    worker: str
    builds: list[BuildView] = Field(description="Those that run, and the last of each image that has ended")


async def get_history(call: Call, query: HistoryQuery) -> Values:
    """From the process's own memory: it begins anew with the process. Counts are those of one interval, percentiles of
    what ended in it: `create` is how long new sessions waited for their sandbox, `exec_overhead` what Warren added to
    the time of a command. A coordinator has figures of its requests and of all sessions; those of the machines are its
    workers'."""
    history = call.context.history
    if history is None:
        raise NotFound("no history is kept here")
    if call.context.cluster is None:
        process = _check_worker(call, query.worker)
    else:
        process = call.context.cluster.status().coordinator
    view = history.view(query.span)
    first_at = timestamp(view.pop("from"))
    return {"process": process, "first_at": first_at, **view}


async def get_doctor_report(call: Call, query: MachineQuery) -> Values:
    """What `warren doctor --json` prints on this machine, and the report of the last `warren doctor --attack` there.
    The checks take some seconds; they are made at most once a minute."""
    worker = _check_worker(call, query.worker)
    if call.context.doctor is None:
        raise NotFound("there is no doctor here", remedy="run `warren doctor` on the machine")
    report = await call.context.doctor.report()
    attack = report["attack"]
    if attack is not None:
        attack = {**attack, "at": timestamp(attack["at"])}
    return {**report, "worker": worker, "at": timestamp(report["at"]), "attack": attack}


async def list_builds(call: Call, query: MachineQuery) -> Values:
    """With what they are doing, and the last lines that they wrote."""
    worker = _check_worker(call, query.worker)
    return {"worker": worker, "builds": [_show(one) for one in _builds(call).statuses()]}


async def start_build(call: Call, query: MachineQuery, body: BuildBody) -> OperationReply:
    """Returns at once. One that runs already goes on; sandboxes get the new version when it is ready."""
    _check_worker(call, query.worker)
    if bool(body.environment) == bool(body.image):
        raise InvalidRequest(
            "a build is of an environment, or of an image", remedy="give one of `environment`, `image`"
        )
    environment = call.context.environments(body.environment) if body.environment else None
    image = environment.image if environment else body.image
    check_image_name(image)
    note(about=image)
    return OperationReply(_show(_builds(call).start(image, environment.recipe if environment else None)), 202)


async def cancel_build(call: Call, query: CancelQuery) -> Values:
    """Answers when the build has cleaned up; the image stays as it was."""
    _check_worker(call, query.worker)
    note(about=query.image)
    return _show(await _builds(call).cancel(query.image))


def _check_worker(call: Call, wanted: str) -> str:
    """Returns the name of this worker, and raises NotFound if another one is wanted: a coordinator has sent the request
    to the right one, or there is one server alone."""
    mine = call.sessions.lifecycle.basis.worker_name
    if wanted not in ("", mine):
        raise NotFound(f"there is no worker {wanted!r} here", remedy="leave `worker` out")
    return mine


def _builds(call: Call) -> ImageBuildControl:
    if call.context.builds is None:
        raise NotFound("this machine builds no images", remedy="ask a machine that does")
    return call.context.builds


def _show(build: BuildStatus) -> Values:
    times = {"started_at": timestamp(build.started_at)}
    ended = None if build.ended_at is None else timestamp(build.ended_at)
    return {**asdict(build), **times, "ended_at": ended, "lines": list(build.lines)}


HANDLERS = (
    Handler("get_history", get_history, query=HistoryQuery, result=HistoryView),
    Handler("get_doctor_report", get_doctor_report, query=MachineQuery, result=DoctorView),
    Handler("list_builds", list_builds, query=MachineQuery, result=BuildList),
    Handler("start_build", start_build, query=MachineQuery, body=BuildBody, result=BuildView),
    Handler("cancel_build", cancel_build, query=CancelQuery, result=BuildView),
)
