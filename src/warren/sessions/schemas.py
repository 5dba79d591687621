"""The JSON that several parts of the API share: models of request bodies and answers, and functions that show sessions,
results and files. What only one module of `sessions/operations` uses stands there, beside its handlers."""

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator

from warren.kernel.clock import Clock
from warren.kernel.fair_thread import fair_thread
from warren.model.artifact import MAX_PATTERNS, Artifact, LeftOut, SavedAtEnd, SaveResult
from warren.model.command_output import Shown
from warren.model.errors import InvalidRequest
from warren.model.gpus import read_gpus
from warren.model.network import FEW_RULES, MAX_RULES, PRESETS, NetworkRules
from warren.model.operations import MAX_KEEP_BYTES, Command, ExecResult, FileInfo
from warren.model.secrets import MAX_OF_SESSION, check_names
from warren.model.session import OnIdle, Session, SessionState
from warren.model.snapshot import MAX_REFERENCE
from warren.model.spec import USER, WORKSPACE, Layer, Limits
from warren.model.tenant_images import reference_in
from warren.model.volume import MAX_MOUNTS, VolumeMount, VolumeWish, check_volume_name
from warren.sessions.long_values import LongText
from warren.sessions.new_session import NewSession, OnMismatch
from warren.sessions.request_context import current_caller

MAX_VARIABLES = 4096
Seconds = Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)]
Timeout = Annotated[float, Field(ge=0, le=30 * 86400, allow_inf_nan=False)]
"""Seconds that a command may run; 0 stands for as long as the server allows."""


def one_of(words: str) -> WrapValidator:
    """Gives one error message for a field of several types, instead of one for each type."""

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise ValueError(f"it must be {words}") from None

    return WrapValidator(check)


class Body(BaseModel):
    """A request body. Unknown fields and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class LimitsBody(Body):
    """Limits other than the environment's. A sandbox with such limits does not come from the pool."""

    memory_mb: int | None = Field(None, description="Memory in MiB", examples=[1024])
    cpus: float | None = Field(None, description="Cores", examples=[1.0], allow_inf_nan=False)
    pids: int | None = Field(None, description="Processes and threads")
    disk_mb: int | None = Field(None, description="Disk in MiB")
    open_files: int | None = Field(None, description="Open files of a process")


OnIdleName = Literal["end", "pause", "hibernate"]


class VolumeBody(Body):
    """A named volume in the sandbox; see docs/volumes.md."""

    name: str = Field(description="Its name", examples=["cache"])
    path: str = Field(description="Where it is in the sandbox; it is made there", examples=["/workspace/data"])
    read_only: bool = Field(False, description="Nothing in the sandbox can change what is in it")
    size_mb: int | None = Field(None, description="If there is no such volume it is made, of so many MiB")

    def to_wish(self) -> VolumeWish:
        return VolumeWish(check_volume_name(self.name), self.path, self.read_only, self.size_mb)


LayerName = Annotated[str, Field(json_schema_extra={"enum": [str(layer) for layer in Layer]})]


class NetworkBody(Body):
    """What the sandbox may reach. Left out, or empty, it reaches nothing but itself."""

    internet: bool = Field(False, description="Every public address, except what `deny` names")
    allow: list[str] = Field(
        [],
        description="Names (`api.example.com`), all names below one (`*.example.com`), networks (`10.1.2.0/24`), each "
        "with a port if only that is meant (`db.example.com:5432`), or presets: " + ", ".join(PRESETS),
        examples=[["api.example.com", "*.example.org:443"]],
        max_length=MAX_RULES,
    )
    deny: list[str] = Field([], description="With `internet`: what is refused all the same", max_length=MAX_RULES)

    async def to_rules(self) -> NetworkRules:
        """Checks the rules, in a thread if there are many."""
        values = self.model_dump()
        if len(self.allow) + len(self.deny) > FEW_RULES:
            return await fair_thread().run(current_caller().tenant, partial(NetworkRules.from_mapping, values))
        return NetworkRules.from_mapping(values)


# The fields of a create that become other values.
_READ = {"limits", "require", "labels", "network", "secrets", "agent_config", "gpus", "on_idle", "volumes"}


