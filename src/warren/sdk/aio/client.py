"""`AsyncSandboxClient`: a sandbox of your own, in a few lines.

The constructor does no I/O. The first use makes the session, or `create_session`, or entering `async with`. Leaving
`async with` ends a session without a thread; a thread's session stays for the conversation's next turn, until
`cleanup` or its time-outs end it. Any number of tasks, or threads, may share a client; one for asyncio belongs to its
event loop.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from warren.model.errors import InvalidRequest, ServerUnreachable, SessionNotFound, WarrenError
from warren.sdk.aio.artifacts import AsyncArtifacts
from warren.sdk.aio.backend import AsyncBackend, find_session_of_thread, list_all
from warren.sdk.aio.code import AsyncCode
from warren.sdk.aio.files import AsyncFiles
from warren.sdk.aio.platform import AsyncByteSource, open_backend, remind_to_close, run_at_most
from warren.sdk.aio.process import AsyncProcess, AsyncTerminal, open_terminal, start_terminal
from warren.sdk.aio.snapshots import SNAPSHOT_S, AsyncSnapshots
from warren.sdk.aio.volumes import AsyncVolumes
from warren.sdk.options import (
    AttachOptions,
    CommandOptions,
    Mode,
    ServerOptions,
    SessionChanges,
    WorkOptions,
    check_options,
    command_values,
    network_values,
    session_values,
    stdin_values,
)
from warren.sdk.protocol import COMMAND_TIMEOUT_S, IMAGE_TIMEOUT_S, new_key, work_s
from warren.sdk.results import (
    EntryInfo,
    EnvironmentInfo,
    ExecuteResult,
    ImageInfo,
    LogEntry,
    MetricsInfo,
    NetworkInfo,
    OutputChunk,
    OutputDecoder,
    PortInfo,
    ProcessInfo,
    SessionInfo,
    Ticket,
)

if TYPE_CHECKING:
    from warren.model.network import NetworkRules

_SHORT_INPUT: Final = 1024 * 1024  # longer input would not fit into a request
_SHELL: Final = "exec bash -l"
_ABANDONED_S: Final = 5.0  # the time to end a session that was interrupted in the making; then its time-outs end it


class AsyncSandboxClient(AsyncFiles, AsyncCode):
    """A client of one session.

    `mode`: "remote" talks to the server at `server_url` (by default WARREN_URL, else this machine at WARREN_PORT, or
    8000); "local" works on this machine in this process, without a server. `session_id` joins a session that exists.
    `api_key`: by default WARREN_API_KEY, else the one that a server of this user has left; an empty one sends no key.

    `options` say what a new session is like. `environment`, `image` and `limits`: what its sandbox is made of. `env`:
    variables of its commands. `network`: what it may reach, such as {"allow": ["api.example.com"]}; by default what the
    environment says, which is nothing unless the operator has changed it. `secrets`: names of secrets that requests of
    the sandbox carry. `gpus`: graphics processors for this sandbox alone, how many or which, where the operator allows
    them. `volumes`: named disks in the sandbox, such as "cache:/workspace/cache:ro", or a mapping with `name`, `path`,
    `read_only` and `size_mb`, which makes one that is not there. `require`: isolation without which the session is
    refused. `labels`: what the sandbox's machine must have, such as {"gpu": "1"}. `provider`: one of the server's
    providers. `agent_config`: the agent that the session is for, by its name in the registry or as a mapping; it gives
    what the other options do not. `snapshot`: the name or id of a snapshot whose files it starts with. `logs`: how much
    of what it does is kept ("commands" or "output"), see `logs()`. `idle_timeout_s` and `max_lifetime_s` end the
    session. `on_idle`: "pause" instead lets it stand still when it is not used for its idle time-out, `max_paused_s` at
    most; whoever uses it resumes it, unless `auto_resume` is False. `replace_lost`: when the thread's sandbox has died,
    the client goes on in a fresh one, and the result's `notice` says that earlier files are gone. `on_mismatch`: when
    the thread has a session with another environment, image, provider, limit or number of gpus than these options name,
    "error" (the default) raises SessionMismatch, "keep" uses that session, and "replace" ends it and makes a new one;
    `notice` then says so.

    The others say how the client works. `timeout` is that of commands without one. `exactly_once` makes commands safe
    to repeat, and repeats them when the connection breaks; it costs the server a little more. `image_timeout_s`: how
    long the first use waits while the server builds the environment's image; meanwhile the client calls
    `on_image_progress` with an ImageBuilding, whose `step`, `fraction` and `about` tell how far the server is.
    `direct`: in a cluster whose workers take clients, what is about a session goes to its worker itself.
    """

    def __init__(
        self,
        server_url: str = "",
        thread_id: str = "",
        *,
        mode: Mode = "remote",
        api_key: str | None = None,
        session_id: str = "",
        backend: AsyncBackend | None = None,
        **options: Unpack[WorkOptions],
    ) -> None:
        check_options(options)
        if session_id and thread_id:
            raise InvalidRequest(
                "a client has a session_id or a thread_id, not both",
                remedy="leave out thread_id: the session knows its thread",
            )
        if mode not in ("remote", "local"):
            raise InvalidRequest(f"there is no mode {mode!r}", remedy="there are: remote, local")
        super().__init__(
            backend or open_backend(mode, server_url, api_key, direct=options.get("direct", False)),
            session_values(thread_id, options),
            session_id,
            options.get("image_timeout_s", IMAGE_TIMEOUT_S),
            options.get("on_image_progress"),
        )
        # All arguments but the session: enough to make another client like this one.
        self.options: dict[str, Any] = {
            "server_url": server_url,
            "thread_id": thread_id,
            "mode": mode,
            "api_key": api_key,
            **options,
        }
        self._owns_backend = backend is None
        self._stop_reminding: Callable[[], object] = lambda: None
        self._ended_session = ""
        self._is_fork = False
        self.timeout = options.get("timeout", COMMAND_TIMEOUT_S)
        self.exactly_once = options.get("exactly_once", False)

    def __repr__(self) -> str:
        owner = f" of thread {self.thread_id}" if self.thread_id else ""
        return f"<AsyncSandboxClient {self.session_id or 'without a session'}{owner}, {self._backend!r}>"

    @property
    def artifacts(self) -> AsyncArtifacts:
        """The artifacts of this client: files that outlive the sandbox."""
        return AsyncArtifacts(self._backend, self._perform, self._owner_of_artifacts())

    @property
    def snapshots(self) -> AsyncSnapshots:
        """Snapshots, from which sessions start: `create` saves the files of this client's session."""
        return AsyncSnapshots(self._backend, self._perform)

    @property
    def volumes(self) -> AsyncVolumes:
        """The volumes of this client's tenant: named disks that outlive sessions."""
        return AsyncVolumes(self._backend)

    def _owner_of_artifacts(self) -> dict[str, Any]:
        if self.thread_id:
            return {"thread_id": self.thread_id}
        session_id = self.session_id or self._ended_session
        return {"session_id": session_id} if session_id else {}

    @classmethod
    def attach(cls, session_id: str, server_url: str = "", **options: Unpack[AttachOptions]) -> Self:
        """Returns a client of a session that exists. Leaving the client does not end the session."""
        if not session_id:
            raise InvalidRequest("attach takes the id of a session", remedy="it is `client.session_id`")
        return cls(server_url, session_id=session_id, **options)

    @classmethod
    async def delete_thread(cls, thread_id: str, server_url: str = "", **options: Unpack[ServerOptions]) -> bool:
        """Ends the session of a thread; returns whether it had one."""
        async with cls._connect(server_url, options) as backend:
            found = await find_session_of_thread(backend, thread_id)
            if found is not None:
                await backend.call("delete_session", found["session_id"])
            return found is not None

    @classmethod
    async def list_sessions(
        cls,
        server_url: str = "",
        *,
        states: Sequence[str] = (),
        thread_id: str = "",
        environment: str = "",
        metadata: Mapping[str, str] | None = None,
        search: str = "",
        **options: Unpack[ServerOptions],
    ) -> list[SessionInfo]:
        """Returns the sessions of the server, newest first: by default all that have not ended.

        `search` is a text in the session id, the thread id or the metadata.
        """
        pairs = [f"{name}={value}" for name, value in (metadata or {}).items()]
        filters: dict[str, Any] = {
            "state": list(states),
            "thread_id": thread_id,
            "environment": environment,
            "metadata": pairs,
            "search": search,
        }
        async with cls._connect(server_url, options) as backend:
            return [SessionInfo.of(each) for each in await list_all(backend, "sessions", **filters)]

    @classmethod
    async def list_environments(cls, server_url: str = "", **options: Unpack[ServerOptions]) -> list[EnvironmentInfo]:
        """Returns the environments that a session may be made of."""
        found = await cls._ask(server_url, "list_environments", options)
        return [EnvironmentInfo.of(each) for each in found["environments"]]

    @classmethod
    async def list_images(cls, server_url: str = "", **options: Unpack[ServerOptions]) -> list[ImageInfo]:
        """Returns the images that a session may be made of, each with the version that new sandboxes get."""
        found = await cls._ask(server_url, "list_images", options)
        return [ImageInfo.of(each) for each in found["images"]]

    @classmethod
    async def list_registry(cls, kind: str, server_url: str = "", **options: Unpack[ServerOptions]) -> list[EntryInfo]:
        """Returns the registry's entries of a kind: environments, agents, tools or prompts."""
        found = await cls._ask(server_url, "list_registry", options, kind=kind)
        return [EntryInfo.of(each) for each in found["entries"]]

    @classmethod
    async def get_registry_entry(
        cls, kind: str, name: str, server_url: str = "", **options: Unpack[ServerOptions]
    ) -> dict[str, Any]:
        """Returns an entry of the registry as its file has it. Raises NotFound."""
        return await cls._ask(server_url, "get_registry_entry", options, kind=kind, entry=name)

    @classmethod
    async def render_prompt(
        cls,
        name: str,
        variables: Mapping[str, str] | None = None,
        server_url: str = "",
        **options: Unpack[ServerOptions],
    ) -> str:
        """Returns the text of a prompt of the registry with these values for its variables."""
        values = dict(variables or {})
        text: str = (await cls._ask(server_url, "render_prompt", options, entry=name, variables=values))["text"]
        return text

    @classmethod
    async def _ask(cls, server_url: str, operation: str, options: ServerOptions, **which: Any) -> dict[str, Any]:
        async with cls._connect(server_url, options) as backend:
            return await backend.call(operation, **which)

    @classmethod
    @contextlib.asynccontextmanager
    async def _connect(cls, server_url: str, options: ServerOptions) -> AsyncIterator[AsyncBackend]:
        client = cls(server_url, **options)
        try:
            yield client._backend
        finally:
            await client.close()

    async def __aenter__(self) -> Self:
        try:
            await self._get_session()
        except BaseException as exc:
            try:
                if not isinstance(exc, Exception):
                    await run_at_most(self._end_abandoned_session, _ABANDONED_S)
            finally:
                await self.close()
            raise
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        # The error of the block says more than the one of ending the session.
        suppressed = (WarrenError,) if error is not None else ()
        with contextlib.suppress(*suppressed):
            await self.leave()

    async def leave(self) -> None:
        """Ends the session, unless it is a thread's or was attached to, and closes connections. A fork is ended."""
        try:
            if not self.thread_id and (self._is_fork or not self._attached_to):
                await self.cleanup()
                await run_at_most(self._end_abandoned_session, _ABANDONED_S)
        finally:
            await self.close()

    # -- the session

    async def _create(self) -> None:
        await super()._create()
        if self._owns_backend and self.options["mode"] == "remote":  # what is local ends with the program
            self._stop_reminding()
            self._stop_reminding = remind_to_close(self, repr(self))

    async def create_session(self) -> SessionInfo:
        """Makes the session now; returns the existing one if it was made before."""
        existed = self.session_id
        await self._get_session()
        return await self.info() if existed else SessionInfo.of(self._created)

    async def info(self) -> SessionInfo:
        """Returns the session as it is, with the isolation really in force. This does not keep it alive."""
        return SessionInfo.of(await self._perform("get_session"))

    async def keep_alive(self) -> SessionInfo:
        """Restarts the idle time-out without using the sandbox."""
        return SessionInfo.of(await self._perform("keep_session_alive"))

    async def change(self, **changes: Unpack[SessionChanges]) -> SessionInfo:
        """Changes `idle_timeout_s`, `max_lifetime_s` or `metadata` (None removes an entry); returns the session."""
        return SessionInfo.of(await self._perform("change_session", **changes))

    async def pause(
        self, *, max_paused_s: float | None = None, auto_resume: bool | None = None, to_disk: bool = False
    ) -> SessionInfo:
        """Stops everything in the sandbox, which keeps its memory; its time-outs stand still as well. What is under way
        goes on when the session is resumed: by `resume`, or by its next use unless `auto_resume` is False. It ends when
        it is paused for `max_paused_s`. What is not given stays as it is. With `to_disk` its files alone are kept, and
        restored in a fresh sandbox when it is resumed."""
        given = {"max_paused_s": max_paused_s, "auto_resume": auto_resume, "to_disk": to_disk or None}
        values = {name: value for name, value in given.items() if value is not None}
        return SessionInfo.of(await self._perform("pause_session", **values))

    async def resume(self) -> SessionInfo:
        """Lets everything in the sandbox go on. Does nothing to a session that is not paused."""
        return SessionInfo.of(await self._perform("resume_session"))

    async def network(self) -> NetworkInfo:
        """Returns what the sandbox may reach, what it has reached, and what it was refused lately."""
        return NetworkInfo.of(await self._perform("get_network"))

    async def metrics(self) -> MetricsInfo:
        """Returns what the session uses now (processors, memory, disk, processes, network) and used in the last
        minutes. This does not keep it alive."""
        return MetricsInfo.of(await self._perform("get_metrics"))

    async def set_network(
        self,
        rules: "NetworkRules | Mapping[str, Any] | None" = None,
        *,
        internet: bool = False,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
    ) -> NetworkInfo:
        """Replaces what the sandbox may reach, all rules at once; without arguments it reaches nothing any more.

        When this returns the new rules hold, and connections that they do not allow are cut.
        """
        given = {"internet": internet, "allow": allow, "deny": deny}
        values = network_values(given if rules is None else rules)
        return NetworkInfo.of(await self._perform("set_network", **values))

    async def fork(
        self, count: int = 1, *, thread_ids: Sequence[str] = (), metadata: Mapping[str, str] | None = None
    ) -> list[Self]:
        """Starts sessions with the files of this one as they are now, and returns a client of each.

        Files are carried; processes and memory are not. Leaving a client ends its session, unless it has a thread. If
        some sessions could not be made, such as for a quota, there are fewer clients; if none could, it raises why.
        """
        given = {"count": count, "thread_ids": list(thread_ids), "metadata": dict(metadata or {})}
        made = await self._perform("fork_session", key=new_key(), work_s=SNAPSHOT_S, **given)
        return [self._client_of_fork(session) for session in made["sessions"]]

    def _client_of_fork(self, session: Mapping[str, Any]) -> Self:
        kept: dict[str, Any] = {
            name: self.options[name] for name in ("mode", "api_key", "timeout", "exactly_once") if name in self.options
        }
        if not self._owns_backend:
            kept["backend"] = self._backend
        client = type(self)(self.options["server_url"], session_id=session["session_id"], **kept)
        client._is_fork = not session["thread_id"]
        return client

    async def logs(
        self, *, follow: bool = False, after: int = 0, last: int | None = None, kinds: Sequence[str] = ()
    ) -> AsyncGenerator[LogEntry, None]:
        """Yields what the session has logged, the oldest first, also after its end. `after`: only entries with greater
        ids. `last`: begin with the newest so many. `kinds`: only these, such as command and output. With `follow` it
        goes on with what comes, until the session has ended. Reading does not keep the session alive."""
        session_id = self.session_id or self._ended_session or self._attached_to
        if not session_id and self.thread_id:
            found = await find_session_of_thread(self._backend, self.thread_id)
            session_id = found["session_id"] if found else ""
        if not session_id:
            return  # there was no session yet
        wanted: dict[str, Any] = {"kinds": ",".join(kinds)}
        page: dict[str, Any] = {"more": True, "next": after}
        while page["more"]:
            page = await self._backend.call("read_logs", session_id, after=page["next"], last=last, **wanted)
            last = None
            for entry in page["entries"]:
                yield LogEntry.of(entry)
        if not follow or page["ended"]:
            return
        following = self._backend.events("read_logs", session_id, after=page["next"], **wanted)
        async with contextlib.aclosing(following) as events:
            async for name, values in events:
                if name == "entry":
                    yield LogEntry.of(values)

    async def delete_logs(self) -> None:
        """Deletes what the session has logged so far, also after its end."""
        if session_id := self.session_id or self._ended_session or self._attached_to:
            await self._backend.call("delete_logs", session_id)

    async def attach_volume(
        self, name: str, path: str, *, read_only: bool = False, size_mb: int | None = None
    ) -> SessionInfo:
        """Mounts a volume in the sandbox at `path`, which is made if it is not there. With `size_mb` a volume that is
        not there is made, too."""
        given: dict[str, Any] = {"name": name, "path": path, "read_only": read_only, "size_mb": size_mb}
        return SessionInfo.of(await self._perform("attach_volume", **given))

    async def detach_volume(self, path: str) -> SessionInfo:
        """Takes the volume at `path` away; what programs have open in it stays open for them."""
        return SessionInfo.of(await self._perform("detach_volume", path=path))

    async def cleanup(self, *, logs: bool = False) -> None:
        """Ends the session and waits until its sandbox is gone; with `logs` its log is deleted, too. Does nothing if
        there is none."""
        session_id, self.session_id = self.session_id, ""
        self._ended_session = session_id or self._ended_session
        if not session_id and self.thread_id:
            found = await find_session_of_thread(self._backend, self.thread_id)
            session_id = found["session_id"] if found else ""
        if session_id:
            with contextlib.suppress(SessionNotFound):
                await self._backend.call("delete_session", session_id, logs=logs or None)

    async def close(self) -> None:
        """Closes connections; the session stays."""
        self._stop_reminding()
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
        stdin: str | bytes | AsyncByteSource = b"",
        carry_state: bool = True,
        keep_bytes: int | None = None,
        save_artifacts: Sequence[str] = (),
    ) -> ExecuteResult:
        """Runs a command to its end. A text is a line for bash, with the directory and variables of the line before.

        A non-zero exit, a time-out or running out of memory are results (see `reason`), not exceptions. A time-out of
        0 is none: the command runs as long as the server allows. `stdin` may also be an open file, or any iterable of
        bytes. Long input goes through a file of the sandbox, and such a command is not repeated by `exactly_once`.
        `save_artifacts`: files and globs that are saved as artifacts when it has ended.
        """
        limit_s = self.timeout if timeout is None else timeout
        values = command_values(command, limit_s, cwd, env, user, carry_state, keep_bytes)
        if save_artifacts:
            values["save_artifacts"] = list(save_artifacts)
        async with self._input(stdin, user) as (input_values, is_file):
            values.update(input_values)
            key = new_key() if self.exactly_once and not is_file else ""
            found = await self._perform("run_command", key=key, work_s=work_s(limit_s), **values)
        notice, self._notice = self._notice, None
        return ExecuteResult.of({**found, "notice": notice})

    @contextlib.asynccontextmanager
    async def _input(
        self, stdin: str | bytes | AsyncByteSource, user: str
    ) -> AsyncIterator[tuple[dict[str, Any], bool]]:
        """Yields the fields of a request for its input, and whether that is a file, which the block removes."""
        if isinstance(stdin, (str, bytes)) and len(stdin) <= _SHORT_INPUT:
            yield stdin_values(stdin), False
            return
        path = f"/tmp/.warren-input-{new_key()}"
        data = stdin.encode(errors="surrogateescape") if isinstance(stdin, str) else stdin
        try:
            await self.write_file(path, data, mode=0o600, user=user)
            yield {"stdin_path": path}, True
        finally:
            with contextlib.suppress(WarrenError):
                if self.session_id:
                    await self._backend.call("remove_file", self.session_id, path=path, user=user)

    async def stream(
        self,
        command: str | Sequence[str],
        timeout: float | None = None,
        *,
        on_result: Callable[[ExecuteResult], None] | None = None,
        stdin: str | bytes | AsyncByteSource = b"",
        **options: Unpack[CommandOptions],
    ) -> AsyncGenerator[OutputChunk, None]:
        """Yields the output of a command as it comes; leaving the loop ends it. `on_result` receives its result.

        `timeout` and `stdin` are as for `execute`.
        """
        limit_s = self.timeout if timeout is None else timeout
        values = command_values(command, limit_s, **options)
        decoder, ended = OutputDecoder(), False
        async with self._input(stdin, values.get("user", "")) as (input_values, _):
            events = self._follow("run_command", encoding="base64", **values, **input_values)
            async with contextlib.aclosing(events):
                async for name, event in events:
                    if name == "output":
                        yield decoder.decode(event)
                    elif name == "result":
                        ended = True
                        for rest in decoder.finish():
                            yield rest
                        if on_result is not None:
                            on_result(ExecuteResult.of(event))
        if not ended:
            raise ServerUnreachable("the stream ended before the command did", remedy="the server may have stopped")

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        name: str = "",
        timeout: float | None = None,
        **options: Unpack[CommandOptions],
    ) -> AsyncProcess:
        """Starts a command in the background and returns it. `name` is a process id of your own."""
        values = command_values(command, timeout, **options)
        if name:
            values["process_id"] = name

        async def start(session_id: str) -> AsyncProcess:
            started = await self._backend.call("start_process", session_id, **values)
            return AsyncProcess(self._backend, session_id, started["process_id"])

        return await self._call(start)

    async def processes(self) -> list[ProcessInfo]:
        """Returns the background commands and terminals of the sandbox, also those that have ended."""
        return [ProcessInfo.of(each) for each in (await self._perform("list_processes"))["processes"]]

    async def process(self, process_id: str) -> AsyncProcess:
        """Returns a background command, perhaps started by another program. Raises ProcessNotFound."""

        async def find(session_id: str) -> AsyncProcess:
            await self._backend.call("get_process", session_id, process_id=process_id)
            return AsyncProcess(self._backend, session_id, process_id)

        return await self._call(find)

    async def kill_all(self) -> int:
        """Ends everything that runs in the sandbox, also when no process can be started, as after a fork bomb.

        Returns the number of processes. Files, and the output of background commands, stay.
        """
        return int((await self._perform("kill_all"))["killed"])

    # -- servers inside

    async def ports(self) -> list[PortInfo]:
        """Returns the TCP ports on which servers inside the sandbox listen."""
        return [PortInfo.of(each) for each in (await self._perform("list_ports"))["ports"]]

    async def wait_for_port(self, port: int, timeout: float = 30.0) -> None:
        """Returns when a server inside listens on the port; raises PortClosed if none does in time."""
        await self._perform("list_ports", work_s=timeout, wait_for=port, timeout_s=timeout)

    async def url(self, port: int, *, expires_s: float = 3600.0, host_header: str = "", by_path: bool = False) -> str:
        """Returns a link that opens the server on this port in a browser, without a key, until it expires.

        `host_header="localhost"`: the server sees that as its host, for those that refuse names they do not know.
        `by_path`: a path of Warren's server instead of a host of its own, for programs that cannot resolve that host,
        such as one below `localhost`.
        """
        values = {"expires_s": expires_s, "host_header": host_header, "by_path": by_path}
        made = await self._perform("create_link", port=port, **values)
        return str(made["url"])

    async def revoke_links(self) -> None:
        """Closes every link that `url` has made for this session."""
        await self._perform("revoke_links")

    async def set_port(self, port: int, *, public: bool | None = None, host_header: str | None = None) -> None:
        """Makes the preview of a port public or private, and sets the host that its server sees."""
        await self._perform("change_port", port=str(port), public=public, host_header=host_header)

    async def create_ticket(
        self,
        *,
        process_id: str = "",
        read_only: bool = False,
        expires_s: float = 3600.0,
        origins: Sequence[str] = (),
    ) -> Ticket:
        """Returns a ticket that opens the session's terminals, or only one process, in a browser that has no key.

        `read_only`: to watch the process, not to type. `origins` are the sites that may show the page in a frame, such
        as `https://app.example.com`. Needs a server: local mode has none.
        """

        async def make(session_id: str) -> Ticket:
            values = {"process_id": process_id, "read_only": read_only, "expires_in_s": expires_s}
            return Ticket.of(await self._backend.create_ticket(session_id, **values, origins=list(origins)))

        return await self._call(make)

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
        """Opens a terminal with a shell, or returns to one. The terminal goes on when the block is left."""
        how: dict[str, Any] = {"rows": rows, "columns": columns, "process_id": process_id, "offset": offset}

        def open_in(session_id: str) -> AbstractAsyncContextManager[AsyncTerminal]:
            if not env and not user:
                return open_terminal(self._backend, session_id, **how, command=command, cwd=cwd)
            values = {**command_values(command or _SHELL, None, cwd, env, user), "process_id": process_id}
            return start_terminal(self._backend, session_id, values, **how)

        async with self._open(open_in) as terminal:
            yield terminal
