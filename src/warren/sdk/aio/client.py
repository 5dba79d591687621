"""`AsyncSandboxClient`: a sandbox of one's own, in a few lines.

Making one does nothing yet; the session is made with the first use, or with `create_session`, or on entering
`async with`. On leaving, a session without a thread is ended; a thread's session stays for the conversation's next
turn, until `cleanup` or its time-outs end it. A client may be used by any number of tasks, or threads, at once; one of
an event loop only in that loop.
"""

import base64
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Self

from warren.model.errors import InvalidRequest, ServerUnreachable, SessionNotFound, WarrenError
from warren.sdk.aio.backend import AsyncBackend
from warren.sdk.aio.files import AsyncFiles
from warren.sdk.aio.platform import before_long, open_backend
from warren.sdk.aio.process import AsyncProcess, AsyncTerminal, open_terminal, start_terminal
from warren.sdk.chunks import Chunks
from warren.sdk.results import ExecuteResult, OutputChunk, ProcessInfo, SessionInfo
from warren.sdk.wire import new_key

COMMAND_TIMEOUT_S: Final = 120.0
_ANSWER_SLACK_S: Final = 30.0
_SHELL: Final = "exec bash -l"
_PAGE: Final = 1000
_GIVE_UP_S: Final = 5.0  # so long a session that nobody wants any more is waited for; then its time-outs end it