class SessionBody(Body):
    environment: str = Field(
        "",
        description="Environment of the registry; the server's default if empty. The name of an image with a tag or a "
        "path, such as python:3.12, stands for the default environment with that image",
    )
    thread_id: str = Field(
        "",
        description="The conversation this session is for. A thread has one session at a time: creating it again gives "
        "the one it has",
        examples=["conv-42"],
    )
    image: str = Field(
        "", description="Image other than the environment's; if the server lacks it and may pull it, it does"
    )
    provider: str = Field(
        "",
        description="What makes the sandbox, one of the server's providers; the environment's or the default if empty",
    )
    labels: dict[str, str] = Field(
        {}, description="What the worker must have, in a cluster: `arch`, or labels of its own", examples=[{"gpu": "1"}]
    )
    limits: LimitsBody | None = None
    require: list[LayerName] = Field(
        [], description="Layers of isolation that must be in force", examples=[["seccomp"]]
    )
    network: NetworkBody | None = Field(
        None, description="What the sandbox may reach instead of what its environment says; see docs/network.md"
    )
    secrets: list[str] = Field(
        [],
        description="Names of secrets that its requests carry without the sandbox having them; see docs/secrets.md",
        examples=[["openai"]],
        max_length=MAX_OF_SESSION,
    )
    gpus: Annotated[int | list[str] | None, one_of("a number, or a list of ids")] = Field(
        None,
        description="Graphics processors that the sandbox has for itself, where the operator allows them: how many, or "
        "which; by default what the environment says. See docs/gpu.md",
        examples=[1],
    )
    env: dict[str, str] = Field({}, description="Environment variables of every command", max_length=MAX_VARIABLES)
    metadata: dict[str, str] = Field({}, description="Labels of your own", examples=[{"user": "u-7"}])
    idle_timeout_s: Seconds | None = Field(None, description="Ends when it was not used for so long", examples=[1800])
    max_lifetime_s: Seconds | None = Field(None, description="Ends after so long in any case", examples=[3600])
    on_idle: OnIdleName | None = Field(
        None,
        description="What becomes of it when it was not used for `idle_timeout_s`: it ends, or it is paused; by "
        "default what the environment or the server says. See docs/pause.md",
        examples=["pause"],
    )
    max_paused_s: Seconds | None = Field(None, description="Ends after it was paused for so long", examples=[86400])
    auto_resume: bool = Field(True, description="Whoever uses it while it is paused resumes it")
    snapshot: str = Field(
        "",
        max_length=MAX_REFERENCE,
        description="The name or id of a snapshot whose files it starts with; see docs/snapshots.md. Without an "
        "environment it has that of the snapshot",
    )
    replace_lost: bool = Field(
        False, description="If the thread's sandbox has died: make a fresh one. The files of the old one are gone"
    )
    agent_config: Annotated[str | dict[str, Any], one_of("the name of an agent, or an object")] = Field(
        "",
        description="The agent it is for: its name in the registry, or an agent as the registry has them. It gives the "
        "environment, limits, variables and time-outs that the request does not name; see docs/registry.md",
        examples=["coder"],
    )
    on_mismatch: OnMismatch = Field(
        "error",
        description="If the thread's session has another environment, image, provider, limit or number of gpus than "
        "this names: `error` answers 409 `session_mismatch`, `keep` gives that session and says in `mismatch` what it "
        "has, `replace` ends it, with its files, and makes a new one",
    )

    logs: str = Field(
        "",
        description="How much of what it does is kept: off, commands or output; at least what the operator wants. See "
        "docs/logs.md",
        examples=["commands"],
    )
    volumes: list[VolumeBody] = Field(
        [], description="Named volumes that the sandbox has, beside those of its environment", max_length=MAX_MOUNTS
    )

    async def to_new_session(self) -> NewSession:
        values = self.model_dump(include=set(SessionBody.model_fields) - _READ)
        limits = self.limits.model_dump(exclude_none=True) if self.limits else {}
        network = await self.network.to_rules() if self.network else None
        require = frozenset(_layer(name) for name in self.require)
        secrets = check_names(self.secrets)
        return NewSession(
            **values,
            limits=limits,
            require=require,
            network=network,
            secrets=secrets,
            agent_config=self.agent_config,
            gpus=None if self.gpus is None else read_gpus(self.gpus),
            on_idle=None if self.on_idle is None else OnIdle(self.on_idle),
            volumes=tuple(each.to_wish() for each in self.volumes),
        )


def _layer(name: str) -> Layer:
    try:
        return Layer(name)
    except ValueError as exc:
        raise InvalidRequest(f"there is no layer {name!r}", remedy=f"there are: {', '.join(Layer)}") from exc


