"""Warren as a sandbox of AG2: `SandboxCodeTool(WarrenEnvironment())`, `SandboxShellTool(WarrenEnvironment())`.

`WarrenSandbox` is one session; its first use makes it, `aclose` (or leaving `async with`, or the end of the program)
ends it. `WarrenEnvironment` makes sandboxes for tools, one for each set of values of its options, which may be
Variables of AG2. `client=` or `session_id=` takes a session that exists, which whoever made it ends.
"""

import asyncio
import atexit
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self, Unpack, cast

from warren.integrations.extras import missing_package

try:
    from ag2.annotations import Variable
    from ag2.context import ConversationContext
    from ag2.tools.builtin._resolve import resolve_variable
    from ag2.tools.sandbox import ExecResult, SandboxBase
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "ag2") from None

from warren.integrations.framework_errors import GONE, file_errors
from warren.integrations.reports import EXIT_NOT_RUN, describe_command, describe_error
from warren.model.errors import SandboxLost, WarrenError
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.options import SandboxOptions, WorkOptions, check_options

DEFAULT_TIMEOUT_S: Final = 60.0
_WORKSPACE: Final = PurePosixPath("/workspace")
_OF_SANDBOX: Final = frozenset({"client", "session_id", "timeout", "max_output", "mode", "api_key"})


class WarrenSandbox(SandboxBase):
    """One session. Commands start in the workspace and may run at the same time. What goes wrong with the sandbox is
    the output, with exit code 125; when the session that it has made is gone, the next command begins in a fresh one.
    """

    def __init__(
        self,
        server_url: str = "",
        *,
        client: AsyncSandboxClient | None = None,
        session_id: str = "",
        timeout: float = DEFAULT_TIMEOUT_S,
        max_output: int = 100_000,
        **options: Unpack[SandboxOptions],
    ) -> None:
        self.client = client or AsyncSandboxClient(server_url, session_id=session_id, **options)
        self._timeout_s, self._max_output = timeout, max_output
        self._is_guest, self._attaches = client is not None, bool(client or session_id)
        self._workdir = _WORKSPACE
        self._is_known, self._closed = False, False

    def __repr__(self) -> str:
        return f"<WarrenSandbox {self.client.session_id or 'without a session'}>"

    def __deepcopy__(self, memo: object) -> Self:
        return self  # AG2 copies tools, and the copies share their sandbox

    @property
    def workdir(self) -> PurePosixPath:
        """The workspace; before the first use that of environments that do not say otherwise."""
        return self._workdir

    @property
    def host_workdir(self) -> Path | None:
        return None

    @property
    def closed(self) -> bool:
        return self._closed

    async def __aenter__(self) -> Self:
        await self._ready()
        return self

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        if not self._is_guest:
            await self.client.leave()

    def _close_at_exit(self) -> None:
        with suppress(WarrenError):
            asyncio.run(self.aclose())

    async def _ready(self) -> AsyncSandboxClient:
        if self._closed:
            raise RuntimeError("the sandbox has been closed")
        if not self._is_known or not self.client.session_id:
            if not self._is_guest:
                await self.client.__aenter__()
            self._workdir = PurePosixPath((await self.client.info()).workspace)
            self._is_known = True
            if not self._attaches:
                atexit.unregister(self._close_at_exit)
                atexit.register(self._close_at_exit)
        return self.client

    async def exec(
        self, argv: list[str], *, env: dict[str, str] | None = None, timeout: float | None = None
    ) -> ExecResult:
        if not argv:
            return ExecResult("", 2)
        limit_s = self._timeout_s if timeout is None else timeout
        session_id = ""
        try:
            client = await self._ready()
            session_id = client.session_id
            result = await client.execute(argv, limit_s, env=env, carry_state=False)
            if result.reason == "sandbox_lost":
                raise SandboxLost("the sandbox was lost while the command ran")
        except WarrenError as exc:
            return ExecResult(self._told(exc, session_id), EXIT_NOT_RUN)
        report = describe_command(result, limit_s, self._max_output)
        return ExecResult(report.text.strip(), report.exit_code)

    def _told(self, exc: WarrenError, session_id: str) -> str:
        if not isinstance(exc, GONE) or self._attaches:
            return f"[sandbox: {exc}]"
        if self.client.session_id == session_id:
            self.client.session_id = ""  # the next use makes another session
        return describe_error(exc)

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        target = self._inside(path)
        with file_errors(target):
            await (await self._ready()).write_file(target, content)

    async def remove_file(self, path: PurePosixPath) -> None:
        target = self._inside(path)
        with suppress(FileNotFoundError), file_errors(target):
            await (await self._ready()).remove(target)

    def _inside(self, path: PurePosixPath) -> str:
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"the path must be one below the workspace: {path}")
        return str(path)


class WarrenEnvironment:
    """Makes sandboxes for AG2's tools. Tools with the same values of the options share one, with its files.

    `aclose`, leaving `async with`, or the end of the program ends them.
    """

    workdir = _WORKSPACE

    def __init__(self, server_url: "str | Variable" = "", **options: Any) -> None:
        about_sessions = {name: value for name, value in options.items() if name not in _OF_SANDBOX}
        check_options(cast("WorkOptions", about_sessions))
        self._options: dict[str, Any] = {"server_url": server_url, **options}
        self._sandboxes: dict[str, WarrenSandbox] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<WarrenEnvironment {[*self._sandboxes.values()]}>"

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @asynccontextmanager
    async def open(self, context: ConversationContext | None = None) -> AsyncIterator[WarrenSandbox]:
        """Gives the sandbox for the values that Variables have in this conversation."""
        options = {name: _value_of(name, value, context) for name, value in self._options.items()}
        key = json.dumps(options, default=repr, sort_keys=True)
        with self._lock:
            sandbox = self._sandboxes.get(key)
            if sandbox is None or sandbox.closed:
                sandbox = self._sandboxes[key] = WarrenSandbox(**options)
        yield sandbox

    async def aclose(self) -> None:
        with self._lock:
            sandboxes = [*self._sandboxes.values()]
            self._sandboxes.clear()
        await asyncio.gather(*(sandbox.aclose() for sandbox in sandboxes))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _value_of(name: str, value: Any, context: ConversationContext | None) -> Any:
    if isinstance(value, Variable) and context is None:
        raise RuntimeError(f"{name} is a Variable, and there is no conversation that has its value")
    return resolve_variable(value, context, param_name=name) if context is not None else value
