"""Warren as a sandbox of Strands Agents: `Agent(sandbox=WarrenSandbox())`.

The first use makes a session. Strands does not say when it has finished, so the program does: leaving `with` or
`async with` ends the session, or `close`. `session_id` works in a session that exists; whoever made it ends it. The
agent gets the tools `sandbox_shell` and `sandbox_file_editor`.
"""

import asyncio
import posixpath
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Self, Unpack

from warren.integrations.extras import missing_package

try:
    from strands.sandbox import LANGUAGE_PATTERN, ExecutionResult, FileInfo, Sandbox, StreamChunk
    from strands.sandbox.constants import ENV_KEY_PATTERN
    from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
    from strands.types.tools import AgentTool
    from strands.vended_tools.file_editor import make_file_editor
    from strands.vended_tools.file_editor.file_editor import DEFAULT_FILE_EDITOR_DESCRIPTION
    from strands.vended_tools.shell import make_shell
    from strands.vended_tools.shell.types import SANDBOX_SHELL_DESCRIPTION
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "strands") from None

from warren.integrations.connections import Connections
from warren.integrations.framework_errors import file_errors
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.options import SandboxOptions
from warren.sdk.results import ExecuteResult

_TURN_S = 0.02


class WarrenSandbox(Sandbox):
    """One session of Warren; takes the options of SandboxClient.

    `working_dir` is where commands start and relative paths begin, by default the sandbox's own. An agent that is
    called without `await` has an event loop for each call, so each call has a client, and all share the session.
    """

    def __init__(
        self, server_url: str = "", *, session_id: str = "", working_dir: str = "", **options: Unpack[SandboxOptions]
    ) -> None:
        self.session_id, self.working_dir = session_id, working_dir
        self._is_ours, self._ended = not session_id, False
        self._options: dict[str, Any] = {**options, "server_url": server_url}
        mode, api_key = options.get("mode", "remote"), options.get("api_key")
        self._where: dict[str, Any] = {"server_url": server_url, "mode": mode, "api_key": api_key}
        self._connections = Connections(mode, server_url, api_key)
        self._creating = threading.Lock()

    def __repr__(self) -> str:
        return f"<WarrenSandbox {self.session_id or 'without a session'}>"

    # -- the session

    async def client(self) -> AsyncSandboxClient:
        """Returns a client of the session, which is made now if there is none; for ports, snapshots and terminals."""
        backend = await self._connections.aio()
        if not self.session_id:
            await self._create(AsyncSandboxClient(**self._options, backend=backend))
        return AsyncSandboxClient(session_id=self.session_id, backend=backend, **self._options)

    async def _create(self, client: AsyncSandboxClient) -> None:
        while not self._creating.acquire(blocking=False):  # noqa: ASYNC110  # an event belongs to one event loop
            await asyncio.sleep(_TURN_S)
        try:
            if self._ended:
                raise ConnectionError("this sandbox was closed: make another one")
            if not self.session_id:
                self.session_id = (await client.create_session()).session_id
        except BaseException:
            await asyncio.shield(client.leave())
            raise
        finally:
            self._creating.release()

    def close(self) -> None:
        """Ends the session if it was made here."""
        session_id, self._ended = self._take_session(), True
        if session_id:
            with SandboxClient.attach(session_id, **self._where) as client:
                client.cleanup()

    async def aclose(self) -> None:
        session_id, self._ended = self._take_session(), True
        if session_id:
            async with AsyncSandboxClient.attach(session_id, **self._where) as client:
                await client.cleanup()
        await self._connections.aclose()

    def _take_session(self) -> str:
        return self.session_id if self._is_ours and not self._ended else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    # -- commands

    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        async with aclosing(self._stream(command, "", timeout, cwd, env)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def execute_code_streaming(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Runs code in a fresh process of the interpreter `language`, such as python3 or node."""
        if not LANGUAGE_PATTERN.fullmatch(language):
            raise ValueError(f"{language!r} is not the name of an interpreter")
        async with aclosing(self._stream([language], code, timeout, cwd, env)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _stream(
        self, command: str | list[str], stdin: str, timeout: float | None, cwd: str | None, env: dict[str, str] | None
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"the time-out is {timeout}, it must be positive, or None")
        for name in env or {}:
            if not ENV_KEY_PATTERN.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a variable")
        ended: list[ExecuteResult] = []
        texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        with file_errors(cwd or self.working_dir):
            stream = (await self.client()).stream(
                command,
                timeout or 0,
                stdin=stdin,
                on_result=ended.append,
                cwd=posixpath.join(self.working_dir, cwd or ""),
                env=env,
                carry_state=False,
            )
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    texts[chunk.stream].append(chunk.text)
                    yield StreamChunk(data=chunk.text, stream_type="stderr" if chunk.stream == "stderr" else "stdout")
        [result] = ended
        stdout, stderr = ("".join(texts[name]) for name in ("stdout", "stderr"))
        if result.reason == "sandbox_lost":
            raise ConnectionError("the sandbox was lost while the command ran")
        if result.reason == "timeout":
            raise SandboxTimeoutError(timeout, stdout, stderr)
        yield ExecutionResult(exit_code=result.exit_code, stdout=stdout, stderr=stderr)

    # -- files

    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        with file_errors(path):
            return await (await self.client()).read_file(self._path(path))

    async def write_file(self, path: str, content: bytes, **kwargs: Any) -> None:
        with file_errors(path):
            await (await self.client()).write_file(self._path(path), content)

    async def remove_file(self, path: str, **kwargs: Any) -> None:
        with file_errors(path):
            await (await self.client()).remove(self._path(path))

    async def list_files(self, path: str, **kwargs: Any) -> list[FileInfo]:
        try:
            with file_errors(path):
                found = await (await self.client()).list_files(self._path(path))
        except FileNotFoundError as exc:
            raise SandboxPathNotFoundError(path) from exc
        return [
            FileInfo(name=each.name, is_dir=each.is_dir, size=each.size if each.kind == "file" else None)
            for each in found
        ]

    def _path(self, path: str) -> str:
        return posixpath.join(self.working_dir, path)

    # -- tools

    def get_tools(self) -> list[AgentTool]:
        where = f" Working directory: {self.working_dir or '/workspace'}."
        return [
            make_file_editor(sandbox=self, name="sandbox_file_editor", description=DEFAULT_FILE_EDITOR_DESCRIPTION),
            make_shell(sandbox=self, name="sandbox_shell", description=SANDBOX_SHELL_DESCRIPTION + where),
        ]
