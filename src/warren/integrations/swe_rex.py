"""Warren as a deployment of SWE-ReX: `WarrenDeployment(environment="workshop")`, or a config's `get_deployment`.

`start` makes a session of Warren and `stop` ends it; with `session_id` it works in one that exists, which stays.
SWE-ReX itself is not installed in the sandbox: its bash sessions are terminals there. Nothing is bound to an event
loop, so each call may come from another `asyncio.run`, as those of SWE-agent do.
"""

import asyncio
import codecs
import contextlib
import io
import logging
import re
import shlex
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Unpack

from warren.integrations.extras import missing_package

try:
    from pydantic import BaseModel, ConfigDict
    from swerex import exceptions as rex
    from swerex.deployment.abstract import AbstractDeployment
    from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
    from swerex.runtime import abstract as seam
    from swerex.utils.log import get_logger
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "swe-rex") from None

from warren.integrations.framework_errors import file_errors
from warren.model.errors import InvalidRequest, ProcessNotFound, WarrenError
from warren.model.operations import MAX_KEEP_BYTES
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.aio.process import AsyncTerminal
from warren.sdk.options import SandboxOptions
from warren.sdk.results import ExecuteResult

_START_S: Final = 30.0
_EXIT_CODE_S: Final = 1.0
_INTERRUPTED_S: Final = 1.0
_BETWEEN_INTERRUPTS_S: Final = 0.2
_LONGEST_MARK: Final = 100
_CTRL_C: Final = b"\x03"
_CTRL_Z: Final = b"\x1a"
_ESCAPES: Final = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")
_SHELL: Final = "stty -echo; exec bash --noediting"
_SHELL_ENV: Final = {"TERM": "dumb", "PS2": "", "PS0": ""}
_CHECK: Final = 'cat > "$1" && bash -n "$1" || { code=$?; rm -f "$1"; exit $code; }'


class WarrenDeploymentConfig(BaseModel):
    """What the sandbox is like. Names that are not here are options of the client, such as `environment`."""

    model_config = ConfigDict(extra="allow")

    type: Literal["warren"] = "warren"
    server_url: str = ""
    session_id: str = ""
    user: str = ""

    def get_deployment(self) -> "WarrenDeployment":
        return WarrenDeployment.from_config(self)