class CommandBody(Body):
    command: Annotated[str | list[str], one_of("a string, or a list of strings")] = Field(
        description="A line for bash, or a program and its arguments", examples=["python3 -c 'print(6 * 7)'"]
    )
    cwd: str = Field(
        "",
        description="Directory; by default where the last command ended, at first the image's WORKDIR, else /workspace",
    )
    env: dict[str, str] = Field(
        default_factory=dict,  # pydantic would copy a default with `deepcopy`, for each command
        description="Variables for this command alone",
        max_length=MAX_VARIABLES,
        json_schema_extra={"default": {}},
    )
    user: str = Field("", description="User inside the sandbox; by default the image's USER, else sandboxuser")
    timeout_s: Timeout | None = Field(
        None,
        description="The whole process tree is ended after so long. 0: no time-out but the server's longest, a day "
        "unless set otherwise; a command in the background then has none",
        examples=[30],
    )
    carry_state: bool = Field(True, description="`cd` and `export` last from one command to the next")
    keep_bytes: int | None = Field(None, ge=0, le=MAX_KEEP_BYTES, description="Bytes of output kept: its head and tail")

    def to_command(self, session: Session | None = None) -> Command:
        line = self.command
        if not line:
            raise InvalidRequest("the command is empty")
        optional: dict[str, Any] = {} if self.keep_bytes is None else {"keep_bytes": self.keep_bytes}
        return Command(
            argv=tuple(line) if isinstance(line, list) else (),
            shell="" if isinstance(line, list) else line,
            cwd=self.cwd,
            env=self.env,
            base_env={} if session is None else session.env,
            user=self.user,
            timeout_s=self.timeout_s or None,
            carry_state=self.carry_state,
            **optional,
        )


class ExecBody(CommandBody):
    stdin: str = Field("", description="Text for the command's standard input")
    stdin_base64: str = Field("", description="The same for bytes that are no text")
    stdin_path: str = Field(
        "", description="A file of the sandbox that becomes standard input, of any size", examples=["input.csv"]
    )
    stream: bool = Field(False, description="Answer with server-sent events, as with `Accept: text/event-stream`")
    save_artifacts: list[str] = Field(
        default_factory=list,
        description="Files and globs that are saved as artifacts when the command has ended; see docs/artifacts.md",
        examples=[["*.png"]],
        max_length=MAX_PATTERNS,
        json_schema_extra={"default": []},
    )


class CreateBody(SessionBody):
    exec: ExecBody | None = Field(
        None,
        description="A command that runs in the session before the answer, whose `exec` says how it ended; needs the "
        "scope exec. See docs/api.md",
        examples=[{"command": "pip install attrs"}],
    )


class ContextBody(Body):
    language: str = Field("python", description="python, javascript, typescript, bash, r or java", examples=["python"])
    cwd: str = Field("", description="Directory it starts in; by default the image's WORKDIR, else /workspace")
    env: dict[str, str] = Field({}, description="Variables of its interpreter", max_length=MAX_VARIABLES)
    idle_timeout_s: Seconds | None = Field(
        None, description="Ends when it ran no cell for so long; by default as the server is set", examples=[600]
    )


class CodeBody(Body):
    code: str = Field(description="The cell", examples=["x = 6\nx * 7"])
    language: str = Field(
        "",
        description="python, javascript, typescript, bash, r or java; by default that of the context, else python",
        examples=["python"],
    )
    context: str = Field(
        "", description="Id of the context it runs in; by default the language's own, which the first cell starts"
    )
    timeout_s: Timeout | None = Field(
        None,
        description="The cell is interrupted after so long; one that goes on is ended together with its context",
        examples=[30],
    )
    env: dict[str, str] = Field({}, description="Variables for this cell alone", max_length=MAX_VARIABLES)
    stream: bool = Field(False, description="Answer with server-sent events, as with `Accept: text/event-stream`")
    save_artifacts: list[str] = Field(
        [],
        description="Files and globs that are saved as artifacts when the cell has ended; see docs/artifacts.md",
        examples=[["*.png"]],
        max_length=MAX_PATTERNS,
    )
    save_results: bool = Field(False, description="Save pictures and PDFs among the results as artifacts too")


def data_of(text: str, encoded: str) -> bytes:
    if text and encoded:
        raise InvalidRequest("the data came twice, as text and as base64", remedy="give one of them")
    try:
        return base64.b64decode(encoded, validate=True) if encoded else text.encode(errors="surrogateescape")
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"this is not base64: {exc}") from exc


# -- answers


class PreviousView(BaseModel):
    session_id: str
    reason: str
    detail: str