class AsyncSandboxClient(AsyncFiles):
    """A client of one session.

    `mode`: "remote" talks to the server at `server_url` (by default WARREN_URL, else http://localhost:8000); "local"
    works on this machine in this process, without a server. `exactly_once` makes commands safe to repeat, and
    repeats them when the connection breaks; it costs the server a little more. `replace_lost`: when the thread's
    sandbox has died, go on in a fresh one; the result's `notice` then says that earlier files are gone. `labels`: what
    the machine must have that the sandbox is on, such as {"gpu": "1"}. `provider`: what makes the sandbox, one of the
    server's providers.
    """

    def __init__(
        self,
        server_url: str = "",
        thread_id: str = "",
        *,
        mode: str = "remote",
        api_key: str = "",
        session_id: str = "",
        environment: str = "",
        image: str = "",
        limits: Mapping[str, float] | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        require: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        provider: str = "",
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        timeout: float = COMMAND_TIMEOUT_S,
        replace_lost: bool = False,
        exactly_once: bool = False,
        backend: AsyncBackend | None = None,
    ) -> None:
        # What it was made with, but for whose session: enough to make another like it.
        self.options = {k: v for k, v in locals().items() if k not in ("self", "__class__", "session_id", "backend")}
        if session_id and thread_id:
            raise InvalidRequest(
                "a client has a session_id or a thread_id, not both",
                remedy="leave out thread_id: the session knows its thread",
            )
        if mode not in ("remote", "local"):
            raise InvalidRequest(f"there is no mode {mode!r}", remedy="there are: remote, local")
        wanted: dict[str, Any] = {
            name: value
            for name, value in {
                "thread_id": thread_id,
                "environment": environment,
                "image": image,
                "limits": dict(limits or {}),
                "env": dict(env or {}),
                "metadata": dict(metadata or {}),
                "require": list(require),
                "labels": dict(labels or {}),
                "provider": provider,
                "idle_timeout_s": idle_timeout_s,
                "max_lifetime_s": max_lifetime_s,
                "replace_lost": replace_lost,
            }.items()
            if value
        }
        super().__init__(backend or open_backend(mode, server_url, api_key), wanted, session_id)
        self._owns_backend = backend is None
        self.timeout = timeout
        self.exactly_once = exactly_once

    def __repr__(self) -> str:
        whose = f" of thread {self.thread_id}" if self.thread_id else ""
        return f"<AsyncSandboxClient {self.session_id or 'without a session'}{whose}, {self._backend!r}>"

    @classmethod
    def attach(cls, session_id: str, server_url: str = "", **options: Any) -> Self:
        """A client of a session that is there. Leaving it does not end the session."""
        if not session_id:
            raise InvalidRequest("to attach takes the id of a session", remedy="it is `client.session_id`")
        return cls(server_url, session_id=session_id, **options)

    @classmethod
    async def delete_thread(cls, thread_id: str, server_url: str = "", **options: Any) -> bool:
        """Ends the session of a thread, if it has one; says whether it had."""
        client = cls(server_url, **options)
        try:
            found = await client._backend.of_thread(thread_id)
            if found is not None:
                await client._backend.delete(found["session_id"])
            return found is not None
        finally:
            await client.close()

    @classmethod
    async def list_sessions(
        cls,
        server_url: str = "",
        *,
        states: Sequence[str] = (),
        thread_id: str = "",
        environment: str = "",
        metadata: Mapping[str, str] | None = None,
        **options: Any,
    ) -> list[SessionInfo]:
        """The sessions there are, newest first: by default all that have not ended."""
        pairs = [f"{name}={value}" for name, value in (metadata or {}).items()]
        wanted = {"state": list(states), "thread_id": thread_id, "environment": environment, "metadata": pairs}
        client = cls(server_url, **options)
        found: list[SessionInfo] = []
        after: str | None = ""
        try:
            while after is not None:
                page = await client._backend.sessions(limit=_PAGE, after=after, **wanted)
                found += [SessionInfo.of(each) for each in page["sessions"]]
                after = page["next"]
        finally:
            await client.close()
        return found

    async def __aenter__(self) -> Self:
        try:
            await self._session()
        except BaseException as exc:
            try:
                if not isinstance(exc, Exception):
                    await before_long(self._give_up, _GIVE_UP_S)
            finally:
                await self.close()
            raise
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        # What went wrong in the block says more than that the session could not be ended either.
        also = (WarrenError,) if error is not None else ()
        with contextlib.suppress(*also):
            await self.leave()

    async def leave(self) -> None:
        """Ends the session, unless it is a thread's or was there before, and lets go of connections."""
        try:
            if not self.thread_id and not self._attached_to:
                await self.cleanup()
                await before_long(self._give_up, _GIVE_UP_S)
        finally:
            await self.close()

    # -- the session

    async def create_session(self) -> SessionInfo:
        """Makes the session now; gives the one there is, if it was made before."""
        before = self.session_id
        await self._session()
        return await self.info() if before else SessionInfo.of(self._made)

    async def info(self) -> SessionInfo:
        """The session as it is, with the isolation really in force. Looking does not keep it alive."""
        return SessionInfo.of(await self._call(self._backend.session))

    async def keep_alive(self) -> SessionInfo:
        return SessionInfo.of(await self._call(self._backend.keep_alive))

    async def change(self, **changes: Any) -> SessionInfo:
        """`idle_timeout_s`, `max_lifetime_s`, `metadata` (a None takes an entry away)."""
        return SessionInfo.of(await self._call(lambda session_id: self._backend.change(session_id, changes)))

    async def cleanup(self) -> None:
        """Ends the session and waits until its sandbox is gone. Nothing happens if there is none."""
        session_id, self.session_id = self.session_id, ""
        if not session_id and self.thread_id:
            found = await self._backend.of_thread(self.thread_id)
            session_id = found["session_id"] if found else ""
        if session_id:
            with contextlib.suppress(SessionNotFound):
                await self._backend.delete(session_id)

    async def close(self) -> None:
        """Lets go of connections; the session stays."""
        if self._owns_backend:
            await self._backend.close()

    # -- commands

    async def execute(
        self,
        command: str | Sequence[str],
        timeout: float | None = None,
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
        stdin: str | bytes = b"",
        carry_state: bool = True,
        keep_bytes: int | None = None,
    ) -> ExecuteResult:
        """Runs a command to its end. A text is a line for bash, which begins where the last one ended.

        A non-zero exit, a time-out or running out of memory are results (see `reason`), not exceptions.
        """
        limit_s = self.timeout if timeout is None else timeout
        values = _command(command, limit_s, cwd, env, user, carry_state, keep_bytes)
        values.update(_input(stdin))
        key = new_key() if self.exactly_once else ""
        takes_s = limit_s + _ANSWER_SLACK_S
        found = await self._call(lambda session_id: self._backend.execute(session_id, values, key, takes_s))
        notice, self._notice = self._notice, None
        return ExecuteResult.of({**found, "notice": notice})

    async def stream(
        self,
        command: str | Sequence[str],
        timeout: float | None = None,
        *,
        on_result: Callable[[ExecuteResult], None] | None = None,
        stdin: str | bytes = b"",
        **options: Any,
    ) -> AsyncGenerator[OutputChunk, None]:
        """The output of a command as it comes; leaving the loop ends the command. `on_result` hears how it ended."""
        limit_s = self.timeout if timeout is None else timeout
        values = {**_command(command, limit_s, **options), **_input(stdin)}
        chunks, ended = Chunks(), False
        events = self._events(lambda session_id: self._backend.stream(session_id, values))
        async with contextlib.aclosing(events):
            async for name, event in events:
                if name == "output":
                    yield chunks.chunk(event)
                elif name == "result":
                    ended = True
                    for rest in chunks.rest():
                        yield rest
                    if on_result is not None:
                        on_result(ExecuteResult.of(event))
        if not ended:
            raise ServerUnreachable("the stream ended before the command did", remedy="the server may have stopped")

    async def spawn(
        self, command: str | Sequence[str], *, name: str = "", timeout: float | None = None, **options: Any
    ) -> AsyncProcess:
        """Starts a command in the background. `name` is an id of your own for it."""
        values = _command(command, timeout, **options)
        if name:
            values["process_id"] = name

        async def begin(session_id: str) -> AsyncProcess:
            started = await self._backend.start(session_id, values)
            return AsyncProcess(self._backend, session_id, started["process_id"])

        return await self._call(begin)

    async def processes(self) -> list[ProcessInfo]:
        return [ProcessInfo.of(each) for each in await self._call(self._backend.processes)]

    async def process(self, process_id: str) -> AsyncProcess:
        """One that was started before, perhaps by another program."""

        async def find(session_id: str) -> AsyncProcess:
            await self._backend.process(session_id, process_id)
            return AsyncProcess(self._backend, session_id, process_id)

        return await self._call(find)

    @contextlib.asynccontextmanager
    async def terminal(
        self,
        command: str = "",
        *,
        rows: int = 24,
        columns: int = 80,
        process_id: str = "",
        offset: int = 0,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> AsyncIterator[AsyncTerminal]:
        """A terminal with a shell, or one to come back to: it goes on when the block is left."""
        how: dict[str, Any] = {"rows": rows, "columns": columns, "process_id": process_id, "offset": offset}

        def opened(session_id: str) -> AbstractAsyncContextManager[AsyncTerminal]:
            if not env and not user:
                return open_terminal(self._backend, session_id, **how, command=command, cwd=cwd)
            values = {**_command(command or _SHELL, None, cwd, env, user), "process_id": process_id}
            return start_terminal(self._backend, session_id, values, **how)

        async with self._opened(opened) as terminal:
            yield terminal


def _input(stdin: str | bytes) -> dict[str, Any]:
    """Text as it is; bytes, and text that stands for bytes which are none, encoded."""
    if isinstance(stdin, str) and not stdin.isascii():
        stdin = stdin.encode(errors="surrogateescape")
    if isinstance(stdin, bytes):
        return {"stdin_base64": base64.b64encode(stdin).decode()} if stdin else {}
    return {"stdin": stdin} if stdin else {}


def _command(
    command: str | Sequence[str],
    timeout: float | None,
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    user: str = "",
    carry_state: bool = True,
    keep_bytes: int | None = None,
) -> dict[str, Any]:
    values: dict[str, Any] = {"command": command if isinstance(command, str) else list(command)}
    given = {"timeout_s": timeout, "cwd": cwd, "env": dict(env or {}), "user": user, "keep_bytes": keep_bytes}
    values.update({name: value for name, value in given.items() if value not in (None, "", {})})
    return values if carry_state else {**values, "carry_state": False}
