"""Warren as a workspace of Pydantic AI: `Agent(..., capabilities=[WarrenWorkspace()])`.

Each new conversation gets a session of its own with the first use of `ctx.workspace`, and goes on in it as long as its
message history is passed on. As Pydantic AI asks of workspaces, no run ends a session: `destroy(ref)` does, or its
time-outs. `agent.run(..., workspace=backend)` takes a `WarrenBackend`, which is one session; leaving `async with` ends
it.
"""

import asyncio
import posixpath
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Self, Unpack

from warren.integrations.extras import missing_package

try:
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import WorkspaceRef
    from pydantic_ai.tools import RunContext
    from pydantic_ai.workspaces import (
        CommandResult,
        FileEntry,
        SupportsCommands,
        SupportsFilesystem,
        WorkspaceBackend,
        WorkspaceCommand,
        WorkspaceOutputLimitError,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "pydantic-ai") from None

from warren.integrations.connections import Connections
from warren.integrations.framework_errors import GONE, file_errors
from warren.integrations.reports import describe_command
from warren.model.errors import FileNotFound, FileProblem, InvalidPath, NotADirectory
from warren.sdk import results
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.options import SandboxOptions

PROVIDER: Final = "warren"
MAX_OUTPUT_BYTES: Final = 10 * 1024 * 1024
_PREVIEW_CHARS: Final = 64 * 1024


class WarrenWorkspace(AbstractCapability[Any]):
    """Gives runs a sandbox of Warren as their workspace.

    Takes the options of SandboxClient. `working_dir` is where commands start, by default the sandbox's own.
    """

    id: str | None = "warren_workspace"

    def __init__(self, server_url: str = "", *, working_dir: str = "", **options: Unpack[SandboxOptions]) -> None:
        self._options: dict[str, Any] = {"server_url": server_url, "working_dir": working_dir, **options}
        self._connections = _connections(server_url, options)

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        return capabilities[-1]  # it takes the place of the others, as one of Pydantic AI's own does

    def backend(self, ref: WorkspaceRef | None = None) -> "WarrenBackend":
        """Returns the session that `ref` names, or a new one, as a backend."""
        return WarrenBackend(ref=ref, connections=self._connections, **self._options)

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        return None if ref is not None and ref.provider != PROVIDER else self.backend(ref)

    async def destroy(self, ref: WorkspaceRef) -> None:
        """Ends a session; does nothing if it has ended."""
        await self.backend(ref).destroy()