class LimitsView(BaseModel):
    memory_mb: int = Field(description="Memory in MiB")
    cpus: float = Field(description="Cores")
    pids: int = Field(description="Processes and threads")
    disk_mb: int = Field(description="Disk in MiB")
    open_files: int = Field(description="Open files of a process")


class NetworkView(BaseModel):
    internet: bool = Field(description="Every public address, except what `deny` names")
    allow: list[str]
    deny: list[str]


class LeftOutView(BaseModel):
    path: str
    why: str


class SavedAtEndView(BaseModel):
    """What became of the files below /workspace/artifacts."""

    saved: int
    bytes: int
    left_out_count: int
    left_out: list[LeftOutView] = Field(description="The first of them")


class ArtifactView(BaseModel):
    artifact_id: str
    name: str = Field(description="The file's path below /workspace/artifacts, /workspace or /")
    path: str | None = Field(description="Where it was in the sandbox")
    size: int
    sha256: str
    mime_type: str
    session_id: str
    thread_id: str | None
    created_at: str
    expires_at: str
    url: str = Field(description="Where its content is read")


class SavedView(BaseModel):
    artifacts: list[ArtifactView]
    left_out: list[LeftOutView] = Field(description="What was not saved, and why; the first of them")
    left_out_count: int


class MismatchView(BaseModel):
    has: Any
    asked: Any


class VolumeMountView(BaseModel):
    volume_id: str
    name: str
    path: str
    read_only: bool


class SessionView(BaseModel):
    """A session as it is shown. `limits`: those in force; null for a session that an older server made. `previous`: the
    thread had an earlier session, whose files are gone."""

    session_id: str
    tenant: str
    state: SessionState
    environment: str
    thread_id: str | None
    sandbox_id: str | None
    provider: str | None
    worker: str | None
    user: str
    workspace: str
    created_at: str
    expires_at: str | None = Field(description="When it ends, or is paused if it is so set, if it is not used any more")
    idle_expires_at: str | None = Field(
        description="The same, without regard to its longest life; null while it is paused"
    )
    idle_timeout_s: float
    max_lifetime_s: float
    on_idle: OnIdleName = Field(description="What becomes of it when it was not used for `idle_timeout_s`")
    paused_at: str | None = Field(description="Since when it is paused")
    max_paused_s: float = Field(description="It ends when it is paused for so long")
    auto_resume: bool = Field(description="Whoever uses it while it is paused resumes it")
    restored: int = Field(
        description="How often its files were restored in a fresh sandbox: nothing that ran before that runs since"
    )
    limits: LimitsView | None
    pooled: bool
    image: str | None = Field(description="Its own, or that of its environment")
    metadata: dict[str, str]
    env_names: list[str]
    network: NetworkView
    secrets: list[str] = Field(description="Names of the secrets that its requests carry")
    agent: str | None = Field(description="The agent of the registry that it was made for")
    agent_config: dict[str, Any] | None = Field(description="The agent that it was made for, as it was then")
    gpus: list[str] = Field(description="The graphics processors that its sandbox has for itself")
    volumes: list[VolumeMountView] = Field(description="The named volumes in its sandbox")
    previous: PreviousView | None
    artifacts: SavedAtEndView | None = Field(None, description="What was saved when it ended; null: there was nothing")
    snapshot: str | None = Field(None, description="The snapshot that it started from, which may be deleted")
    forked_from: str | None = Field(None, description="The session that it is a fork of")
    logs: str = Field(description="How much of what it does is kept: off, commands or output")
    reason: str | None
    detail: str | None
    url: str
    isolation: dict[str, Any] | None = None
    created: bool | None = None
    worker_url: str | None = Field(None, description="In the answer of a create: its worker, if that takes clients")
    mismatch: dict[str, MismatchView] | None = Field(
        None, description="In the answer of a create with `on_mismatch: keep`: where the thread's session differs"
    )
    exec: "FirstCommandView | None" = Field(None, description="In the answer of a create with `exec`")


class FirstCommandView(BaseModel):
    """What became of the command of a create: its result, or the error that kept it from running."""

    result: "ExecView | None"
    error: dict[str, str] | None = Field(description="`code`, `detail` and `remedy`, as an error has them")


