"""A sandbox as its agent shows it: interfaces/sandbox.py over one AgentLink."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence

from warren.interfaces.sandbox import Process
from warren.model.operations import (
    Command,
    ExecResult,
    FileEvent,
    FileInfo,
    ProcessInfo,
    Search,
    SearchMatch,
    SearchSummary,
)
from warren.model.spec import Isolation
from warren.worker.agent.files import Files
from warren.worker.agent.link import AgentLink
from warren.worker.agent.process import Commands
from warren.worker.agent.wire import Ask


class AgentSandbox:
    """`oom_kills` counts the processes the kernel killed here for want of memory; `why_lost` says what became of it.

    `watch` begins to watch when it is first iterated, and everything from the agent's word that it
    watches on is reported, however late it is taken (or an OVERFLOW says that some was lost).
    """

    def __init__(
        self,
        sandbox_id: str,
        link: AgentLink,
        isolation: Isolation,
        *,
        env: Mapping[str, str],
        oom_kills: Callable[[], int],
        why_lost: Callable[[], str],
    ) -> None:
        self._id = sandbox_id
        self._link = link
        self._isolation = isolation
        self._commands = Commands(link, env, oom_kills)
        self._files = Files(link)
        link.why_lost = why_lost

    def __repr__(self) -> str:
        return f"<AgentSandbox {self._id} {self._link!r}>"

    @property
    def id(self) -> str:
        return self._id

    @property
    def isolation(self) -> Isolation:
        return self._isolation

    async def exec(
        self, command: Command, stdin: bytes | AsyncIterable[bytes] = b"", *, process_id: str = ""
    ) -> ExecResult:
        return await self._commands.exec(command, stdin, process_id)

    async def start(self, command: Command, *, process_id: str = "", follow: bool = False) -> Process:
        return await self._commands.start(command, process_id, follow=follow)

    async def process(self, process_id: str) -> Process:
        return await self._commands.find(process_id)

    async def processes(self) -> Sequence[ProcessInfo]:
        return await self._commands.all()

    async def forget(self, process_id: str) -> None:
        await self._commands.forget(process_id)

    def read(self, path: str, *, offset: int = 0, length: int | None = None, user: str = "") -> AsyncIterator[bytes]:
        return self._files.read(path, offset, length, user)

    async def write(
        self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int | None = None, user: str = ""
    ) -> FileInfo:
        return await self._files.write(path, data, mode, user)

    async def list(self, path: str, *, depth: int = 1, user: str = "") -> Sequence[FileInfo]:
        return await self._files.list(path, depth, user)

    async def stat(self, path: str, *, user: str = "") -> FileInfo:
        return await self._files.stat(path, user)

    async def mkdir(self, path: str, *, mode: int = 0o755, user: str = "") -> None:
        await self._files.mkdir(path, mode, user)

    async def remove(self, path: str, *, recursive: bool = False, user: str = "") -> None:
        await self._files.remove(path, recursive, user)

    async def rename(self, source: str, target: str, *, user: str = "") -> None:
        await self._files.rename(source, target, user)

    def pack(self, path: str, *, user: str = "") -> AsyncIterator[bytes]:
        return self._files.pack(path, user)

    async def unpack(self, path: str, tar: bytes | AsyncIterable[bytes], *, user: str = "") -> int:
        return await self._files.unpack(path, tar, user)

    def watch(self, path: str, *, recursive: bool = False, user: str = "") -> AsyncIterator[FileEvent]:
        return self._files.watch(path, recursive, user)

    def search(self, query: Search) -> AsyncIterator[SearchMatch | SearchSummary]:
        return self._files.search(query)

    async def ping(self) -> None:
        channel = await self._link.open(Ask.PING)
        try:
            await channel.last()
        finally:
            channel.close()

    def when_lost(self, call: Callable[[str], None]) -> None:
        self._link.when_lost(call)

    async def close(self) -> None:
        await self._link.close()