class WarrenBackend(WorkspaceBackend, SupportsCommands, SupportsFilesystem):
    """One session of Warren: a new one with the first use, the one that `ref` names, or the one of `client`.

    `async with` makes the session, and ends it if it was made here.
    """

    def __init__(
        self,
        server_url: str = "",
        *,
        ref: WorkspaceRef | None = None,
        client: AsyncSandboxClient | None = None,
        connections: Connections | None = None,
        working_dir: str = "",
        **options: Unpack[SandboxOptions],
    ) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"the workspace is one of {ref.provider!r}, not of {PROVIDER!r}")
        self._connections = connections or _connections(server_url, options)
        self._owns_connections = connections is None
        self._options: dict[str, Any] = {**options, "server_url": server_url}
        self._client, self._is_ours = client, client is None and ref is None
        self._ref = ref or _ref_of(client)
        self._creating: asyncio.Task[Any] | None = None
        self._working_dir, self._resolved_working_dir = working_dir, ""

    def __repr__(self) -> str:
        return f"<WarrenBackend {self._ref.id if self._ref else 'without a session'}>"

    # -- the session

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def client(self) -> AsyncSandboxClient:
        """Returns the client of the session, which is made now if there is none."""
        if self._ref is not None and self._client is not None:
            if not self._client.session_id:
                raise WorkspaceUnavailableError(f"the session {self._ref.id} has ended")
            return self._client
        if self._creating is None or self._creating.done():
            self._creating = asyncio.create_task(self._open())
        # Who is cancelled meanwhile leaves a session that `ref` names.
        await asyncio.shield(self._creating)
        assert self._client is not None
        return self._client

    async def _open(self) -> None:
        if self._client is None:
            session_id = self._ref.id if self._ref is not None else ""
            backend = await self._connections.aio()
            self._client = AsyncSandboxClient(session_id=session_id, backend=backend, **self._options)
        if self._ref is None:
            await self._client.create_session()
            self._ref = _ref_of(self._client)

    async def destroy(self) -> None:
        """Ends the session, whoever made it; does nothing if it has ended, or was never made."""
        if self._creating is not None:
            await asyncio.wait([self._creating])
        try:
            if self._ref is not None:
                with suppress(WorkspaceUnavailableError, *GONE):
                    await (await self.client()).cleanup()
            elif self._client is not None:
                await self._client.leave()  # its making was interrupted
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections that this object made itself; the session stays."""
        if self._owns_connections:
            await self._connections.aclose()

    async def __aenter__(self) -> Self:
        try:
            await self.client()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await (self.destroy() if self._is_ours else self.aclose())

    # -- commands

    async def working_dir(self) -> str:
        if not self._resolved_working_dir:
            with _errors(self._working_dir):
                client = await self.client()
                self._resolved_working_dir = await client.realpath(self._working_dir or ".")
        return self._resolved_working_dir

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        _check_command(command, shell, timeout)
        client = await self.client()
        with _errors(self._working_dir):
            result = await client.execute(
                command,
                timeout or 0,
                cwd=self._working_dir,
                env=env,
                carry_state=False,
                keep_bytes=MAX_OUTPUT_BYTES,
            )
        if result.reason == "sandbox_lost":
            raise WorkspaceUnavailableError("the sandbox was lost while the command ran")
        if result.reason == "timeout":
            said = describe_command(results.ExecuteResult(result.exit_code, reason="timeout"), timeout or 0, None).text
            raise WorkspaceTimeoutError(said.strip(), stdout=result.stdout, stderr=result.stderr)
        if result.truncated:
            raise WorkspaceOutputLimitError(
                f"the command wrote more than {MAX_OUTPUT_BYTES} bytes: let it write to a file, and read parts of that",
                limit=MAX_OUTPUT_BYTES,
                stdout=result.stdout[:_PREVIEW_CHARS],
                stderr=result.stderr[:_PREVIEW_CHARS],
            )
        stdout, stderr = (each.decode(errors="replace") for each in (result.stdout_bytes, result.stderr_bytes))
        return CommandResult(exit_code=result.exit_code, stdout=stdout, stderr=stderr)

    # -- files

    async def read_bytes(self, path: str) -> bytes:
        with _errors(path):
            return await (await self.client()).read_file(path)

    async def write_bytes(self, path: str, data: bytes) -> None:
        with _errors(path):
            await (await self.client()).write_file(path, data)

    async def stat(self, path: str) -> FileEntry:
        with _errors(path):
            client = await self.client()
            found = await client.stat(path)
            target = await client.stat(await client.realpath(path)) if found.kind == "symlink" else found
        return _entry(path, target)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        with _errors(path):
            client = await self.client()
            found = sorted(await client.list_files(path), key=lambda each: each.name)
        return [_entry(each.path, await _follow(client, each)) for each in found]

    async def make_dir(self, path: str) -> None:
        with _errors(path):
            await (await self.client()).mkdir(path, exist_ok=True)

    async def remove(self, path: str) -> None:
        working_dir = await self.working_dir()
        with _errors(path):
            client = await self.client()
            if (await client.stat(path)).kind != "symlink":
                real = await client.realpath(path)
                if posixpath.commonpath([real, working_dir]) == real:
                    raise ValueError(f"{path} has the working directory in it, which cannot be removed")
            await client.remove(path, recursive=True)

    async def exists(self, path: str) -> bool:
        with _errors(path), suppress(FileNotFound, NotADirectory, InvalidPath):
            await (await self.client()).realpath(path)
            return True
        return False


def _connections(server_url: str, options: SandboxOptions) -> Connections:
    return Connections(options.get("mode", "remote"), server_url, options.get("api_key"))


def _ref_of(client: AsyncSandboxClient | None) -> WorkspaceRef | None:
    return WorkspaceRef(provider=PROVIDER, id=client.session_id) if client is not None and client.session_id else None


def _check_command(command: WorkspaceCommand, shell: bool, timeout: float | None) -> None:
    if isinstance(command, str) != shell:
        raise TypeError("a text is run with shell=True, and a list of texts without")
    if timeout is not None and not 0 < timeout < float("inf"):
        raise ValueError(f"the time-out is {timeout}, it must be a positive number of seconds, or None")


async def _follow(client: AsyncSandboxClient, found: results.FileEntry) -> results.FileEntry:
    """Returns what a link leads to; the link itself if that is nowhere."""
    if found.kind != "symlink":
        return found
    try:
        return await client.stat(await client.realpath(found.path))
    except (FileNotFound, FileProblem, InvalidPath):
        return found


def _entry(path: str, target: results.FileEntry) -> FileEntry:
    size = target.size if target.kind == "file" else None
    return FileEntry(name=posixpath.basename(posixpath.normpath(path)), path=path, is_dir=target.is_dir, size=size)


def _errors(path: str) -> AbstractContextManager[None]:
    return file_errors(path, WorkspaceUnavailableError)