class ExecView(BaseModel):
    """How a command ended. A non-zero exit, a signal, a time-out or running out of memory are results, not errors."""

    exit_code: int = Field(description="As a shell gives it: 128 + N for a signal, which is what a time-out ends it by")
    output: str = Field(description="stdout and stderr in the order they were written")
    stdout: str
    stderr: str
    stdout_base64: str = Field(description="All bytes of stdout, only if `stdout` had to replace some; else empty")
    stderr_base64: str = Field(description="The same for stderr")
    reason: str = Field(description="exited, signal, timeout, oom, cancelled, refused or sandbox_lost")
    signal: int | None
    duration_ms: float
    cpu_ms: float
    bytes_total: int
    truncated: bool = Field(description="More came than was kept")
    killed: int = Field(description="Processes that the time-out had to end")
    survivors: int
    background: int = Field(description="Processes the command left running")
    process_id: str
    saved: SavedView | None = Field(None, description="Only if `save_artifacts` asked for it")


class ContextView(BaseModel):
    """An interpreter that keeps its state from one cell to the next."""

    id: str
    language: str = Field(description="python, javascript, typescript, bash, r or java")
    state: str = Field(description="idle, busy or lost: it has ended, and what it held with it")
    cwd: str = Field(description="As it was asked for; empty: the one that commands start in, or no longer known")
    version: str = Field(description="Of the language")
    default: bool = Field(description="It is the one that cells get which name no context")
    started_s_ago: float
    lost_reason: str | None = Field(None, description="oom, killed or exited")


class ContextList(BaseModel):
    contexts: list[ContextView]


class LogsView(BaseModel):
    stdout: list[str] = Field(description="Piece by piece, as it came")
    stderr: list[str]


class CodeErrorView(BaseModel):
    name: str = Field(examples=["ZeroDivisionError"])
    value: str = Field(examples=["division by zero"])
    traceback: str


class DroppedView(BaseModel):
    text: int = Field(description="Bytes of text that were more than is kept")
    events: int = Field(description="Results that were too large, or could not be read")


class ExecutionView(BaseModel):
    """What came of a cell. An error of its code is a result, not an error of the request."""

    id: str
    context_id: str
    language: str
    results: list[dict[str, Any]] = Field(
        description="Values that the cell gave or displayed: `is_main_result` marks the value of its last expression; "
        "`text`, `html`, `markdown`, `svg`, `png`, `jpeg`, `pdf` (base64), `latex`, `json`, `javascript`, `data`, "
        "`chart`, `extra` are its formats, as far as it has them; `cut` names those that were too long"
    )
    logs: LogsView
    error: CodeErrorView | None
    execution_count: int | None
    reason: str = Field(description="exited, timeout, cancelled, context_lost, refused, sandbox_lost; or running")
    context_lost: str | None = Field(description="If the context ended with it: oom, killed or exited")
    duration_ms: float
    truncated: bool = Field(description="More came than was kept: `dropped` says how much")
    dropped: DroppedView
    saved: SavedView | None = Field(None, description="Only if `save_artifacts` or `save_results` asked for it")


class FileView(BaseModel):
    path: str
    name: str
    kind: str
    size: int
    mode: str
    uid: int
    gid: int
    modified: str
    target: str | None


class FileList(BaseModel):
    path: str
    files: list[FileView]


def session_view(session: Session, clock: Clock, base_url: str, image: str) -> dict[str, Any]:
    previous = session.previous
    expires = session.state.expires and not session.state.is_in_transition
    paused = session.state.is_paused
    return {
        "session_id": session.id,
        "tenant": session.tenant,
        "state": session.state,
        "environment": session.environment,
        "thread_id": session.thread_id or None,
        "sandbox_id": session.sandbox_id or None,
        "provider": session.provider or None,
        "worker": session.worker or None,
        "user": USER,
        "workspace": WORKSPACE,
        "created_at": timestamp(session.created_at),
        "expires_at": timestamp(clock.wall_at(session.expires_at)) if expires else None,
        "idle_expires_at": timestamp(clock.wall_at(session.idle_deadline)) if expires and not paused else None,
        "idle_timeout_s": session.idle_timeout_s,
        "max_lifetime_s": session.max_lifetime_s,
        "on_idle": session.on_idle,
        "paused_at": timestamp(clock.wall_at(session.paused_at or 0.0)) if paused else None,
        "max_paused_s": session.max_paused_s,
        "auto_resume": session.auto_resume,
        "restored": session.restored,
        "limits": dict(_limit_items(session.limits)) if session.limits else None,
        "pooled": session.pooled,
        "image": (reference_in(image) or image) if image else None,
        "metadata": dict(session.metadata),
        "env_names": sorted(session.env),
        "network": session.network.as_mapping(),
        "secrets": list(session.secrets),
        "agent": session.agent or None,
        "agent_config": session.agent_config or None,
        "gpus": list(session.gpus),
        "volumes": [mount_view(mount) for mount in session.volumes],
        "previous": asdict(previous) | {"session_id": previous.session_id} if previous else None,
        "artifacts": _saved_at_end_view(session.artifacts) if session.artifacts else None,
        "snapshot": session.snapshot or None,
        "forked_from": session.forked_from or None,
        "logs": session.logs or "off",
        "reason": session.reason or None,
        "detail": session.detail or None,
        "url": f"{base_url}api/sessions/{session.id}",
    }


