"""Warren as a sandbox of Inspect AI: `sandbox="warren"`, or `sandbox=("warren", "warren.yaml")`.

Each sample gets a session of its own, which ends with it. `SandboxConfig` says what its sandbox is like, as an object
or as a YAML file; `more` has further sandboxes of the sample by name. Sessions of interrupted samples end with the
task. What a killed program has left ends by its time-out, or by `inspect sandbox cleanup warren`.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, overload

from warren.integrations.extras import missing_package

try:
    import anyio
    import click
    import inspect_ai.util
    import yaml
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxConnection,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        sandboxenv,
    )
    from pydantic import BaseModel, ConfigDict
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "inspect") from None

from warren.integrations.framework_errors import GONE, file_errors
from warren.model.errors import Forbidden, UnknownUser, WarrenError
from warren.model.operations import MAX_KEEP_BYTES
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.results import ExecuteResult

# Before 0.3.275 Inspect has no errors of its own for these: a user who is not there is a command that fails.
_Unavailable: Final = getattr(inspect_ai.util, "SandboxUnavailableError", RuntimeError)
_UserUnsupported: Final = getattr(inspect_ai.util, "SandboxUserUnsupportedError", None)
_MARK: Final = "inspect_task"
"""The metadata by which sessions of Inspect are found."""
_RETRIES_S: Final = (60, 30)
_NOT_EXECUTABLE: Final = 126


class SandboxConfig(BaseModel):
    """What the sandbox of a sample is like: the options of SandboxClient. `user` runs commands that name no other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server_url: str = ""
    environment: str = ""
    image: str = ""
    limits: dict[str, int | float] | None = None
    network: dict[str, Any] | None = None
    env: dict[str, str] | None = None
    secrets: tuple[str, ...] = ()
    labels: dict[str, str] | None = None
    require: tuple[str, ...] = ()
    provider: str = ""
    gpus: int | tuple[str, ...] | None = None
    volumes: tuple[str, ...] = ()
    snapshot: str = ""
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    logs: str = ""
    user: str = ""
    more: "dict[str, SandboxConfig]" = {}

    def options(self) -> dict[str, Any]:
        """Those that were given: 0 and {} mean something."""
        return {name: value for name, value in self if value not in (None, "", ()) and name not in ("user", "more")}


