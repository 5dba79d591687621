"""Warren as a sandbox of agno: `ClaudeAgent(sandbox=WarrenSandbox(image="…"))`.

Each generation of an agno session is one session of Warren, found again by its thread; `create`, `exec`, `pause` and
`destroy` work without an agent, too. A harness (Claude, Codex) needs an image with Python, agno and the harness.
Checkpoints are made and restored inside the sandbox, by agno's own code.
"""

import asyncio
import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Unpack
from uuid import uuid4

from warren.integrations.extras import missing_package

try:
    from agno.sandbox.base import ExecResult, Sandbox, SandboxError, SandboxHandle, _sync
    from agno.sandbox.checkpoint import CheckpointArchive, CheckpointContentError, CheckpointRef, CheckpointStore
    from agno.sandbox.transfer import DEFAULT_NATIVE_EXCLUSIONS
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "agno") from None

from warren.integrations.connections import Connections
from warren.integrations.reports import EXIT_TIMED_OUT
from warren.model.errors import SessionEnded, SessionNotFound, WarrenError
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.options import SandboxOptions
from warren.sdk.results import SessionInfo

RUNTIME_DIR: Final = "/home/sandboxuser/agno"
"""Where agno's runtime and harnesses keep their state in the sandbox."""
_RUNTIME_VARIABLE: Final = "AGNO_SANDBOX_RUNTIME_DIR"
_KEYS: Final = ("namespace", "session", "agent", "generation", "config")
_MARK: Final = "agno_"
_MAX_OUTPUT_BYTES: Final = 4 * 1024 * 1024
_CHECKPOINT_S: Final = 600.0


