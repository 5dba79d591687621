"""Performs operations, whether the call came over HTTP or from the SDK's local mode.

A handler is a function with the models of its arguments. `perform` gives it the session's sandbox and adds its
arguments to the audit record if the operation's row in the table (model/api.py) says so. A handler takes its arguments
in this order: the query, the body, the data of an upload; each only if the operation has one.
"""

import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel

from warren.interfaces.cluster import ClusterControl
from warren.interfaces.environments import Environments
from warren.interfaces.images import ImageLister
from warren.interfaces.machine import Doctor, ImageBuildControl
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.session_logs import SessionLogs
from warren.model.api import OPERATIONS, Operation
from warren.model.errors import InvalidRequest
from warren.model.session import Session
from warren.sessions.artifacts import Artifacts
from warren.sessions.contexts import Contexts
from warren.sessions.history import History
from warren.sessions.manager import Sessions
from warren.sessions.output_events import close_source
from warren.sessions.port_connections import PortConnections
from warren.sessions.preview_links import PreviewLinks
from warren.sessions.request_context import note
from warren.sessions.shared_pages import SharedPages
from warren.sessions.snapshots.service import Snapshots
from warren.sessions.terminal_viewers import TerminalViewers
from warren.sessions.uses import SandboxUse

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext:
    """What every operation works with. `labels` are the labels of this worker, which a new session may require;
    `worker_url` is its address in a cluster, and `takes_clients` whether clients may ask it themselves. Without `links`
    there are no previews, without `artifacts` none of these, and without `snapshots` none of those. Only a coordinator
    has `cluster`."""

    sessions: Sessions
    provider: str
    environments: Environments
    default_environment: str
    images: ImageLister
    labels: Mapping[str, str] = field(default_factory=dict)
    worker_url: str = ""
    takes_clients: bool = False
    command_timeout_s: float = 120.0
    max_command_timeout_s: float = 86400.0
    keepalive_s: float = 15.0
    links: PreviewLinks | None = None
    artifacts: Artifacts | None = None
    snapshots: Snapshots | None = None
    port_connections: PortConnections = field(default_factory=PortConnections)
    terminal_viewers: TerminalViewers = field(default_factory=TerminalViewers)
    contexts: Contexts = field(default_factory=Contexts)
    cluster: ClusterControl | None = None
    doctor: Doctor | None = None
    builds: ImageBuildControl | None = None
    history: History | None = None
    pages: SharedPages = field(default_factory=SharedPages)
    logs: SessionLogs | None = None

    def limited_timeout(self, timeout_s: float | None) -> float:
        timeout_s = self.command_timeout_s if timeout_s is None else timeout_s
        if timeout_s == 0:
            return self.max_command_timeout_s
        if timeout_s > self.max_command_timeout_s:
            raise InvalidRequest(
                f"a time-out of {timeout_s:.15g} s is too long: at most {self.max_command_timeout_s:.15g} s",
                remedy="start it in the background: POST /api/sessions/{id}/processes",
            )
        return timeout_s


class ByteRange(NamedTuple):
    """From byte `first` to byte `last`; without `first`, the last `last` bytes."""

    first: int | None
    last: int | None

    def within(self, size: int) -> tuple[int, int]:
        """The start and the end in a file of this size; the range is empty if the end is not after the start."""
        if self.first is None:
            return max(0, size - (self.last or 0)), size
        return self.first, size if self.last is None else min(size, self.last + 1)


