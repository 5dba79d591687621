"""Sandboxes as backends of deepagents.

`WarrenSandbox` is one session. `ThreadSandbox` is one backend for all conversations: each call goes to the sandbox of
the LangGraph thread that makes it; the first call makes the sandbox.

No call raises because of the sandbox, because deepagents would end the agent's run: the result describes the error.
"""

from collections.abc import Mapping
from typing import Any, Final, Unpack

from warren.integrations.extras import missing_package

try:
    from deepagents.backends import protocol
    from deepagents.backends.protocol import (
        EditResult,
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )
    from deepagents.backends.sandbox import BaseSandbox
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "langchain") from None

from warren.integrations.agents import AgentConfig
from warren.integrations.aio import commands as async_commands
from warren.integrations.aio import deepagents_files as async_files
from warren.integrations.blocking import commands, deepagents_files
from warren.integrations.blocking.agents import load_agent
from warren.integrations.reports import CommandReport
from warren.integrations.threads import ClientPair, ThreadClients, current_thread
from warren.model.errors import InvalidRequest
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.options import SandboxOptions

COMMAND_TIMEOUT_S: Final = 30 * 60
_SKIPPED_DIRECTORIES: Final = (".git",)


class _Backend(BaseSandbox):
    """Each operation is a function of a client: of the blocking one, or of the async one for the method with an `a`."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    def _pair(self) -> ClientPair:
        raise NotImplementedError

    @property
    def id(self) -> str:
        raise NotImplementedError

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return _execute_response(self._pair().run(commands.run_command, command, self._limit_s(timeout)))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return _execute_response(await self._pair().arun(async_commands.run_command, command, self._limit_s(timeout)))

    def _limit_s(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    def ls(self, path: str) -> LsResult:
        return self._pair().run(deepagents_files.ls, path)

    async def als(self, path: str) -> LsResult:
        return await self._pair().arun(async_files.ls, path)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return self._pair().run(deepagents_files.read, file_path, offset, limit)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await self._pair().arun(async_files.read, file_path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        return self._pair().run(deepagents_files.write, file_path, content)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return await self._pair().arun(async_files.write, file_path, content)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return self._pair().run(deepagents_files.edit, file_path, old_string, new_string, replace_all)

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return await self._pair().arun(async_files.edit, file_path, old_string, new_string, replace_all)

    def delete(self, file_path: str) -> Any:
        return _delete_result(file_path, self._pair().run(deepagents_files.delete, file_path))

    async def adelete(self, file_path: str) -> Any:
        return _delete_result(file_path, await self._pair().arun(async_files.delete, file_path))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return self._pair().run(deepagents_files.grep, pattern, path, glob, max_count, self._skipped_directories())

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return await self._pair().arun(async_files.grep, pattern, path, glob, max_count, self._skipped_directories())

    def _skipped_directories(self) -> tuple[str, ...]:
        return getattr(self, "grep_exclude_dirs", _SKIPPED_DIRECTORIES)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        return self._pair().run(deepagents_files.glob, pattern, path)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        return await self._pair().arun(async_files.glob, pattern, path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self._pair().run(deepagents_files.upload, files)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self._pair().arun(async_files.upload, files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self._pair().run(deepagents_files.download, paths)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await self._pair().arun(async_files.download, paths)


def agent_for(
    agent: AgentConfig,
    model: Any,
    server_url: str = "",
    *,
    variables: Mapping[str, str] | None = None,
    sandbox: "ThreadSandbox | None" = None,
    **options: Any,
) -> Any:
    """Returns a deep agent made of the registry's: its prompt with these variables, its tools, a sandbox for each
    thread that is made as the agent says.

    `agent` is the agent's name, or an agent as the registry has them. `options` are those of `create_deep_agent`; tools
    given there come behind the agent's.
    """
    from deepagents import create_deep_agent

    from warren.integrations.langgraph_tools import tools_for

    backend = sandbox or ThreadSandbox(server_url, agent_config=agent)
    text = load_agent(backend.clients.connections.blocking(), agent).render_prompt(variables)
    tools = [*tools_for(agent, clients=backend.clients, standard=False), *options.pop("tools", ())]
    prompt = {"system_prompt": text} if text else {}
    return create_deep_agent(model=model, tools=tools, backend=backend, **{**prompt, **options})


class WarrenSandbox(_Backend):
    """One session as a backend.

    `client` is a SandboxClient or an AsyncSandboxClient; the other kind is made like it, so both ways of calling work.
    The session belongs to the client; whoever made the client ends it. `timeout` is for commands without one.
    """

    def __init__(self, *, client: SandboxClient | AsyncSandboxClient, timeout: float = COMMAND_TIMEOUT_S) -> None:
        super().__init__(timeout)
        self._only_pair = ClientPair.of(client)

    def __repr__(self) -> str:
        return f"<WarrenSandbox {self.id}>"

    def _pair(self) -> ClientPair:
        return self._only_pair

    @property
    def id(self) -> str:
        """The session's id, or "no-session-yet"."""
        return self._only_pair.session_id or "no-session-yet"

    def close(self) -> None:
        """Closes the connections that this object made itself; the client stays open."""
        self._only_pair.connections.close()

    async def aclose(self) -> None:
        await self._only_pair.connections.aclose()


class ThreadSandbox(_Backend):
    """One backend for all threads, each with a sandbox of its own.

    Takes the options of SandboxClient, but no thread and no session. Outside of a run, or in a run without a thread
    id, it raises InvalidRequest, which says what to do.
    """

    def __init__(
        self, server_url: str = "", *, timeout: float = COMMAND_TIMEOUT_S, **options: Unpack[SandboxOptions]
    ) -> None:
        super().__init__(timeout)
        self.clients = ThreadClients(server_url, **options)

    def __repr__(self) -> str:
        return f"<ThreadSandbox {self.clients!r}>"

    def _pair(self) -> ClientPair:
        return self.clients.pair()

    @property
    def id(self) -> str:
        """The session id of the running thread, or the thread's id while it has no session."""
        try:
            thread_id = current_thread()
        except InvalidRequest:
            return "threads"
        return self.clients.pair(thread_id).session_id or thread_id

    def delete_thread(self, thread_id: str) -> None:
        """Ends the sandbox of a thread, as a checkpointer's delete_thread ends its history."""
        self.clients.delete(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        await self.clients.adelete(thread_id)

    def close(self) -> None:
        """Closes connections; the sandboxes stay."""
        self.clients.connections.close()

    async def aclose(self) -> None:
        await self.clients.connections.aclose()


def _execute_response(report: CommandReport) -> ExecuteResponse:
    return ExecuteResponse(output=report.text, exit_code=report.exit_code, truncated=report.truncated)


def _delete_result(path: str, error: str | None) -> Any:
    kind = protocol.DeleteResult
    return kind(path=path) if error is None else kind(error=error)
