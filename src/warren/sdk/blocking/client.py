"""`SandboxClient`: a sandbox of one's own, in a few lines.

Making one does nothing yet; the session is made with the first use, or with `create_session`, or on entering
`with`. On leaving, a session without a thread is ended; a thread's session stays for the conversation's next
turn, until `cleanup` or its time-outs end it.
"""

# Made from ../aio/client.py by scripts/generate_sync.py: edit that one.

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

from warren.model.errors import InvalidRequest, SessionNotFound
from warren.sdk.blocking.backend import Backend
from warren.sdk.blocking.files import Files
from warren.sdk.blocking.flavour import Lock, open_backend
from warren.sdk.blocking.process import Process, Terminal, open_terminal
from warren.sdk.results import ExecuteResult, OutputChunk, ProcessInfo, SessionInfo

COMMAND_TIMEOUT_S: Final = 120.0
_ANSWER_SLACK_S: Final = 30.0


class SandboxClient(Files):
    """A client of one session.

    `mode`: "remote" talks to the server at `server_url` (by default WARREN_URL, else http://localhost:8000); "local"
    works on this machine in this process, without a server. `exactly_once` makes commands safe to repeat, and
    repeats them when the connection breaks; it costs the server a little more. `replace_lost`: when the thread's
    sandbox has died, go on in a fresh one; the result's `notice` then says that earlier files are gone.
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
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        timeout: float = COMMAND_TIMEOUT_S,
        replace_lost: bool = False,
        exactly_once: bool = False,
        backend: Backend | None = None,
    ) -> None:
        if session_id and thread_id:
            raise InvalidRequest("give either session_id or thread_id")
        if mode not in ("remote", "local"):
            raise InvalidRequest(f"there is no mode {mode!r}", remedy="there are: remote, local")
        self.session_id = session_id
        self.thread_id = thread_id
        self.timeout = timeout
        self.exactly_once = exactly_once
        self._backend = backend or open_backend(mode, server_url, api_key)
        self._owns_backend = backend is None
        self._attached = bool(session_id)
        self._wanted: dict[str, Any] = {
            name: value
            for name, value in {
                "thread_id": thread_id,
                "environment": environment,
                "image": image,
                "limits": dict(limits or {}),
                "env": dict(env or {}),
                "metadata": dict(metadata or {}),
                "require": list(require),
                "idle_timeout_s": idle_timeout_s,
                "max_lifetime_s": max_lifetime_s,
                "replace_lost": replace_lost,
            }.items()
            if value
        }
        self._creating = Lock()
        self._notice: str | None = None

    def __repr__(self) -> str:
        whose = f" of thread {self.thread_id}" if self.thread_id else ""
        return f"<SandboxClient {self.session_id or 'without a session'}{whose}, {self._backend!r}>"

    @classmethod
    def attach(cls, session_id: str, server_url: str = "", **options: Any) -> Self:
        """A client of a session that is there. Leaving it does not end the session."""
        return cls(server_url, session_id=session_id, **options)

    @classmethod
    def delete_thread(cls, thread_id: str, server_url: str = "", **options: Any) -> bool:
        """Ends the session of a thread, if it has one; says whether it had."""
        client = cls(server_url, **options)
        try:
            found = client._backend.of_thread(thread_id)
            if found is not None:
                client._backend.delete(found["session_id"])
            return found is not None
        finally:
            client.close()

    def __enter__(self) -> Self:
        try:
            self._session()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self.thread_id and not self._attached:
                self.cleanup()
        finally:
            self.close()

    # -- the session

    def create_session(self) -> SessionInfo:
        """Makes the session now; gives the one there is, if it was made before."""
        self._session()
        return self.info()

    def _session(self) -> str:
        if not self.session_id:
            with self._creating:
                if not self.session_id:
                    made = self._backend.create(self._wanted, secrets.token_hex(16))
                    self.session_id = made["session_id"]
                    self._notice = _notice(made)
        return self.session_id

    def info(self) -> SessionInfo:
        """The session as it is, with the isolation really in force. Looking does not keep it alive."""
        return SessionInfo.of(self._backend.session(self._session()))

    def keep_alive(self) -> SessionInfo:
        return SessionInfo.of(self._backend.keep_alive(self._session()))

    def change(self, **changes: Any) -> SessionInfo:
        """`idle_timeout_s`, `max_lifetime_s`, `metadata` (a None takes an entry away)."""
        return SessionInfo.of(self._backend.change(self._session(), changes))

    def cleanup(self) -> None:
        """Ends the session and waits until its sandbox is gone. Nothing happens if there is none."""
        session_id, self.session_id = self.session_id, ""
        if not session_id and self.thread_id:
            found = self._backend.of_thread(self.thread_id)
            session_id = found["session_id"] if found else ""
        if session_id:
            with contextlib.suppress(SessionNotFound):
                self._backend.delete(session_id)

    def close(self) -> None:
        """Lets go of connections; the session stays."""
        if self._owns_backend:
            self._backend.close()

    # -- commands

    def execute(
        self,
        command: str | Sequence[str],
        timeout: float | None = None,
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
        stdin: str = "",
        carry_state: bool = True,
        keep_bytes: int | None = None,
    ) -> ExecuteResult:
        """Runs a command to its end. A text is a line for bash, which begins where the last one ended.

        A non-zero exit, a time-out or running out of memory are results (see `reason`), not exceptions.
        """
        limit_s = self.timeout if timeout is None else timeout
        values = _command(command, limit_s, cwd, env, user, carry_state, keep_bytes)
        if stdin:
            values["stdin"] = stdin
        key = secrets.token_hex(16) if self.exactly_once else ""
        session_id = self._session()
        found = self._backend.execute(session_id, values, key, limit_s + _ANSWER_SLACK_S)
        notice, self._notice = self._notice, None
        return ExecuteResult.of({**found, "notice": notice})

    def stream(
        self,
        command: str | Sequence[str],
        timeout: float | None = None,
        *,
        on_result: Callable[[ExecuteResult], None] | None = None,
        **options: Any,
    ) -> Iterator[OutputChunk]:
        """The output of a command as it comes; leaving the loop ends the command. `on_result` hears how it ended."""
        limit_s = self.timeout if timeout is None else timeout
        values = _command(command, limit_s, **options)
        for name, event in self._backend.stream(self._session(), values):
            if name == "output":
                yield OutputChunk.of(event)
            elif name == "result" and on_result is not None:
                on_result(ExecuteResult.of(event))

    def spawn(
        self, command: str | Sequence[str], *, name: str = "", timeout: float | None = None, **options: Any
    ) -> Process:
        """Starts a command in the background. `name` is an id of your own for it."""
        values = _command(command, timeout, **options)
        if name:
            values["process_id"] = name
        session_id = self._session()
        started = self._backend.start(session_id, values)
        return Process(self._backend, session_id, started["process_id"])

    def processes(self) -> list[ProcessInfo]:
        return [ProcessInfo.of(each) for each in self._backend.processes(self._session())]

    def process(self, process_id: str) -> Process:
        """One that was started before, perhaps by another program."""
        session_id = self._session()
        self._backend.process(session_id, process_id)
        return Process(self._backend, session_id, process_id)

    @contextlib.contextmanager
    def terminal(
        self, command: str = "", *, rows: int = 24, columns: int = 80, process_id: str = "", offset: int = 0
    ) -> Iterator[Terminal]:
        """A terminal with a shell, or one to come back to: it goes on when the block is left."""
        how = {"command": command, "rows": rows, "columns": columns, "process_id": process_id, "offset": offset}
        with open_terminal(self._backend, self._session(), **how) as terminal:
            yield terminal


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


def _notice(made: Mapping[str, Any]) -> str | None:
    previous = made.get("previous")
    if not made.get("created") or previous is None:
        return None
    return (
        f"This is a fresh sandbox: the thread's earlier session ended ({previous['reason']}), and its files are gone."
    )
