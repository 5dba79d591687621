"""Finds the sandbox that a call means, and replaces one that is gone.

A sandbox belongs to a thread id, never to an MCP connection: clients open a new connection whenever they like, some
for every call. Each call asks the server for the thread's session, so nothing here can be out of date.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Final
from weakref import WeakValueDictionary

from warren.model.errors import InvalidRequest
from warren.model.session import check_thread_id
from warren.sdk.aio.backend import AsyncBackend, find_session_of_thread
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.aio.session_holder import create_session

THREAD_HEADER: Final = "x-warren-thread"
DEFAULT_THREAD: Final = "mcp"


@dataclass(frozen=True)
class ToolSandbox:
    """The sandbox of one call. `notice`, if any, is what the caller must know about it."""

    thread_id: str
    session_id: str
    client: AsyncSandboxClient
    backend: AsyncBackend
    notice: str = ""


class Sandboxes:
    """The sandboxes of one server, which is connected to with the first call.

    `thread` is the default for calls that name none. `network` is what new sandboxes may reach, as the API takes it;
    `agent` is the agent of the registry that they are made for.
    """

    def __init__(
        self,
        open_backend: Callable[[], AsyncBackend],
        *,
        thread: str = DEFAULT_THREAD,
        environment: str = "",
        network: Mapping[str, Any] | None = None,
        agent: str = "",
    ) -> None:
        self._open_backend, self._thread, self._environment = open_backend, thread, environment
        self._network, self._agent = network, agent
        self._editing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Sandboxes, by default of thread {self._thread}>"

    @cached_property
    def _backend(self) -> AsyncBackend:
        return self._open_backend()

    async def connect(self) -> AsyncBackend:
        if "_backend" not in vars(self):  # what a connection needs takes long to import, and others use this loop
            await asyncio.to_thread(import_module, "warren.sdk.aio.transport")
        return self._backend

    def thread_of(self, name: str, headers: Mapping[str, str] | None) -> str:
        """Returns the thread: the argument, else the header, else the default. Raises InvalidRequest if the two differ.

        Whoever sets the header decides which sandbox the model works in, and the model cannot change that.
        """
        header = (headers or {}).get(THREAD_HEADER, "")
        if name and header and name != header:
            raise InvalidRequest(
                f"this connection belongs to the sandbox {header!r}, it cannot use {name!r}",
                remedy="leave the argument sandbox out",
            )
        return name or header or self._thread

    async def open(self, thread_id: str) -> ToolSandbox:
        """Returns the thread's sandbox; makes one if there is none, replaces a lost one, and the notice says so."""
        check_thread_id(thread_id)
        backend = await self.connect()
        found = await find_session_of_thread(backend, thread_id)
        if found is None or found["state"] != "running":
            options: dict[str, Any] = {"thread_id": thread_id, "replace_lost": True}
            if self._environment or self._agent:
                options["on_mismatch"] = "keep"  # they describe new sandboxes
            if self._environment:
                options["environment"] = self._environment
            if self._agent:
                options["agent_config"] = self._agent
            if self._network is not None:
                options["network"] = dict(self._network)
            found = await create_session(backend, secrets.token_hex(16), options)
        session_id = found["session_id"]
        client = AsyncSandboxClient(session_id=session_id, backend=backend)
        return ToolSandbox(thread_id, session_id, client, backend, _fresh_sandbox_notice(found))

    async def reset(self, thread_id: str) -> ToolSandbox:
        """Ends the thread's sandbox, if there is one, and makes a fresh one."""
        backend = await self.connect()
        found = await find_session_of_thread(backend, thread_id)
        if found is not None:
            await backend.call("delete_session", found["session_id"])
        return await self.open(thread_id)

    def editing(self, thread_id: str) -> asyncio.Lock:
        """Returns the lock to hold while a file is read, changed and written, so that no parallel change is lost."""
        lock = self._editing.get(thread_id)
        if lock is None:
            lock = self._editing[thread_id] = asyncio.Lock()
        return lock

    async def close(self) -> None:
        """Closes the connection to the server; the sandboxes stay."""
        if "_backend" in vars(self):
            await self._backend.close()


def _fresh_sandbox_notice(session: Mapping[str, Any]) -> str:
    previous = session.get("previous")
    if not session.get("created") or previous is None:
        return ""
    return (
        f"Notice: this is a fresh sandbox. The earlier one ended ({previous['reason']}); its files, variables and "
        "background commands are gone."
    )