def mount_view(mount: VolumeMount) -> dict[str, Any]:
    return {"volume_id": mount.volume, "name": mount.name, "path": mount.path, "read_only": mount.read_only}


def artifact_view(artifact: Artifact, base_url: str) -> dict[str, Any]:
    return {
        "artifact_id": artifact.id,
        "name": artifact.name,
        "path": artifact.path or None,
        "size": artifact.size,
        "sha256": artifact.sha256,
        "mime_type": artifact.mime,
        "session_id": artifact.session_id,
        "thread_id": artifact.thread_id or None,
        "created_at": timestamp(artifact.created_at),
        "expires_at": timestamp(artifact.expires_at),
        "url": f"{base_url}api/artifacts/{artifact.id}/content",
    }


def saved_view(saved: SaveResult, base_url: str) -> dict[str, Any]:
    return {
        "artifacts": [artifact_view(artifact, base_url) for artifact in saved.artifacts],
        "left_out": _left_out_view(saved.left_out),
        "left_out_count": saved.left_out_count,
    }


def _saved_at_end_view(saved: SavedAtEnd) -> dict[str, Any]:
    counts = {"saved": saved.saved, "bytes": saved.bytes, "left_out_count": saved.left_out_count}
    return {**counts, "left_out": _left_out_view(saved.left_out)}


def _left_out_view(left_out: Sequence[LeftOut]) -> list[dict[str, str]]:
    return [asdict(one) for one in left_out]


def exec_view(result: ExecResult) -> dict[str, Any]:
    stdout, stderr, output = shown_texts(result)
    exact_stdout, exact_stderr = _exact_bytes(result, stdout, stderr)
    return {
        "exit_code": result.exit_code,
        "output": output,
        "stdout": stdout,
        "stderr": stderr,
        "stdout_base64": exact_stdout,
        "stderr_base64": exact_stderr,
        **end_view(result),
    }


def _exact_bytes(result: ExecResult, *texts: str | LongText) -> Iterator[str | LongText]:
    """Yields stdout and stderr as base64; empty if the text says the same."""
    for shown, text in zip((Shown.STDOUT, Shown.STDERR), texts, strict=True):
        pieces = partial(result.written.base64_if_broken, shown)
        if isinstance(text, LongText):
            yield LongText(pieces)
        else:
            yield "".join(pieces()) if "\ufffd" in text else ""


def shown_texts(result: ExecResult) -> tuple[str | LongText, str | LongText, str | LongText]:
    """stdout, stderr, and both in order; long ones are decoded on their way into the answer."""
    written = result.written
    if not written.is_long:
        return written.texts()
    stdout, stderr, output = (LongText(partial(written.text_pieces, shown)) for shown in Shown)
    return stdout, stderr, output


def end_view(result: ExecResult) -> dict[str, Any]:
    """How a command ended, without its output."""
    return {
        "exit_code": result.exit_code,
        "reason": result.reason,
        "signal": result.signal,
        "duration_ms": round(result.duration_ms, 3),
        "cpu_ms": round(result.cpu_ms, 3),
        "bytes_total": result.bytes_total,
        "truncated": result.truncated,
        "killed": result.killed,
        "survivors": result.survivors,
        "background": result.background,
        "process_id": result.process_id,
    }


def file_view(info: FileInfo) -> dict[str, Any]:
    return {
        "path": info.path,
        "name": info.name,
        "kind": info.kind,
        "size": info.size,
        "mode": f"{info.mode & 0o7777:04o}",
        "uid": info.uid,
        "gid": info.gid,
        "modified": timestamp(info.modified),
        "target": info.target or None,
    }


@lru_cache(maxsize=256)
def _limit_items(limits: Limits) -> tuple[tuple[str, Any], ...]:
    """Cached: a list of sessions has the same limits again and again, and `asdict` would be a third of its cost."""
    return tuple(asdict(limits).items())


@lru_cache(maxsize=4096)
def timestamp(seconds: float) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
