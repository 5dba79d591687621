"""Clients for the threads (conversations) of LangGraph: every thread has one sandbox.

`ClientPair` holds the two clients of a session, a blocking and an async one. `ThreadClients` keeps a pair for each
thread; all pairs share their connections. No request is sent before the first use.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack

from warren.integrations.extras import missing_package

try:
    from langgraph.config import get_config
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "langchain") from None

from warren.integrations.connections import Connections
from warren.model.errors import InvalidRequest
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.options import SandboxOptions

P = ParamSpec("P")
T = TypeVar("T")

_MAX_THREADS: Final = 4096


def current_thread() -> str:
    """Returns the thread id of the running LangGraph graph, also in its tools and subagents. Raises InvalidRequest."""
    try:
        configurable = get_config().get("configurable", {})
    except RuntimeError:
        configurable = {}
    return thread_id_from(configurable)


def thread_id_from(configurable: Any) -> str:
    thread_id = (configurable or {}).get("thread_id")
    if thread_id in (None, ""):
        raise InvalidRequest(
            "there is no thread id, so it is not known whose sandbox to use",
            remedy='run the agent with config={"configurable": {"thread_id": "…"}}',
        )
    return str(thread_id)


class ClientPair:
    """The clients of one session: one may be given; the others are made like it and join its session."""

    def __init__(
        self, connections: Connections, options: dict[str, Any], given: SandboxClient | AsyncSandboxClient | None = None
    ) -> None:
        self.connections, self._options, self._given = connections, options, given
        self._last_session = ""
        self._blocking = given if isinstance(given, SandboxClient) else None
        # A client's lock belongs to an event loop, so each loop has a client of its own.
        self._aio: dict[asyncio.AbstractEventLoop, AsyncSandboxClient] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, client: SandboxClient | AsyncSandboxClient) -> "ClientPair":
        target = (client.options[name] for name in ("mode", "server_url", "api_key"))
        return cls(Connections(*target), client.options, client)

    @property
    def session_id(self) -> str:
        """Empty while there is no session."""
        return self._given.session_id if self._given is not None else self._last_session

    def run(self, work: Callable[Concatenate[SandboxClient, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Calls `work` with the blocking client and these arguments."""
        with self._lock:
            if self._blocking is None:
                self._blocking = SandboxClient(**self._options, backend=self.connections.blocking())
            client = self._blocking
            self._join_session(client)
        try:
            return work(client, *args, **options)
        finally:
            self._note_session(client)

    async def arun(
        self, work: Callable[Concatenate[AsyncSandboxClient, P], Awaitable[T]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Calls `work` with the async client of this event loop and these arguments."""
        client = self._given if isinstance(self._given, AsyncSandboxClient) else await self._client_of_loop()
        self._join_session(client)
        try:
            return await work(client, *args, **options)
        finally:
            self._note_session(client)

    async def _client_of_loop(self) -> AsyncSandboxClient:
        backend, loop = await self.connections.aio(), asyncio.get_running_loop()
        with self._lock:
            if loop not in self._aio:
                self._aio = {known: each for known, each in self._aio.items() if not known.is_closed()}
                self._aio[loop] = AsyncSandboxClient(**self._options, backend=backend)
            return self._aio[loop]

    def _join_session(self, client: SandboxClient | AsyncSandboxClient) -> None:
        # A client of a thread asks the server for the thread's session, and learns whether it is a new one.
        if not client.session_id and not client.thread_id:
            client.session_id = self.session_id

    def _note_session(self, client: SandboxClient | AsyncSandboxClient) -> None:
        self._last_session = client.session_id
        if self._given is not None and not self._given.thread_id:
            self._given.session_id = client.session_id


class ThreadClients:
    """Keeps a pair of clients for each thread."""

    def __init__(self, server_url: str = "", **options: Unpack[SandboxOptions]) -> None:
        for name in ("thread_id", "session_id", "backend"):
            if name in options:
                raise InvalidRequest(f"{name} cannot be given here: every thread has a sandbox of its own")
        self._options: dict[str, Any] = {"replace_lost": True, **options}
        mode, api_key = options.get("mode", "remote"), options.get("api_key")
        self.connections = Connections(mode, server_url, api_key)
        self._make: Callable[[str], ClientPair] = lambda thread_id: ClientPair(
            self.connections, {**self._options, "server_url": server_url, "thread_id": thread_id}
        )
        self._pairs: OrderedDict[str, ClientPair] = OrderedDict()
        self._lock = threading.Lock()
        SandboxClient(server_url, **self._options, backend=_NO_BACKEND)  # raises for a wrong option now, not in a run

    def __repr__(self) -> str:
        return f"<ThreadClients {len(self._pairs)} threads>"

    def pair(self, thread_id: str = "") -> ClientPair:
        """Returns the pair of a thread, by default of the running graph's."""
        thread_id = thread_id or current_thread()
        with self._lock:
            if thread_id not in self._pairs:
                self._pairs[thread_id] = self._make(thread_id)
            self._pairs.move_to_end(thread_id)
            while len(self._pairs) > _MAX_THREADS:
                self._pairs.popitem(last=False)  # the sandbox stays, and its thread finds it again
            return self._pairs[thread_id]

    def delete(self, thread_id: str) -> None:
        """Ends a thread's sandbox, if it has one."""
        self.pair(thread_id).run(SandboxClient.cleanup)

    async def adelete(self, thread_id: str) -> None:
        await self.pair(thread_id).arun(AsyncSandboxClient.cleanup)


_NO_BACKEND: Any = object()