class WarrenDeployment(AbstractDeployment):
    """`session_id` is a session to work in; else `start` makes one, with these options. `user` runs all commands."""

    def __init__(
        self,
        *,
        logger: logging.Logger | None = None,
        server_url: str = "",
        session_id: str = "",
        user: str = "",
        **options: Unpack[SandboxOptions],
    ) -> None:
        if options.get("mode") == "local":
            raise ValueError(
                "a deployment of SWE-ReX needs a server: event loops come and go, and with them local mode"
            )
        self.logger = logger or get_logger("rex-deploy")
        self._server_url, self._session_id, self._user, self._options = server_url, session_id, user, options
        self._hooks = CombinedDeploymentHook()
        self._runtime: WarrenRuntime | None = None

    @classmethod
    def from_config(cls, config: WarrenDeploymentConfig) -> "WarrenDeployment":
        return cls(**config.model_dump(exclude={"type"}))

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    @property
    def runtime(self) -> "WarrenRuntime":
        if self._runtime is None:
            raise rex.DeploymentNotStartedError
        return self._runtime

    async def is_alive(self, *, timeout: float | None = None) -> seam.IsAliveResponse:
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        if self._runtime is not None:
            self.logger.warning("the deployment is started already")
            return
        self._hooks.on_custom_step("Starting sandbox")
        session_id = self._session_id or await self._new_session()
        self.logger.info("working in the session %s of Warren", session_id)
        self._runtime = WarrenRuntime(
            session_id, self._server_url, api_key=self._options.get("api_key"), user=self._user, logger=self.logger
        )

    async def _new_session(self) -> str:
        client = AsyncSandboxClient(self._server_url, **self._options)
        try:
            session_id = (await client.create_session()).session_id
        except BaseException as exc:
            await client.leave()
            if isinstance(exc, WarrenError):
                raise rex.DeploymentStartupError(str(exc)) from exc
            raise
        await client.close()
        return session_id

    async def stop(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        if self._session_id:
            await runtime.close()
            return
        async with runtime.sandbox.client() as client:
            await client.cleanup()


class WarrenRuntime(seam.AbstractRuntime):
    """Works in a session of Warren that exists, and never ends it."""

    def __init__(
        self,
        session_id: str,
        server_url: str = "",
        *,
        api_key: str | None = None,
        user: str = "",
        logger: logging.Logger | None = None,
    ) -> None:
        self.logger = logger or get_logger("rex-runtime")
        self.sandbox = _Sandbox(session_id, server_url, api_key, user)
        self._shells: dict[str, _Shell] = {}

    async def is_alive(self, *, timeout: float | None = None) -> seam.IsAliveResponse:
        try:
            async with asyncio.timeout(timeout), self.sandbox.client() as client:
                state = (await client.info()).state
        except (rex.SwerexException, TimeoutError) as exc:
            return seam.IsAliveResponse(is_alive=False, message=str(exc) or f"no answer in {timeout} s")
        return seam.IsAliveResponse(is_alive=state in ("running", "paused"), message=f"the session is {state}")

    # -- bash sessions

    async def create_session(self, request: seam.CreateSessionRequest) -> seam.CreateSessionResponse:
        name = request.session
        if name in self._shells:
            raise rex.SessionExistsError(f"session {name} already exists")
        shell = self._shells[name] = _Shell(self.sandbox, name)
        try:
            output = await shell.start(request.startup_source, request.startup_timeout)
        except BaseException:
            del self._shells[name]
            raise
        return seam.CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: seam.Action) -> seam.Observation:
        shell = self._shell(action.session)
        if isinstance(action, seam.BashInterruptAction):
            return await shell.interrupt(action)
        if action.is_interactive_command or action.is_interactive_quit:
            return await shell.type_in(action)
        seen = await shell.run(action)
        if action.check == "raise" and seen.exit_code != 0:
            raise rex.NonZeroExitCodeError(_failure(action, seen.exit_code, f"Here is the output:\n{seen.output!r}"))
        return seen

    async def close_session(self, request: seam.CloseSessionRequest) -> seam.CloseSessionResponse:
        await self._shell(request.session).close()
        del self._shells[request.session]
        return seam.CloseBashSessionResponse()

    def _shell(self, name: str) -> "_Shell":
        if name not in self._shells:
            raise rex.SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._shells[name]

    # -- commands and files

    async def execute(self, command: seam.Command) -> seam.CommandResponse:
        given = [command.command] if isinstance(command.command, str) else command.command
        argv = ["sh", "-c", *given] if command.shell else given
        async with self.sandbox.client() as client:
            result = await client.execute(
                argv, command.timeout or 0, cwd=command.cwd or "", env=command.env, **self.sandbox.how
            )
        _check_end(result, f"Timeout ({command.timeout}s) exceeded while running command")
        if getattr(command, "merge_output_streams", False):
            response = seam.CommandResponse(stdout=result.output, exit_code=result.exit_code)
        else:
            stdout, stderr = (
                each.decode(errors="backslashreplace") for each in (result.stdout_bytes, result.stderr_bytes)
            )
            response = seam.CommandResponse(stdout=stdout, stderr=stderr, exit_code=result.exit_code)
        if command.check and result.exit_code != 0:
            told = f"Stdout:\n{response.stdout!r}\nStderr:\n{response.stderr!r}"
            raise rex.NonZeroExitCodeError(_failure(command, result.exit_code, told))
        return response

    async def read_file(self, request: seam.ReadFileRequest) -> seam.ReadFileResponse:
        async with self.sandbox.client() as client:
            with file_errors(request.path, rex.SwerexException):
                data = await client.read_file(request.path, user=self.sandbox.user)
        text = io.TextIOWrapper(io.BytesIO(data), request.encoding or "utf-8", request.errors)
        return seam.ReadFileResponse(content=text.read())

    async def write_file(self, request: seam.WriteFileRequest) -> seam.WriteFileResponse:
        async with self.sandbox.client() as client:
            with file_errors(request.path, rex.SwerexException):
                await client.write_file(request.path, request.content, user=self.sandbox.user)
        return seam.WriteFileResponse()

    async def upload(self, request: seam.UploadRequest) -> seam.UploadResponse:
        source, target = Path(request.source_path), request.target_path
        if not source.is_dir() and not source.is_file():
            raise ValueError(f"Source path {source} is not a file or directory")
        async with self.sandbox.client() as client:
            copy = client.upload_dir if source.is_dir() else client.upload_file
            with file_errors(target, rex.SwerexException):
                await copy(source, target, user=self.sandbox.user)
        return seam.UploadResponse()

    async def close(self) -> seam.CloseResponse:
        while self._shells:
            _, shell = self._shells.popitem()
            with contextlib.suppress(rex.SwerexException):
                await shell.close()
        return seam.CloseResponse()


@dataclass(frozen=True)
class _Sandbox:
    """A session of Warren, and how to get to it from any event loop."""

    session_id: str
    server_url: str
    api_key: str | None
    user: str

    @property
    def how(self) -> dict[str, Any]:
        return {"user": self.user, "carry_state": False, "keep_bytes": MAX_KEEP_BYTES}

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncSandboxClient]:
        try:
            async with AsyncSandboxClient.attach(self.session_id, self.server_url, api_key=self.api_key) as client:
                yield client
        except WarrenError as exc:
            raise rex.SwerexException(str(exc)) from exc


