"""Sandboxes of Warren for agents of Google's ADK.

`WarrenEnvironment` is an environment: `EnvironmentToolset(environment=WarrenEnvironment())` gives an agent tools for
commands and files; `initialize` makes its session, `close` ends it. `WarrenCodeExecutor` runs the code blocks of
`LlmAgent(code_executor=...)`: every session of ADK has a sandbox of its own, until `close` or its time-outs end it.
Both take `client=` or `session_id=` for a session that exists, which whoever made it ends.
"""

import base64
import binascii
import hashlib
import json
import mimetypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, Unpack, cast

from warren.integrations.extras import missing_package

try:
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.code_executors.base_code_executor import BaseCodeExecutor
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
    from google.adk.environment import BaseEnvironment, ExecutionResult
    from pydantic import PrivateAttr
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "google-adk") from None

from warren.integrations.framework_errors import GONE, file_errors
from warren.integrations.reports import (
    EXIT_NOT_RUN,
    EXIT_TIMED_OUT,
    CodeReport,
    Picture,
    describe_code,
    describe_command,
    describe_error,
)
from warren.model.errors import ContextLost, ContextNotFound, SandboxLost, WarrenError
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.code_results import OutputMessage, Result
from warren.sdk.options import SandboxOptions, ServerOptions, WorkOptions, check_options
from warren.sdk.results import FileEntry

_DEFAULT_TIMEOUT_S: Final = 300
_NOT_INITIALIZED: Final = "the environment is not initialized: call initialize() first"
_MAX_CHARS: Final = 100_000
_MAX_FILES: Final = 20
_MAX_FILE_BYTES: Final = 10_000_000


class WarrenEnvironment(BaseEnvironment):
    """A session of Warren as an environment of ADK.

    Commands start in the workspace and may run at the same time. When the session that it has made is gone, the
    operation raises ConnectionError, and the next one begins in a fresh sandbox.
    """

    def __init__(
        self,
        server_url: str = "",
        *,
        client: AsyncSandboxClient | None = None,
        session_id: str = "",
        **options: Unpack[SandboxOptions],
    ) -> None:
        self._given, self._attaches = client, bool(client or session_id)
        self._options: dict[str, Any] = {"server_url": server_url, "session_id": session_id, **options}
        self._client: AsyncSandboxClient | None = None
        self._workspace = ""

    def __repr__(self) -> str:
        return f"<WarrenEnvironment {self._client or 'not initialized'}>"

    @property
    def client(self) -> AsyncSandboxClient:
        """The client of the session, for what ADK has no method for: ports, snapshots, terminals."""
        if self._client is None:
            raise RuntimeError(_NOT_INITIALIZED)
        return self._client

    @property
    def working_dir(self) -> Path:
        if self._client is None:
            raise RuntimeError(_NOT_INITIALIZED)
        return Path(self._workspace)

    async def initialize(self) -> None:
        if self._client is not None:
            return
        client = self._given or await AsyncSandboxClient(**self._options).__aenter__()
        self._workspace = (await client.info()).workspace
        self._client, self._is_initialized = client, True

    async def close(self) -> None:
        client, self._client, self._is_initialized = self._client, None, False
        if client is not None and client is not self._given:
            await client.leave()

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        with self._gone_errors():
            result = await self.client.execute(command, timeout or 0, carry_state=False)
            if result.reason == "sandbox_lost":
                raise SandboxLost("the sandbox was lost while the command ran")
        report = describe_command(replace(result, output=""), timeout or 0, None)
        missing = "[Some output is missing: there was more than is kept.]" if result.truncated else ""
        stderr = "\n".join(part for part in (result.stderr, report.text.strip(), missing) if part)
        return ExecutionResult(report.exit_code, result.stdout, stderr, result.reason == "timeout")

    async def read_file(self, path: str | PathLike[str]) -> bytes:
        with file_errors(fspath(path)), self._gone_errors():
            return await self.client.read_file(fspath(path))

    async def write_file(self, path: str | PathLike[str], content: str | bytes) -> None:
        with file_errors(fspath(path)), self._gone_errors():
            await self.client.write_file(fspath(path), content)

    @contextmanager
    def _gone_errors(self) -> Iterator[None]:
        client = self.client
        session_id = client.session_id
        try:
            yield
        except GONE as exc:
            if self._attaches:
                raise ConnectionError(str(exc)) from exc
            if client.session_id == session_id:
                client.session_id = ""  # the next use makes another session
            raise ConnectionError(describe_error(exc)) from exc


