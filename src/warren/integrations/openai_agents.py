"""Warren as a sandbox of the OpenAI Agents SDK: `SandboxRunConfig(client=WarrenSandboxClient())`.

Each run of a SandboxAgent gets a session of its own, which ends with it. `WarrenSandboxClientOptions` says what its
sandbox is like, or names a session that exists already, which goes on after the run. A run that is resumed goes on in
its session if that is still there, else in a fresh one, with the workspace that the SDK has kept. Commands in the
background are Warren's processes and terminals, exposed ports its previews.
"""

import asyncio
import io
import logging
import shlex
import shutil
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Unpack, cast
from urllib.parse import urlsplit

from warren.integrations.extras import missing_package

try:
    import anyio
    from agents.sandbox import Manifest
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        ExposedPortUnavailableError,
        MountConfigError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
        WorkspaceRootNotFoundError,
        WorkspaceStartError,
    )
    from agents.sandbox.session import SandboxSession, SandboxSessionState
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.dependencies import Dependencies
    from agents.sandbox.session.manager import Instrumentation
    from agents.sandbox.session.pty_output import collect_pty_output
    from agents.sandbox.session.pty_types import (
        PTY_PROCESSES_MAX,
        PtyExecUpdate,
        allocate_pty_process_id,
        clamp_pty_yield_time_ms,
        process_id_to_prune_from_meta,
        resolve_pty_write_yield_time_ms,
    )
    from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.session.workspace_payloads import coerce_write_payload
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "openai-agents") from None

from warren.integrations.framework_errors import GONE
from warren.integrations.reports import EXIT_TIMED_OUT, describe_command
from warren.model.errors import FileNotFound, InvalidPath, NotADirectory, SandboxLost, SessionEnded, WarrenError
from warren.model.operations import MAX_KEEP_BYTES
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.aio.process import AsyncProcess
from warren.sdk.options import ServerOptions
from warren.sdk.results import ExecuteResult

_log: Final = logging.getLogger("warren")
_MARK: Final = "openai_agents"
"""The metadata by which sessions of this SDK are found."""
_AS_ROOT: Final = ("chgrp", "groupadd", "useradd", "usermod")
"""What the SDK runs for the users and groups of a manifest."""
_SNAPSHOT: Final = b"WARREN_SNAPSHOT_V1\n"
"""What a kept workspace begins with that is the id of a snapshot instead of a tar."""
_IN_MEMORY: Final = 8 * 1024 * 1024
_NOT_OF_WARREN: Final = frozenset({"type", "session_id", "exposed_ports", "workspace_persistence", "pause_on_exit"})


class WarrenSandboxClientOptions(BaseSandboxClientOptions):
    """What the sandbox of an agent is like: the options of SandboxClient, and what the SDK may do with it.

    `session_id` is a session that exists. `workspace_persistence`: the SDK keeps the workspace as a tar, or the name
    of a snapshot that Warren keeps. With `pause_on_exit` the session is paused at the end instead of being ended.
    """

    type: Literal["warren"] = "warren"
    environment: str = ""
    image: str = ""
    limits: dict[str, int | float] | None = None
    network: dict[str, Any] | None = None
    env: dict[str, str] | None = None
    metadata: dict[str, str] | None = None
    secrets: tuple[str, ...] = ()
    labels: dict[str, str] | None = None
    require: tuple[str, ...] = ()
    provider: str = ""
    gpus: int | tuple[str, ...] | None = None
    volumes: tuple[str, ...] = ()
    snapshot: str = ""
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    max_paused_s: float | None = None
    logs: str = ""
    session_id: str = ""
    exposed_ports: tuple[int, ...] = ()
    workspace_persistence: Literal["tar", "snapshot"] = "tar"
    pause_on_exit: bool = False

    def of_session(self) -> dict[str, Any]:
        """Those that a new session takes, if they were given: 0 and {} mean something."""
        return {name: value for name, value in self if value not in (None, "", ()) and name not in _NOT_OF_WARREN}