class _Shell:
    """A bash in a terminal of the sandbox, and what of its output was not looked at yet.

    Lines have numbers. The prompt shows the number of the last one and its exit code, and each line says when it
    begins: so the output of a command that took too long is never taken for that of a later one.
    """

    def __init__(self, sandbox: _Sandbox, name: str) -> None:
        self._sandbox, self._name = sandbox, name
        self._mark = f"REX{uuid.uuid4().hex[:10]}"
        self._prompt = re.compile(rf"{self._mark}:(\d+):(\d+);")
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest, self._offset, self._line = "", 0, 0
        self._turn = asyncio.Lock()

    async def start(self, sources: list[str], timeout_s: float) -> str:
        prompt = f"'{self._mark}:$WARREN_REX:$?;'"
        setup = f"set +H +o history; export PS1={prompt} PS2= PS0= PROMPT_COMMAND={shlex.quote(f'PS1={prompt}')}"
        line = "; ".join([*(f"source {shlex.quote(path)}" for path in sources), setup])
        try:
            async with self._open(command=_SHELL, env=_SHELL_ENV) as terminal:
                await self._write_line(terminal, line)
                await self._expect(terminal, [self._beginning()], _START_S)
                _, before, _ = await self._expect(terminal, [self._prompt], timeout_s)
        except BaseException as exc:
            await self.close()
            if isinstance(exc, TimeoutError):
                raise rex.CommandTimeoutError(f"the session {self._name!r} took longer than {timeout_s} s") from exc
            raise
        return _plain(before)

    async def run(self, action: seam.BashAction) -> seam.BashObservation:
        path = f"/tmp/.{self._mark}-{self._line + 1}"
        async with self._turn, self._open() as terminal:
            await self._put(path, action.command)
            await self._write_line(terminal, f'eval "$(cat {path}; rm -f {path})"')
            patterns = [re.compile(each, re.DOTALL) for each in action.expect]
            async with self._limit(terminal, action):
                until = None if action.timeout is None else time.monotonic() + action.timeout
                await self._expect(terminal, [self._beginning()], action.timeout)
                left_s = None if until is None else max(0.0, until - time.monotonic())
                which, output, end = await self._expect(terminal, [self._end(), *patterns], left_s)
            exit_code = None
            if which == 0:
                exit_code = int(end[1])
            elif action.check != "ignore":
                try:
                    _, more, end = await self._expect(terminal, [self._end()], _EXIT_CODE_S)
                    output, exit_code = output + more, int(end[1])
                except TimeoutError as exc:
                    if action.check == "raise":
                        raise rex.NoExitCodeError(f"{action.command!r} still runs, so it has no exit code") from exc
            matched = [self._mark, *action.expect][which]
            kept = None if action.check == "ignore" else exit_code
            return seam.BashObservation(output=_plain(output), exit_code=kept, expect_string=matched)

    async def type_in(self, action: seam.BashAction) -> seam.BashObservation:
        """Types a line for an interactive program, or one that starts it."""
        async with self._turn, self._open() as terminal:
            await terminal.write(f"{action.command}\n")
            patterns = [self._prompt, *(re.compile(each, re.DOTALL) for each in action.expect)]
            async with self._limit(terminal, action):
                which, output, _ = await self._expect(terminal, patterns, action.timeout)
        text = _plain(output)
        if not action.is_interactive_quit:
            text = text.lstrip().removeprefix(action.command).strip()
        return seam.BashObservation(output=text, exit_code=0, expect_string=[self._mark, *action.expect][which])

    async def interrupt(self, action: seam.BashInterruptAction) -> seam.BashObservation:
        """Ends what runs by Ctrl-C, else by SIGKILL. If another task waits for it, that gets what it has written."""
        patterns = [self._prompt, *(re.compile(each, re.DOTALL) for each in action.expect)]
        async with self._open() as terminal:
            for key in [_CTRL_C] * action.n_retry + [_CTRL_Z]:
                await terminal.write(key)
                try:
                    which, output = await self._next_prompt(terminal, patterns, action.timeout)
                except TimeoutError:
                    await asyncio.sleep(_BETWEEN_INTERRUPTS_S)
                    continue
                if key == _CTRL_Z:
                    await terminal.write(" kill -9 %+\n")
                matched = [self._mark, *action.expect][which]
                return seam.BashObservation(output=_plain(output).strip(), exit_code=0, expect_string=matched)
        raise rex.CommandTimeoutError("Failed to interrupt session")

    async def _next_prompt(
        self, terminal: AsyncTerminal, patterns: list[re.Pattern[str]], timeout_s: float
    ) -> tuple[int, str]:
        if self._turn.locked():  # whoever has the turn reads
            async with asyncio.timeout(timeout_s), self._turn:
                return 0, ""
        async with self._turn:
            which, output, _ = await self._expect(terminal, patterns, timeout_s)
            return which, output

    async def close(self) -> None:
        async with self._sandbox.client() as client:
            with contextlib.suppress(ProcessNotFound):
                await (await client.process(self._mark)).forget()

    # -- the terminal

    @contextlib.asynccontextmanager
    async def _open(self, **how: Any) -> AsyncIterator[AsyncTerminal]:
        if how:
            how["user"] = self._sandbox.user
        async with self._sandbox.client() as client:
            try:
                async with client.terminal(process_id=self._mark, offset=self._offset, **how) as terminal:
                    yield terminal
            except InvalidRequest as exc:  # so the server says it of a terminal that has ended
                raise rex.SessionNotInitializedError(f"the shell of session {self._name!r} has ended: {exc}") from exc

    @contextlib.asynccontextmanager
    async def _limit(self, terminal: AsyncTerminal, action: seam.BashAction) -> AsyncIterator[None]:
        """Tells of a time-out, after which the command goes on. If the caller is cancelled the command is ended."""
        try:
            yield
        except TimeoutError as exc:
            text = f"timeout after {action.timeout} seconds while running command {action.command!r}"
            raise rex.CommandTimeoutError(text) from exc
        except asyncio.CancelledError:
            await terminal.write(_CTRL_C)
            try:
                await self._expect(terminal, [self._prompt], _INTERRUPTED_S)
            except TimeoutError:
                async with self._sandbox.client() as client:
                    await (await client.process(self._mark)).kill(0)
            raise

    async def _put(self, path: str, command: str) -> None:
        """Writes the command to a file, which is not there if its syntax is wrong."""
        argv = ["bash", "-c", _CHECK, "bash", path]
        async with self._sandbox.client() as client:
            result = await client.execute(argv, stdin=command.encode(errors="surrogateescape"), **self._sandbox.how)
        _check_end(result, f"the syntax of {command!r} could not be checked in time")
        if result.exit_code != 0:
            told = {"bash_stdout": result.stdout, "bash_stderr": result.stderr.replace(path, "bash")}
            raise rex.BashIncorrectSyntaxError(
                f"Error (exit code {result.exit_code}) while checking bash command \n{command!r}\n"
                f"---- Stderr ----\n{told['bash_stderr']}\n---- Stdout ----\n{told['bash_stdout']}",
                extra_info=told,
            )

    async def _write_line(self, terminal: AsyncTerminal, line: str) -> None:
        """What is typed may be echoed, if the last program has left the terminal like that: it is never the mark."""
        self._line += 1
        begin = f'export WARREN_REX={self._line}; echo "{self._mark}:$WARREN_REX:begin"'
        await terminal.write(f" stty sane -echo 2>/dev/null; {begin}; {line}\n")

    def _beginning(self) -> re.Pattern[str]:
        return re.compile(rf"{self._mark}:{self._line}:begin\r?\n")

    def _end(self) -> re.Pattern[str]:
        return re.compile(rf"{self._mark}:{self._line}:(\d+);")

    async def _expect(
        self, terminal: AsyncTerminal, patterns: list[re.Pattern[str]], timeout_s: float | None
    ) -> tuple[int, str, re.Match[str]]:
        """Reads until a pattern is there. Returns which, what came before it, and the match. Raises TimeoutError."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        are_marks = all(self._mark in each.pattern for each in patterns)
        start = 0
        while True:
            found = [
                (match.start(), which, match)
                for which, each in enumerate(patterns)
                if (match := each.search(self._rest, start))
            ]
            if found:
                begin, which, match = min(found, key=lambda each: each[:2])
                before, self._rest = self._rest[:begin], self._rest[match.end() :]
                return which, before, match
            start = max(0, len(self._rest) - _LONGEST_MARK) if are_marks else 0
            piece = await terminal.read(None if until is None else max(0.0, until - time.monotonic()))
            if not piece and terminal.result is not None:
                ended = f"the shell of session {self._name!r} has ended with exit code {terminal.result.exit_code}"
                raise rex.SessionNotInitializedError(f"{ended}, after {_plain(self._rest)[-500:]!r}")
            self._rest += self._decoder.decode(piece)
            self._offset = terminal.offset


def _check_end(result: ExecuteResult, too_late: str) -> None:
    if result.reason == "timeout":
        raise rex.CommandTimeoutError(too_late)
    if result.reason == "sandbox_lost":
        raise rex.SwerexException("the sandbox was lost while the command ran")


def _failure(command: seam.BashAction | seam.Command, exit_code: int | None, told: str) -> str:
    text = f"Command {command.command!r} failed with exit code {exit_code}. {told}"
    return f"{command.error_msg}: {text}" if command.error_msg else text


def _plain(text: str) -> str:
    return _ESCAPES.sub("", text).replace("\r\n", "\n")
