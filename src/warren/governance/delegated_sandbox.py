"""A session's sandbox with everything passed on to the sandbox itself; file operations have spans in a trace.

`MeteredSandbox` builds on it, and decides about commands.
"""

import socket
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from warren.interfaces.sandbox import FileWatch, Process, Sandbox
from warren.kernel.tracing import Span, is_traced, traced
from warren.model.metrics import SandboxMetrics
from warren.model.network import EgressBound, ListeningPort, NetworkRules, NetworkUse
from warren.model.operations import FileInfo, ProcessStatus, Search, SearchMatch, SearchTotals
from warren.model.secrets import BoundSecret
from warren.model.session import Session
from warren.model.spec import Isolation
from warren.sessions.output_events import close_source

T = TypeVar("T")


class TracedFiles:
    """The file operations of a sandbox. In a trace each has a span; that of a stream lasts until its end."""

    __slots__ = ("_sandbox", "_session")

    def __init__(self, session: Session, sandbox: Sandbox) -> None:
        self._session = session
        self._sandbox = sandbox

    def read(self, path: str, *, offset: int = 0, length: int | None = None, user: str = "") -> AsyncIterator[bytes]:
        return self._stream("read", self._sandbox.read(path, offset=offset, length=length, user=user))

    async def write(
        self,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        user: str = "",
        in_place: bool = False,
        metadata: Mapping[str, str] | None = None,
        owner: str = "",
    ) -> FileInfo:
        work = self._sandbox.write(path, data, mode=mode, user=user, in_place=in_place, metadata=metadata, owner=owner)
        return await self._call("write", work)

    async def list(self, path: str, *, depth: int = 1, user: str = "", details: bool = False) -> Sequence[FileInfo]:
        return await self._call("list", self._sandbox.list(path, depth=depth, user=user, details=details))

    def entries(self, path: str, *, depth: int = 1, user: str = "", details: bool = False) -> AsyncIterator[FileInfo]:
        return self._stream("entries", self._sandbox.entries(path, depth=depth, user=user, details=details))

    async def stat(self, path: str, *, user: str = "", details: bool = False) -> FileInfo:
        return await self._call("stat", self._sandbox.stat(path, user=user, details=details))

    async def mkdir(self, path: str, *, mode: int = 0o755, user: str = "", owner: str = "") -> None:
        await self._call("mkdir", self._sandbox.mkdir(path, mode=mode, user=user, owner=owner))

    async def remove(self, path: str, *, recursive: bool = False, user: str = "") -> None:
        await self._call("remove", self._sandbox.remove(path, recursive=recursive, user=user))

    async def rename(self, source: str, target: str, *, user: str = "") -> None:
        await self._call("rename", self._sandbox.rename(source, target, user=user))

    def pack(self, path: str, *, user: str = "") -> AsyncIterator[bytes]:
        return self._stream("pack", self._sandbox.pack(path, user=user))

    async def unpack(self, path: str, tar: bytes | AsyncIterable[bytes], *, user: str = "") -> int:
        return await self._call("unpack", self._sandbox.unpack(path, tar, user=user))

    def search(self, query: Search) -> AsyncIterator[SearchMatch | SearchTotals]:
        return self._stream("search", self._sandbox.search(query))

    def watch(self, path: str, *, recursive: bool = False, user: str = "", attributes: bool = False) -> FileWatch:
        return self._sandbox.watch(path, recursive=recursive, user=user, attributes=attributes)

    def _span(self, name: str) -> Span:
        return traced(name, session=self._session.id, environment=self._session.environment)

    async def _call(self, operation: str, work: Awaitable[T]) -> T:
        if not is_traced():
            return await work
        with self._span("file") as span:
            span.note(operation=operation)
            return await work

    def _stream(self, operation: str, source: AsyncIterator[T]) -> AsyncIterator[T]:
        if not is_traced():
            return source
        span = self._span("file")
        span.note(operation=operation)
        return _traced_stream(span, source)


class DelegatedSandbox(TracedFiles):
    """Passes on everything to the sandbox but `exec` and `start`."""

    __slots__ = ()

    @property
    def id(self) -> str:
        return self._sandbox.id

    @property
    def isolation(self) -> Isolation:
        return self._sandbox.isolation

    async def process(self, process_id: str) -> Process:
        return await self._sandbox.process(process_id)

    async def processes(self) -> Sequence[ProcessStatus]:
        return await self._sandbox.processes()

    async def forget(self, process_id: str) -> None:
        await self._sandbox.forget(process_id)

    async def kill_all(self) -> int:
        return await self._sandbox.kill_all()

    async def set_network(
        self, rules: NetworkRules, secrets: Sequence[BoundSecret] = (), bounds: Sequence[EgressBound] = ()
    ) -> None:
        await self._sandbox.set_network(rules, secrets, bounds)

    async def network_use(self) -> NetworkUse:
        return await self._sandbox.network_use()

    async def ports(self) -> Sequence[ListeningPort]:
        return await self._sandbox.ports()

    async def dial(self, port: int) -> socket.socket:
        return await self._sandbox.dial(port)

    async def metrics(self) -> SandboxMetrics:
        return await self._sandbox.metrics()

    async def ping(self) -> None:
        await self._sandbox.ping()

    def note_pause(self, paused_s: float) -> None:
        self._sandbox.note_pause(paused_s)

    def is_frozen(self) -> bool:
        return self._sandbox.is_frozen()

    def when_lost(self, call: Callable[[str], None]) -> None:
        self._sandbox.when_lost(call)

    async def close(self) -> None:
        await self._sandbox.close()


async def _traced_stream(span: Span, source: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """The span begins with the first piece that is asked for."""
    span.start()
    try:
        async for piece in source:
            yield piece
    except GeneratorExit:  # the reader has enough, which is no error for the span to tell
        raise
    except BaseException as exc:
        span.end(exc)
        raise
    finally:
        await close_source(source)
        span.end()