class WarrenCodeExecutor(BaseCodeExecutor):
    """Runs the code blocks of an agent in interpreters that keep their state; with `stateful=False` in fresh ones.

    Takes the fields of BaseCodeExecutor and the options of SandboxClient. The sandbox of a session of ADK is that of a
    thread of Warren, so another process that has the same session finds it again. Pictures that the code has shown and
    files that it has left in the workspace become artifacts. What goes wrong with the sandbox is a failed result.
    """

    stateful: bool = True
    timeout_seconds: int | None = _DEFAULT_TIMEOUT_S

    _given: SandboxClient | None = PrivateAttr(default=None)
    _is_guest: bool = PrivateAttr(default=False)
    _options: dict[str, Any] = PrivateAttr(default_factory=dict)
    _clients: dict[str, SandboxClient] = PrivateAttr(default_factory=dict)
    _contexts: dict[str, str] = PrivateAttr(default_factory=dict)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def __init__(
        self, server_url: str = "", *, client: SandboxClient | None = None, session_id: str = "", **options: Any
    ) -> None:
        fields_of_base = BaseCodeExecutor.model_fields
        super().__init__(**{name: value for name, value in options.items() if name in fields_of_base})
        rest = {name: value for name, value in options.items() if name not in fields_of_base}
        about_sessions = {name: value for name, value in rest.items() if name not in ServerOptions.__annotations__}
        check_options(cast("WorkOptions", about_sessions))
        self._given = client or (SandboxClient.attach(session_id, server_url, **rest) if session_id else None)
        self._is_guest = client is not None
        self._options = {"server_url": server_url, "replace_lost": True, **rest}

    def close(self) -> None:
        """Ends the sessions that it has made; in one that it was given, its interpreters."""
        with self._lock:
            clients, contexts = [*self._clients.values()], [*self._contexts.values()]
            self._clients.clear()
            self._contexts.clear()
        for client in clients:
            client.cleanup()
            client.close()
        if self._given is not None:
            for context in contexts:
                with suppress(WarrenError):
                    self._given.remove_code_context(context)
            if not self._is_guest:
                self._given.close()

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        session = invocation_context.session
        names = (session.app_name, session.user_id, code_execution_input.execution_id or session.id)
        key = f"adk-{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:40]}"
        try:
            client = self._client_of(key)
            for file in code_execution_input.input_files:
                client.write_file(file.name, _content_of(file))
            before = _list_files(client)
            report = self._run(client, key, code_execution_input.code)
            left = [entry for path, entry in _list_files(client).items() if before.get(path) != entry]
            shown = [*map(_file_of, range(1, 100), report.pictures), *_read(client, left)]
        except WarrenError as exc:
            return _result("", describe_error(exc), [], EXIT_NOT_RUN)
        if report.execution.ok:
            return _result(report.text, "", shown, 0)
        # ADK shows the model either stderr or stdout.
        return _result("", report.text, shown, EXIT_TIMED_OUT if report.execution.reason == "timeout" else 1)

    def _client_of(self, key: str) -> SandboxClient:
        if self._given is not None:
            return self._given
        with self._lock:
            if key not in self._clients:
                self._clients[key] = SandboxClient(thread_id=key, **self._options)
            return self._clients[key]

    def _run(self, client: SandboxClient, key: str, code: str) -> CodeReport:
        if not self.stateful:
            context = client.create_code_context("python").id
            try:
                return self._run_in(client, context, code)
            finally:
                with suppress(WarrenError):
                    client.remove_code_context(context)
        if self._given is None:
            return self._run_in(client, "", code)
        with self._lock:
            if key not in self._contexts:
                self._contexts[key] = client.create_code_context("python").id
            context = self._contexts[key]
        try:
            report = self._run_in(client, context, code)
        except (ContextLost, ContextNotFound):
            self._contexts.pop(key, None)  # the next code has a fresh one
            raise
        if report.execution.context_lost:
            self._contexts.pop(key, None)
            with suppress(WarrenError):
                client.remove_code_context(context)
        return report

    def _run_in(self, client: SandboxClient, context: str, code: str) -> CodeReport:
        limit_s = float(self.timeout_seconds or 0)
        shown: list[OutputMessage | Result] = []
        take = shown.append
        execution = client.run_code(
            code, "python", context, timeout=limit_s, on_stdout=take, on_stderr=take, on_result=take
        )
        report = describe_code(execution, shown, limit_s, _MAX_CHARS)
        return replace(report, text=f"[{execution.notice}]\n{report.text}") if execution.notice else report


def _result(stdout: str, stderr: str, files: list[File], exit_code: int) -> CodeExecutionResult:
    result = CodeExecutionResult(stdout, stderr, files)
    if hasattr(result, "exit_code"):  # since 2.13
        result.exit_code = exit_code
    return result


def _content_of(file: File) -> bytes:
    content: str | bytes = file.content
    if isinstance(content, bytes):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error:
        return content.encode()


def _file_of(number: int, picture: Picture) -> File:
    suffix = picture.mime_type.partition("/")[2]
    return File(f"picture_{number}.{suffix}", picture.data, picture.mime_type)


def _list_files(client: SandboxClient) -> dict[str, FileEntry]:
    return {entry.path: entry for entry in client.list_files() if entry.kind == "file"}


def _read(client: SandboxClient, entries: list[FileEntry]) -> Iterator[File]:
    for entry in entries[:_MAX_FILES]:
        if entry.size <= _MAX_FILE_BYTES:
            kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
            yield File(entry.name, client.read_file(entry.path), kind)