class WarrenSandbox(Sandbox):
    """Makes and finds the sessions of Warren that agno's sessions run in.

    Takes the options of SandboxClient, and those that agno's sandboxes share. Two agents with the same `namespace`, id
    and session share a sandbox.
    """

    def __init__(
        self,
        server_url: str = "",
        *,
        namespace: str = "default",
        checkpoints: CheckpointStore | None = None,
        execution_timeout: float = 900,
        retain_checkpoints: int | None = 3,
        **options: Unpack[SandboxOptions],
    ) -> None:
        if not 0 < execution_timeout <= 86400:
            raise ValueError(f"execution_timeout is {execution_timeout}, it must be between 0 and 86400 seconds")
        self.namespace, self.checkpoints, self.env = namespace, checkpoints, options.pop("env", None)
        self.execution_timeout, self.retain_checkpoints = execution_timeout, retain_checkpoints
        self._options: dict[str, Any] = {**options, "server_url": server_url}
        mode, api_key = options.get("mode", "remote"), options.get("api_key")
        self._connections = Connections(mode, server_url, api_key)
        self._where: dict[str, Any] = {"server_url": server_url, "mode": mode, "api_key": api_key}

    def __repr__(self) -> str:
        return f"<WarrenSandbox {self.namespace}>"

    def checkpoint_transfer(self, store: CheckpointStore) -> "WarrenCheckpointTransfer":
        return WarrenCheckpointTransfer(self, store)

    async def client(self, handle: SandboxHandle) -> AsyncSandboxClient:
        """Returns a client of the sandbox, for what agno does not have: files, previews, snapshots."""
        return await self._client(handle.provider_ref)

    async def _client(self, session_id: str) -> AsyncSandboxClient:
        return AsyncSandboxClient(session_id=session_id, backend=await self._connections.aio(), **self._where)

    # -- the life of a generation

    async def acreate(
        self,
        session_id: str,
        *,
        agent_id: str | None = None,
        generation: int = 1,
        env: Mapping[str, str] | None = None,
    ) -> SandboxHandle:
        """Makes the sandbox of a generation, or returns it if it runs."""
        marks = self._marks(session_id, agent_id, generation, env)
        existing = await self._find(marks)
        if existing is not None:
            return _running(existing)
        variables = {_RUNTIME_VARIABLE: RUNTIME_DIR, **(env or {})}
        metadata = {**(self._options.get("metadata") or {}), **marks}
        client = AsyncSandboxClient(
            thread_id=_name(marks),
            backend=await self._connections.aio(),
            **{**self._options, "metadata": metadata, "env": variables},
        )
        try:
            with _errors():
                return _running(_handle(await client.create_session(), marks))
        except asyncio.CancelledError:
            await asyncio.shield(client.cleanup())
            raise

    async def afind(
        self,
        session_id: str,
        *,
        agent_id: str | None = None,
        generation: int = 1,
        env: Mapping[str, str] | None = None,
        for_create: bool = False,
    ) -> SandboxHandle | None:
        return await self._find(self._marks(session_id, agent_id, generation, env))

    async def aget(self, provider_ref: str) -> SandboxHandle | None:
        with _errors(), suppress(SessionNotFound, SessionEnded):
            session = await (await self._client(provider_ref)).info()
            if session.metadata.get(f"{_MARK}namespace") != self.namespace:
                raise SandboxError(f"the session {provider_ref} is not of the namespace {self.namespace!r}")
            return _handle(session, session.metadata) if session.state in ("running", "paused") else None
        return None

    async def astop(self, handle: SandboxHandle) -> None:
        """Ends the session: as with agno's own sandboxes, what goes on needs a new generation and a checkpoint."""
        with _errors(), suppress(SessionNotFound, SessionEnded):
            await (await self.client(handle)).cleanup()

    async def adestroy(self, handle: SandboxHandle) -> None:
        await self.astop(handle)

    async def apause(self, handle: SandboxHandle) -> None:
        with _errors():
            client = await self.client(handle)
            if (await client.info()).state != "paused":
                await client.pause(auto_resume=False)

    async def aresume(self, handle: SandboxHandle) -> SandboxHandle:
        with _errors():
            session = await (await self.client(handle)).resume()
        return _running(_handle(session, session.metadata))

    async def _find(self, marks: Mapping[str, str]) -> SandboxHandle | None:
        with _errors():
            found = await AsyncSandboxClient.list_sessions(thread_id=_name(marks), **self._where)
        if not found:
            return None
        handle = _handle(found[0], found[0].metadata)
        if handle.config_digest != marks[f"{_MARK}config"]:
            raise SandboxError(f"the session {handle.provider_ref} was made with another configuration")
        return handle

    def _marks(
        self, session_id: str, agent_id: str | None, generation: int, env: Mapping[str, str] | None
    ) -> dict[str, str]:
        if not session_id or type(generation) is not int or generation < 1:
            raise ValueError(f"there is no generation {generation!r} of the session {session_id!r}")
        known = {name: value for name, value in self._options.items() if name not in ("api_key", "server_url")}
        config = json.dumps([known, sorted((env or {}).items())], sort_keys=True, default=repr)
        digest = hashlib.sha256(config.encode()).hexdigest()
        values = (self.namespace, session_id, agent_id or "", str(generation), digest)
        return {f"{_MARK}{key}": value for key, value in zip(_KEYS, values, strict=True)}

    # -- commands

    async def aexec(
        self,
        handle: SandboxHandle,
        argv: Sequence[str],
        *,
        timeout: float = 60,
        max_output_bytes: int = 1_048_576,
        stdin: bytes = b"",
    ) -> ExecResult:
        if isinstance(argv, (str, bytes)) or not argv:
            raise ValueError("a command is a list of texts, such as ['ls', '-l']")
        if not 0 < timeout < math.inf or not 1 <= max_output_bytes <= _MAX_OUTPUT_BYTES:
            raise ValueError(f"a time-out must be positive, and the output have 1 to {_MAX_OUTPUT_BYTES} bytes")
        with _errors():
            client = await self.client(handle)
            result = await client.execute(
                list(argv), timeout, stdin=stdin, carry_state=False, keep_bytes=max_output_bytes
            )
        if result.reason == "sandbox_lost":
            raise SandboxError("the sandbox was lost while the command ran")
        timed_out = result.reason == "timeout"
        return ExecResult(
            exit_code=EXIT_TIMED_OUT if timed_out else result.exit_code,
            stdout=result.stdout_bytes.decode(errors="replace"),
            stderr=result.stderr_bytes.decode(errors="replace"),
            timed_out=timed_out,
            output_limited=result.truncated,
        )