@sandboxenv(name="warren")
class WarrenSandboxEnvironment(SandboxEnvironment):
    """One session of Warren."""

    _open: ClassVar[dict[str, set["WarrenSandboxEnvironment"]]] = {}

    def __init__(self, client: AsyncSandboxClient, user: str = "") -> None:
        super().__init__()
        self.client, self._user = client, user

    def __repr__(self) -> str:
        return f"<WarrenSandboxEnvironment {self.client.session_id}>"

    # -- the life of samples

    @classmethod
    def config_files(cls) -> list[str]:
        return ["warren.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SandboxConfig(**config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        found = read_config(config)
        made: dict[str, SandboxEnvironment] = {}
        try:
            for name, each in {"default": found, **found.more}.items():
                made[name] = await cls._new(task_name, each)
        except BaseException:
            await _ended(*made.values())
            raise
        return made

    @classmethod
    async def _new(cls, task_name: str, config: SandboxConfig) -> "WarrenSandboxEnvironment":
        client = AsyncSandboxClient(**config.options(), metadata={_MARK: task_name[:200]})
        sandbox = cls(client, config.user)
        cls._open.setdefault(task_name, set()).add(sandbox)
        try:
            await client.create_session()
        except BaseException:
            await _ended(sandbox)
            raise
        return sandbox

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        if not interrupted:
            await _ended(*environments.values())

    @classmethod
    async def task_cleanup(cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool) -> None:
        left = [*cls._open.pop(task_name, ())]
        if cleanup:
            await _ended(*left)
            return
        for sandbox in left:
            click.echo(f"left as it is: {sandbox.client.session_id}; `inspect sandbox cleanup warren` ends it")
            await sandbox.client.close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        sessions = await AsyncSandboxClient.list_sessions()
        ours = [each.session_id for each in sessions if _MARK in each.metadata and id in (None, each.session_id)]
        for session_id in ours:
            async with AsyncSandboxClient.attach(session_id) as client:
                await client.cleanup()
            click.echo(f"ended: {session_id}")
        if not ours:
            click.echo("There are no sessions of Inspect." if id is None else f"There is no session {id} of Inspect.")

    # -- commands

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        limits = [timeout, *(min(timeout, each) for each in _RETRIES_S)] if timeout and timeout_retry else [timeout]
        for limit_s in limits:
            try:
                result = await self._run(cmd, input or b"", cwd or "", env, user or self._user, limit_s)
            except (UnknownUser, Forbidden) as exc:
                if not user:
                    raise PermissionError(str(exc)) from exc
                if _UserUnsupported is None:
                    return ExecResult(False, _NOT_EXECUTABLE, "", str(exc))
                raise _UserUnsupported(f"no command can run as {user!r} here: {exc}") from exc
            if result.reason != "timeout":
                return _as_theirs(cmd, result)
        error = TimeoutError(f"the command took longer than {timeout} seconds")
        if result.output:
            error.truncated_output = result.output  # type: ignore[attr-defined]  # tools show it to the model
        raise error

    async def _run(
        self,
        cmd: list[str],
        stdin: str | bytes,
        cwd: str,
        env: Mapping[str, str] | None,
        user: str,
        timeout: int | None,
    ) -> ExecuteResult:
        kept = min(2 * SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE, MAX_KEEP_BYTES)
        how: dict[str, Any] = {"cwd": cwd, "env": env, "user": user, "carry_state": False, "keep_bytes": kept}
        try:
            result = await self.client.execute(cmd, timeout or 0, stdin=stdin, **how)
        except GONE as exc:
            raise _Unavailable(str(exc)) from exc
        if result.reason == "sandbox_lost":
            raise _Unavailable("the sandbox was lost while the command ran")
        return result

    # -- files

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        with file_errors(file, _Unavailable):
            await self.client.write_file(file, data)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with file_errors(file, _Unavailable):
            data = await self.client.read_file(file, length=limit + 1)
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    # -- people

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        try:
            session = await self.client.info()
        except WarrenError as exc:
            raise ConnectionError(str(exc)) from exc
        if session.state != "running":
            raise ConnectionError(f"the session is {session.state}")
        as_user = f" --user {user}" if user else ""
        return SandboxConnection(
            type="warren", command=f"warren shell{as_user} {session.session_id}", container=session.session_id
        )

    def default_polling_interval(self) -> float:
        return 0.2


def read_config(config: SandboxEnvironmentConfigType | None) -> SandboxConfig:
    """Reads what a task gives: an object, the name of a YAML file, or nothing."""
    if config is None:
        return SandboxConfig()
    if isinstance(config, SandboxConfig):
        return config
    if isinstance(config, BaseModel):
        raise ValueError(f"the sandbox `warren` takes a SandboxConfig or a YAML file, not a {type(config).__name__}")
    values = yaml.safe_load(Path(config).read_text()) or {}
    if not isinstance(values, dict):
        raise ValueError(f"{config} must have names and values, such as `environment: base`")
    return SandboxConfig(**values)


async def _ended(*sandboxes: SandboxEnvironment) -> None:
    """Ends sessions, also those whose making was interrupted, although the caller is being cancelled."""

    async def end(sandbox: SandboxEnvironment) -> None:
        warren = sandbox.as_type(WarrenSandboxEnvironment)
        await warren.client.leave()
        for of_task in WarrenSandboxEnvironment._open.values():
            of_task.discard(warren)

    with anyio.CancelScope(shield=True):
        await asyncio.gather(*map(end, sandboxes))


def _as_theirs(cmd: list[str], result: ExecuteResult) -> ExecResult[str]:
    limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    if result.truncated or max(len(result.stdout_bytes), len(result.stderr_bytes)) > limit:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.output[:limit])
    if result.exit_code == _NOT_EXECUTABLE and "ermission denied" in result.stderr:
        raise PermissionError(f"there is no permission to run {cmd[0]!r}: {result.stderr.strip()}")
    return ExecResult(result.exit_code == 0, result.exit_code, result.stdout, result.stderr)