class WarrenSandboxSessionState(SandboxSessionState):
    """What is needed to return to a sandbox, or to make another one like it. It has no key of the server."""

    type: Literal["warren"] = "warren"
    warren_session_id: str
    options: WarrenSandboxClientOptions


class WarrenSandboxClient(BaseSandboxClient[WarrenSandboxClientOptions | None]):
    """Makes sessions on a server: by default the one of WARREN_URL, with the key of WARREN_API_KEY."""

    backend_id = "warren"
    supports_default_options = True

    def __init__(
        self,
        server_url: str = "",
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        **server: Unpack[ServerOptions],
    ) -> None:
        self._server_url, self._server = server_url, server
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    def __repr__(self) -> str:
        return f"<WarrenSandboxClient {self._server_url or 'of the default server'}>"

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: WarrenSandboxClientOptions | None = None,
    ) -> SandboxSession:
        manifest, options = manifest or Manifest(), options or WarrenSandboxClientOptions()
        self._validate_manifest_for_create(manifest)
        if manifest.mount_targets():
            raise MountConfigError(
                message="nothing can be mounted in a sandbox of Warren: give it `volumes`", context={}
            )
        state = WarrenSandboxSessionState(
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id := uuid.uuid4())),
            session_id=session_id,
            exposed_ports=options.exposed_ports,
            options=options,
            warren_session_id=options.session_id,
        )
        if not options.session_id:
            state.warren_session_id = await self.make_session(state)
        inner = WarrenSandboxSession(self, state)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        if not isinstance(state, WarrenSandboxSessionState):
            raise TypeError(f"the state is a {type(state).__name__}, it must be a WarrenSandboxSessionState")
        state.assert_path_grants_rebound()
        inner = WarrenSandboxSession(self, state)
        await inner.reconnect()
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        inner = session._inner
        if not isinstance(inner, WarrenSandboxSession):
            raise TypeError(f"the session is a {type(inner).__name__}, it must be a WarrenSandboxSession")
        await inner.shutdown()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, WarrenSandboxSessionState)

    # -- what sessions use

    def attach(self, session_id: str) -> AsyncSandboxClient:
        return AsyncSandboxClient.attach(session_id, self._server_url, **self._server)

    async def make_session(self, state: WarrenSandboxSessionState, snapshot: str = "") -> str:
        """Makes a session of Warren and returns its id. If it is cancelled there is none."""
        options = state.options.of_session()
        options["metadata"] = {_MARK: str(state.session_id), **options.get("metadata", {})}
        if snapshot:
            options["snapshot"] = snapshot
        maker = AsyncSandboxClient(self._server_url, **self._server, **options)
        try:
            session = await maker.create_session()
            await maker.close()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await maker.leave()
            raise
        return session.session_id


