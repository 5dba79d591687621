"""Sandboxes as backends of deepagents.

`WarrenSandbox` is one session. `ThreadSandbox` is one backend for all conversations: each call goes to the sandbox of
the LangGraph thread it is made in, which is made with the first call.

No call raises because of the sandbox: deepagents would end the agent's run. What went wrong is in the result.
"""

from typing import Any, Final

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

from warren.integrations import deepagents_files as in_files
from warren.integrations import deepagents_search as search
from warren.integrations.answers import ToolAnswer, run_command
from warren.integrations.threads import Pair, ThreadClients, current_thread
from warren.model.errors import InvalidRequest
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient

COMMAND_TIMEOUT_S: Final = 30 * 60
_SKIPPED: Final = (".git",)


class _Backend(BaseSandbox):
    """Every operation is a plan; the blocking and the async method of a pair run the same one."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    def _pair(self) -> Pair:
        raise NotImplementedError

    @property
    def id(self) -> str:
        raise NotImplementedError

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return _response(self._pair().run(run_command(command, self._limit(timeout))))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return _response(await self._pair().arun(run_command(command, self._limit(timeout))))

    def _limit(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    def ls(self, path: str) -> LsResult:
        return self._pair().run(in_files.ls(path))

    async def als(self, path: str) -> LsResult:
        return await self._pair().arun(in_files.ls(path))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return self._pair().run(in_files.read(file_path, offset, limit))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await self._pair().arun(in_files.read(file_path, offset, limit))

    def write(self, file_path: str, content: str) -> WriteResult:
        return self._pair().run(in_files.write(file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return await self._pair().arun(in_files.write(file_path, content))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return self._pair().run(in_files.edit(file_path, old_string, new_string, replace_all))

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return await self._pair().arun(in_files.edit(file_path, old_string, new_string, replace_all))

    def delete(self, file_path: str) -> Any:
        return _deleted(file_path, self._pair().run(in_files.delete(file_path)))

    async def adelete(self, file_path: str) -> Any:
        return _deleted(file_path, await self._pair().arun(in_files.delete(file_path)))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return self._pair().run(search.grep(pattern, path, glob, max_count, self._skipped()))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        return await self._pair().arun(search.grep(pattern, path, glob, max_count, self._skipped()))

    def _skipped(self) -> tuple[str, ...]:
        return getattr(self, "grep_exclude_dirs", _SKIPPED)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        return self._pair().run(search.glob(pattern, path))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        return await self._pair().arun(search.glob(pattern, path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self._pair().run(in_files.upload(files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self._pair().arun(in_files.upload(files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self._pair().run(in_files.download(paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await self._pair().arun(in_files.download(paths))


class WarrenSandbox(_Backend):
    """One session as a backend.

    `client` is a SandboxClient or an AsyncSandboxClient; the other kind is made like it, so both ways of calling work.
    The session is the client's: ending it is up to whoever made the client. `timeout` is for commands that bring none.
    """

    def __init__(self, *, client: SandboxClient | AsyncSandboxClient, timeout: float = COMMAND_TIMEOUT_S) -> None:
        super().__init__(timeout)
        self._only = Pair.of(client)

    def __repr__(self) -> str:
        return f"<WarrenSandbox {self.id}>"

    def _pair(self) -> Pair:
        return self._only

    @property
    def id(self) -> str:
        """The session's id; without a session yet, a name that says so."""
        return self._only.session_id or "no-session-yet"

    def close(self) -> None:
        """Lets go of connections that this made itself; the client is not touched."""
        self._only.links.close()

    async def aclose(self) -> None:
        await self._only.links.aclose()


class ThreadSandbox(_Backend):
    """One backend for all threads, each with a sandbox of its own.

    Takes what SandboxClient takes, but no thread and no session. Outside of a run, or in one without a thread id, it
    raises InvalidRequest, which says what to do.
    """

    def __init__(self, server_url: str = "", *, timeout: float = COMMAND_TIMEOUT_S, **options: Any) -> None:
        super().__init__(timeout)
        self.clients = ThreadClients(server_url, **options)

    def __repr__(self) -> str:
        return f"<ThreadSandbox {self.clients!r}>"

    def _pair(self) -> Pair:
        return self.clients.pair()

    @property
    def id(self) -> str:
        """The session's id of the running thread, or the thread's id while it has none."""
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
        """Lets go of connections; the sandboxes stay."""
        self.clients.links.close()

    async def aclose(self) -> None:
        await self.clients.links.aclose()


def _response(answer: ToolAnswer) -> ExecuteResponse:
    return ExecuteResponse(output=answer.text, exit_code=answer.exit_code, truncated=answer.truncated)


def _deleted(path: str, error: str | None) -> Any:
    kind = protocol.DeleteResult
    return kind(path=path) if error is None else kind(error=error)