class WarrenCheckpointTransfer:
    """Moves checkpoints between sandboxes and agno's store; `python` of the sandbox must have agno."""

    def __init__(self, sandbox: WarrenSandbox, store: CheckpointStore) -> None:
        self.sandbox, self.store, self.archive = sandbox, store, CheckpointArchive()

    async def acapture(
        self, handle: SandboxHandle, *, state: Mapping[str, Any], exclude: Sequence[str] = DEFAULT_NATIVE_EXCLUSIONS
    ) -> CheckpointRef:
        with tempfile.TemporaryDirectory() as folder:
            local, remote = Path(folder) / "checkpoint.tar", _new_path()
            try:
                await self._run(handle, _CAPTURE, remote, {"state": dict(state), "exclude": list(exclude)})
                with _errors():
                    await (await self.sandbox.client(handle)).download_file(remote, local)
            finally:
                await self._forget(handle, remote)
            await self.archive.avalidate(local)
            return await self.store.aput(local)

    async def arestore(self, handle: SandboxHandle, reference: CheckpointRef) -> Mapping[str, Any]:
        remote = _new_path()
        async with self.store.aopen_archive(reference) as local:
            state: Mapping[str, Any] = await self.archive.avalidate(local)
            try:
                with _errors():
                    await (await self.sandbox.client(handle)).upload_file(local, remote)
                await self._run(handle, _RESTORE, remote, {})
            except BaseException:
                await asyncio.shield(self.sandbox.astop(handle))  # half of the files are no state to go on with
                raise
        await self._forget(handle, remote)
        return state

    def capture(
        self, handle: SandboxHandle, *, state: Mapping[str, Any], exclude: Sequence[str] = DEFAULT_NATIVE_EXCLUSIONS
    ) -> CheckpointRef:
        reference: CheckpointRef = _sync(self.acapture(handle, state=state, exclude=exclude))
        return reference

    def restore(self, handle: SandboxHandle, reference: CheckpointRef) -> Mapping[str, Any]:
        state: Mapping[str, Any] = _sync(self.arestore(handle, reference))
        return state

    async def _run(self, handle: SandboxHandle, program: str, path: str, given: dict[str, Any]) -> None:
        request = {**given, "path": path, "limits": asdict(self.archive.limits)}
        argv = ["python", "-I", "-c", _PRELUDE + program]
        done = await self.sandbox.aexec(handle, argv, stdin=json.dumps(request).encode(), timeout=_CHECKPOINT_S)
        if done.exit_code:
            kind = CheckpointContentError if CheckpointContentError.__name__ in done.stderr else SandboxError
            raise kind(f"the checkpoint failed: {done.stderr[-1000:].strip()}")

    async def _forget(self, handle: SandboxHandle, path: str) -> None:
        with suppress(WarrenError):
            await (await self.sandbox.client(handle)).remove(path)


_PRELUDE: Final = f"""
import json, os, shutil, sys
from pathlib import Path
from agno.sandbox.checkpoint import CheckpointArchive, CheckpointLimits
given = json.load(sys.stdin)
archive, path = CheckpointArchive(CheckpointLimits(**given["limits"])), Path(given["path"])
native = Path(os.environ["{_RUNTIME_VARIABLE}"]) / "native"
native.mkdir(parents=True, exist_ok=True)
roots = {{"workspace": Path("/workspace"), "native": native}}
"""
_CAPTURE: Final = """
archive.capture(roots, path, state=given["state"], exclude=given["exclude"])
"""
_RESTORE: Final = """
if any(any(root.iterdir()) for root in roots.values()):
    sys.exit("a checkpoint is restored into a sandbox that is empty")
taken = path.with_suffix(".d")
links = {"absolute_links": True} if "absolute_links" in CheckpointArchive.restore.__code__.co_varnames else {}
archive.restore(path, taken, **links)
for name, root in roots.items():
    for each in (taken / name).iterdir():
        shutil.move(each, root / each.name)
shutil.copymode(taken / "native", native)
shutil.rmtree(taken)
"""


def _new_path() -> str:
    return f"/tmp/agno-checkpoint-{uuid4().hex}.tar"


def _name(marks: Mapping[str, str]) -> str:
    """Returns the thread of a generation."""
    identity = json.dumps([marks[f"{_MARK}{key}"] for key in _KEYS[:-1]])
    return f"agno-{hashlib.sha256(identity.encode()).hexdigest()[:40]}"


def _handle(session: SessionInfo, marks: Mapping[str, str]) -> SandboxHandle:
    return SandboxHandle(
        provider_ref=session.session_id,
        name=_name(marks),
        agent_id=marks[f"{_MARK}agent"] or None,
        session_id=marks[f"{_MARK}session"],
        generation=int(marks[f"{_MARK}generation"]),
        state=session.state,
        config_digest=marks[f"{_MARK}config"],
    )


def _running(handle: SandboxHandle) -> SandboxHandle:
    if handle.state != "running":
        raise SandboxError(f"the session {handle.provider_ref} is {handle.state}: resume it or destroy it")
    return handle


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except WarrenError as exc:
        raise SandboxError(str(exc)) from exc