class WarrenSandboxSession(BaseSandboxSession):
    """One session of Warren."""

    state: WarrenSandboxSessionState

    def __init__(self, client: WarrenSandboxClient, state: WarrenSandboxSessionState) -> None:
        self.state, self._client = state, client
        self._warren = client.attach(state.warren_session_id)
        self._is_closed = False
        self._commands: dict[int, _Command] = {}

    def __repr__(self) -> str:
        return f"<WarrenSandboxSession {self.state.warren_session_id}>"

    @property
    def warren(self) -> AsyncSandboxClient:
        if self._is_closed:
            raise SessionEnded("this session of the sandbox was closed", remedy="start it again")
        return self._warren

    # -- its life

    async def reconnect(self) -> None:
        """Goes on in the session of the state, or in a fresh one if that is gone."""
        self._warren, self._is_closed = self._client.attach(self.state.warren_session_id), False
        is_there = True
        try:
            await self.warren.resume()
        except GONE as exc:
            is_there = False
            await self.warren.close()
            if self.state.options.session_id:  # who made it knows what was in it
                raise WorkspaceStartError(path=self._workspace_root_path(), message=str(exc), cause=exc) from exc
            self._replace(await self._client.make_session(self.state))
        self._set_start_state_preserved(is_there)

    def _replace(self, session_id: str) -> None:
        self._warren, self.state.warren_session_id = self._client.attach(session_id), session_id
        self.state.workspace_root_ready = False

    async def start(self) -> None:
        try:
            await super().start()
        except BaseException:  # `async with` does not leave what it could not enter
            await self._shutdown_backend()
            raise

    async def _ensure_backend_started(self) -> None:
        if self._is_closed:
            await self.reconnect()

    async def running(self) -> bool:
        if self._is_closed or not self.state.workspace_root_ready:
            return False
        try:
            return (await self.warren.info()).state in ("running", "paused")
        except WarrenError:
            return False

    async def _shutdown_backend(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            try:
                if self.state.options.pause_on_exit:
                    await self._warren.pause()
                elif not self.state.options.session_id:
                    await self._warren.cleanup()
            except GONE:
                pass
            except WarrenError as exc:  # the result of the run matters more
                _log.warning("session_not_ended session=%s error=%s", self.state.warren_session_id, exc)
            finally:
                await self._warren.close()

    # -- commands

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        argv = self._prepare_exec_command(*command, shell=shell, user=None)
        if not shell and user is None and argv[0] in _AS_ROOT:
            user = "root"
        return await self._run(argv, timeout, _name(user))

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        return await self._run([str(each) for each in command], timeout)

    async def _run(self, argv: list[str], timeout: float | None, user: str = "", stdin: Any = b"") -> ExecResult:
        limit_s = 0.0 if timeout is None else max(timeout, 0.001)
        how = await self._how(user)
        with self._exec_errors(argv):
            result = await self.warren.execute(argv, limit_s, stdin=stdin, keep_bytes=MAX_KEEP_BYTES, **how)
            _raise_if_lost(result)
        note = describe_command(result, limit_s, None).text.removeprefix(result.output)
        if result.truncated:
            note += "\n[Some output is missing: there was more than is kept.]"
        stderr = result.stderr_bytes + note.encode()
        if result.reason == "timeout":
            streams = {"stdout": result.stdout, "stderr": stderr.decode(errors="replace")}
            raise ExecTimeoutError(command=argv, timeout_s=timeout, context=streams)
        return ExecResult(stdout=result.stdout_bytes, stderr=stderr, exit_code=result.exit_code)

    async def _how(self, user: str) -> dict[str, Any]:
        """The manifest's root is there when the session has started."""
        cwd = self.state.manifest.root if self.state.workspace_root_ready else "/"
        env = await self.state.manifest.environment.resolve()
        return {"cwd": cwd, "env": env, "user": user, "carry_state": False}

    @contextmanager
    def _exec_errors(self, command: Sequence[str | Path]) -> Iterator[None]:
        try:
            yield
        except InvalidPath as exc:
            raise WorkspaceRootNotFoundError(path=self._workspace_root_path(), cause=exc) from exc
        except WarrenError as exc:
            raise ExecTransportError(command=command, message=str(exc), cause=exc, retryable=exc.retryable) from exc

    # -- commands in the background

    def supports_pty(self) -> bool:
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        argv = self._prepare_exec_command(*command, shell=shell, user=None)
        how = await self._how(_name(user))
        starting = asyncio.ensure_future(self._start(argv, tty, how))
        try:
            with self._exec_errors(argv):
                process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await (await starting).forget()
            raise
        number = allocate_pty_process_id({*self._commands})
        await self._prune()
        self._commands[number] = _Command(process, tty, timeout)
        try:
            wait_ms = clamp_pty_yield_time_ms(10_000 if yield_time_s is None else int(yield_time_s * 1000))
            return await self._update(number, wait_ms, max_output_tokens)
        except asyncio.CancelledError:  # nobody knows its number
            with anyio.CancelScope(shield=True):
                await self._commands.pop(number).end()
            raise

    async def _start(self, argv: list[str], tty: bool, how: dict[str, Any]) -> AsyncProcess:
        if not tty:
            process = await self.warren.spawn(argv, **how)
            await process.close_stdin()
            return process
        del how["carry_state"]
        async with self.warren.terminal(shlex.join(argv), **how) as terminal:
            return await self.warren.process(terminal.process_id)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        command = self._resolve_pty_session_entry(pty_processes=self._commands, session_id=session_id)
        if chars:
            if not command.tty:
                raise RuntimeError("stdin is not available for this process")
            if not command.is_ended:
                with self._exec_errors(("write_stdin",)):
                    await command.process.write(chars)
            await asyncio.sleep(0.1)
        yield_ms = 250 if yield_time_s is None else int(yield_time_s * 1000)
        wait_ms = resolve_pty_write_yield_time_ms(yield_time_ms=yield_ms, input_empty=not chars)
        return await self._update(session_id, wait_ms, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        ending, self._commands = [*self._commands.values()], {}
        await asyncio.gather(*(command.end() for command in ending))

    async def _update(self, number: int, wait_ms: int, max_output_tokens: int | None) -> PtyExecUpdate:
        command = self._commands[number]
        collected = await collect_pty_output(
            output_chunks=command.output,
            output_lock=command.lock,
            output_notify=command.news,
            is_done=lambda: command.is_ended,
            yield_time_ms=wait_ms,
            max_output_tokens=max_output_tokens,
        )
        output, token_count = collected[:2]  # the third, whether it has ended, is not there in old releases
        command.last_used = time.monotonic()
        if command.output or not command.is_ended:
            return PtyExecUpdate(number, output, None, token_count)
        self._commands.pop(number, None)
        await command.end()
        with self._exec_errors(("write_stdin",)):
            return PtyExecUpdate(None, output, command.exit_code(), token_count)

    async def _prune(self) -> None:
        if len(self._commands) >= PTY_PROCESSES_MAX:
            known = [(number, each.last_used, each.is_ended) for number, each in self._commands.items()]
            if (number := process_id_to_prune_from_meta(known)) is not None:
                await self._commands.pop(number).end()

    # -- files

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        target: Path = await self._validate_remote_path_access(path, for_write=for_write)
        return target

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object | None:
        return self.state.warren_session_id

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        target = str(await self._validate_path_access(path))
        if user is None:
            with _read_errors(path):
                return io.BytesIO(await self.warren.read_file(target))
        await self._check_read_with_exec(path, user=user)
        return await self._output_of(["cat", "--", target], path, _name(user))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        target = str(await self._validate_path_access(path))
        with _read_errors(path):
            return await self.warren.read_file(target, length=max_bytes)

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        source: Any = coerce_write_payload(path=path, data=data).stream
        target = str(await self._validate_path_access(path, for_write=True))
        if user is None:
            with _write_errors(path):
                await self.warren.write_file(target, source)
            return
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1"'
        result = await self._run(["sh", "-c", script, "sh", target], None, _name(user), source)
        if not result.ok():
            raise WorkspaceArchiveWriteError(path=path, context={"stderr": result.stderr.decode(errors="replace")})

    async def _output_of(self, argv: list[str], path: Path, user: str = "") -> io.IOBase:
        """Returns all that a command writes, however much it is."""
        file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # the caller closes it
        complaints, ends = bytearray(), list[ExecuteResult]()
        how = {**await self._how(user), "cwd": "/"}
        with _read_errors(path):
            async for chunk in self.warren.stream(argv, 0, on_result=ends.append, **how):
                if chunk.stream == "stdout":
                    await asyncio.to_thread(file.write, chunk.data)
                else:
                    complaints += chunk.data
            _raise_if_lost(ends[0])
        if ends[0].exit_code:
            raise WorkspaceArchiveReadError(path=path, context={"stderr": complaints.decode(errors="replace")})
        file.seek(0)
        return cast(io.IOBase, file)

    # -- the workspace as a whole

    async def persist_workspace(self) -> io.IOBase:
        root, left_out = self._workspace_root_path(), self._persist_workspace_skip_relpaths()
        options = self.state.options
        if options.workspace_persistence == "snapshot" and not left_out and not options.session_id:
            with _read_errors(root):
                snapshot = await self.warren.snapshots.create(metadata={_MARK: str(self.state.session_id)})
            return io.BytesIO(_SNAPSHOT + snapshot.snapshot_id.encode())
        excluded = [f"--exclude=./{path.as_posix()}" for path in sorted(left_out)]
        return await self._output_of(["tar", "-C", str(root), "--no-wildcards", *excluded, "-cf", "-", "."], root)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
            await asyncio.to_thread(shutil.copyfileobj, data, file)
            file.seek(0)
            if file.read(len(_SNAPSHOT)) == _SNAPSHOT:
                await self._return_to(file.read().decode(), root)
                return
            file.seek(0)
            script = 'mkdir -p "$1" && tar -C "$1" -xf -'
            result = await self._run(["sh", "-c", script, "sh", str(root)], None, stdin=file)
        if not result.ok():
            raise WorkspaceArchiveWriteError(path=root, context={"stderr": result.stderr.decode(errors="replace")})

    async def _return_to(self, snapshot: str, root: Path) -> None:
        """Goes on in a session that has the files of a snapshot, users and groups among them."""
        if self.state.options.session_id:
            reason = {"reason": "a snapshot cannot be restored in a session that others have made"}
            raise WorkspaceArchiveWriteError(path=root, context=reason)
        with _write_errors(root):
            session_id = await self._client.make_session(self.state, snapshot)
            await self.warren.cleanup()
        await self.warren.close()
        self._replace(session_id)
        self.state.workspace_root_ready = self._start_system_state_preserved = True

    # -- servers inside

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            link = urlsplit(await self.warren.url(port, expires_s=86400.0))
        except WarrenError as exc:
            raise self._no_port(port, str(exc)) from exc
        if not link.hostname or link.path.strip("/"):
            raise self._no_port(port, "the server has no preview_domain, so its links have a path")
        has_tls = link.scheme == "https"
        return ExposedPortEndpoint(link.hostname, link.port or (443 if has_tls else 80), has_tls, link.query)

    def _no_port(self, port: int, detail: str) -> ExposedPortUnavailableError:
        return ExposedPortUnavailableError(
            port=port,
            exposed_ports=self.state.exposed_ports,
            reason="backend_unavailable",
            context={"backend": "warren", "detail": detail},
        )


class _Command:
    """A command in the background, and what it has written that nobody has read yet."""

    def __init__(self, process: AsyncProcess, tty: bool, timeout: float | None) -> None:
        self.process, self.tty = process, tty
        self.output: deque[bytes] = deque()
        self.lock, self.news = asyncio.Lock(), asyncio.Event()
        self.last_used = time.monotonic()
        self.is_ended = False
        self._exit: int | WarrenError = 0
        self._following = asyncio.ensure_future(self._follow(timeout))

    async def _follow(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                async for chunk in self.process.follow():
                    self.output.append(chunk.data)
                    self.news.set()
                result = await self.process.wait()
            _raise_if_lost(result)
            self._exit = result.exit_code
        except TimeoutError:
            self._exit = EXIT_TIMED_OUT
        except WarrenError as exc:
            self._exit = exc
        finally:
            self.is_ended = True
            self.news.set()

    def exit_code(self) -> int:
        """Raises what has cut it off."""
        if isinstance(self._exit, WarrenError):
            raise self._exit
        return self._exit

    async def end(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        try:
            await self.process.forget()
        except WarrenError as exc:
            if not isinstance(exc, GONE):
                _log.warning("command_not_ended process=%s error=%s", self.process.id, exc)


def _name(user: str | User | None) -> str:
    return user.name if isinstance(user, User) else user or ""


def _raise_if_lost(result: ExecuteResult) -> None:
    if result.reason == "sandbox_lost":
        raise SandboxLost("the sandbox was lost while the command ran")


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFound, NotADirectory, InvalidPath) as exc:
        raise WorkspaceReadNotFoundError(path=path, cause=exc) from exc
    except WarrenError as exc:
        raise WorkspaceArchiveReadError(path=path, context=_why(exc), cause=exc, retryable=exc.retryable) from exc


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except WarrenError as exc:
        raise WorkspaceArchiveWriteError(path=path, context=_why(exc), cause=exc, retryable=exc.retryable) from exc


def _why(exc: WarrenError) -> dict[str, object]:
    return {"reason": exc.code, "detail": str(exc)}