@dataclass(slots=True)
class Call:
    """One call of an operation.

    `key` is the Idempotency-Key; `base_url` gives the URL at which the caller reaches the server; `fields` are those
    fields of a form that came in the query.
    """

    context: OperationContext
    tenant: str
    session_id: str = ""
    process_id: str = ""
    context_id: str = ""
    execution_id: str = ""
    artifact_id: str = ""
    snapshot: str = ""
    volume: str = ""
    port: str = ""
    kind: str = ""
    entry: str = ""
    key: str = ""
    base_url: Callable[[], str] = lambda: "/"
    byte_range: ByteRange | None = None
    last_event_id: str = ""
    content_type: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    _use: SandboxUse | None = None

    @property
    def sessions(self) -> Sessions:
        return self.context.sessions

    @property
    def artifacts(self) -> Artifacts:
        if self.context.artifacts is None:
            raise InvalidRequest("this server keeps no artifacts")
        return self.context.artifacts

    @property
    def snapshots(self) -> Snapshots:
        if self.context.snapshots is None:
            raise InvalidRequest("this server keeps no snapshots")
        return self.context.snapshots

    @property
    def logs(self) -> SessionLogs:
        if self.context.logs is None:
            raise InvalidRequest("this server keeps no logs of sessions")
        return self.context.logs

    @property
    def session(self) -> Session:
        assert self._use is not None, "the operation's row has no `in_sandbox`"
        return self._use.session

    @property
    def sandbox(self) -> Sandbox:
        assert self._use is not None, "the operation's row has no `in_sandbox`"
        return self._use.sandbox

    def check_streamable(self) -> None:
        """Raises InvalidRequest if the call has an Idempotency-Key: a stream is not kept to be repeated."""
        if self.key:
            raise InvalidRequest("a stream cannot be repeated", remedy="leave out the Idempotency-Key, or the stream")

    def using(self, *, counts: bool = True, wakes: bool = True) -> SandboxUse:
        """Gives the call `session` and `sandbox` for the time of an `async with` block. Without `wakes` a session that
        is paused stays so: nothing that runs in the sandbox may be asked for then."""
        self._use = SandboxUse(self.context.sessions.uses, self.tenant, self.session_id, counts, wakes)
        return self._use


class OperationReply(NamedTuple):
    """A result with another status than the operation's row has, or with headers."""

    values: Values
    status: int
    headers: Mapping[str, str] = {}


class BytesHead(NamedTuple):
    """Comes before the bytes of an answer: the size of the whole file, if known, and the range that follows. Headers
    and a media type that the answer has beside those of its handler."""

    size: int | None = None
    start: int = 0
    end: int | None = None
    headers: Mapping[str, str] = {}
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class Handler:
    """`run` performs the operation, `stream` yields its events or bytes. `result` and what follows only document it."""

    name: str
    run: Callable[..., Any] | None = None
    stream: Callable[..., AsyncGenerator[Any, None]] | None = None
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    result: type[BaseModel] | None = None
    other_results: Mapping[int | str, Mapping[str, Any]] = field(default_factory=dict)
    headers: tuple[str, ...] = ()
    media_type: str = "application/octet-stream"
    body_schema: Mapping[str, Any] | None = None
    body_examples: Mapping[str, Any] | None = None

    @property
    def operation(self) -> Operation:
        return OPERATIONS[self.name]

    @property
    def description(self) -> str:
        return inspect.getdoc(self.run or self.stream) or ""


async def perform(handler: Handler, call: Call, *arguments: Any) -> Any:
    assert handler.run is not None
    operation = handler.operation
    if operation.audited:
        _note_arguments(operation, arguments)
    if not operation.in_sandbox:
        return await handler.run(call, *arguments)
    async with call.using(counts=operation.counts):
        return await handler.run(call, *arguments)


async def perform_stream(handler: Handler, call: Call, *arguments: Any) -> AsyncGenerator[Any, None]:
    assert handler.stream is not None
    operation = handler.operation
    if operation.audited:
        _note_arguments(operation, arguments)
    use: Any = call.using(counts=operation.counts) if operation.in_sandbox else contextlib.nullcontext()
    async with use:
        source = handler.stream(call, *arguments)
        try:
            async for item in source:
                yield item
        finally:
            await close_source(source)


def _note_arguments(operation: Operation, arguments: tuple[Any, ...]) -> None:
    note(**{shown: getattr(arguments[0], name) for name, shown in operation.audited})
