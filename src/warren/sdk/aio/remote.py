"""A server over HTTP as a backend: each verb is one request."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any
from urllib.parse import quote

from warren.sdk.aio.transport import AsyncSocket, AsyncTransport
from warren.sdk.wire import Ask

Values = dict[str, Any]
_EVENTS = "text/event-stream"
_EVERY_BYTE = {"encoding": "base64"}


class AsyncRemote:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<AsyncRemote {self._transport!r}>"

    # -- sessions

    async def create(self, wanted: Values, key: str) -> Values:
        return await self._ask(Ask("POST", "/api/sessions", values=wanted, key=key, takes_s=60))

    async def session(self, session_id: str) -> Values:
        return await self._ask(Ask("GET", _session(session_id)))

    async def sessions(self, **filters: Any) -> Values:
        return await self._ask(Ask("GET", "/api/sessions", filters))

    async def of_thread(self, thread_id: str) -> Values | None:
        found = await self.sessions(thread_id=thread_id, limit=1)
        return found["sessions"][0] if found["sessions"] else None

    async def delete(self, session_id: str) -> Values:
        return await self._ask(Ask("DELETE", _session(session_id)))

    async def keep_alive(self, session_id: str) -> Values:
        return await self._ask(Ask("POST", f"{_session(session_id)}/keep-alive", repeatable=True))

    async def change(self, session_id: str, changes: Values) -> Values:
        return await self._ask(Ask("PATCH", _session(session_id), values=changes))

    async def stats(self) -> Values:
        return await self._ask(Ask("GET", "/api/stats"))

    # -- commands

    async def execute(self, session_id: str, command: Values, key: str, takes_s: float) -> Values:
        path = f"{_session(session_id)}/exec"
        return await self._ask(Ask("POST", path, values=command, key=key, takes_s=takes_s))

    def stream(self, session_id: str, command: Values) -> AsyncGenerator[tuple[str, Values], None]:
        path = f"{_session(session_id)}/exec"
        return self._transport.events(Ask("POST", path, _EVERY_BYTE, values=command, accept=_EVENTS))

    async def start(self, session_id: str, command: Values) -> Values:
        return await self._ask(Ask("POST", f"{_session(session_id)}/processes", values=command))

    async def processes(self, session_id: str) -> list[Values]:
        found = await self._ask(Ask("GET", f"{_session(session_id)}/processes"))
        processes: list[Values] = found["processes"]
        return processes

    async def process(self, session_id: str, process_id: str) -> Values:
        return await self._ask(Ask("GET", _process(session_id, process_id)))

    async def output(self, session_id: str, process_id: str, **how: Any) -> Values:
        takes_s = float(how.get("wait_s", 0))
        return await self._ask(Ask("GET", f"{_process(session_id, process_id)}/output", how, takes_s=takes_s))

    def follow(self, session_id: str, process_id: str, offset: int) -> AsyncGenerator[tuple[str, Values], None]:
        query = {"offset": offset, **_EVERY_BYTE}
        return self._transport.events(Ask("GET", f"{_process(session_id, process_id)}/output", query, accept=_EVENTS))

    async def wait(self, session_id: str, process_id: str, timeout_s: float) -> Values | None:
        """None: it still runs."""
        ask = Ask("GET", f"{_process(session_id, process_id)}/wait", {"timeout_s": timeout_s}, takes_s=timeout_s)
        found = await self._ask(ask)
        return found if "output" in found else None

    async def stdin(self, session_id: str, process_id: str, values: Values) -> None:
        await self._ask(Ask("POST", f"{_process(session_id, process_id)}/stdin", values=values, takes_s=3600))

    async def signal(self, session_id: str, process_id: str, signal: str | int) -> None:
        await self._ask(Ask("POST", f"{_process(session_id, process_id)}/signal", values={"signal": signal}))

    async def kill(self, session_id: str, process_id: str, grace_s: float) -> Values:
        path = f"{_process(session_id, process_id)}/kill"
        return await self._ask(Ask("POST", path, values={"grace_s": grace_s}, takes_s=grace_s, repeatable=True))

    async def forget(self, session_id: str, process_id: str) -> None:
        await self._ask(Ask("DELETE", _process(session_id, process_id)))

    @contextlib.asynccontextmanager
    async def terminal(self, session_id: str, **how: Any) -> AsyncIterator[AsyncSocket]:
        given = {name: value for name, value in how.items() if value != ""}
        async with self._transport.socket(Ask("GET", f"{_session(session_id)}/terminal", given)) as socket:
            yield socket

    # -- files

    async def list_files(self, session_id: str, path: str, depth: int) -> list[Values]:
        found = await self._ask(Ask("GET", _files(session_id), {"path": path, "depth": depth}))
        files: list[Values] = found["files"]
        return files

    async def stat(self, session_id: str, path: str) -> Values:
        return await self._ask(Ask("GET", f"{_files(session_id)}/stat", {"path": path}))

    @contextlib.asynccontextmanager
    async def read(
        self, session_id: str, path: str, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[tuple[int, AsyncGenerator[bytes, None]]]:
        """How long the file is, and its bytes, or those of them that were asked for."""
        ask = Ask("GET", f"{_files(session_id)}/content", {"path": path}, part=_part(offset, length))
        async with self._transport.receive(ask) as (headers, parts):
            yield int(headers.get("x-file-size", 0)), parts

    async def write(self, session_id: str, path: str, data: bytes | AsyncIterable[bytes], mode: str) -> Values:
        ask = Ask("PUT", f"{_files(session_id)}/content", {"path": path, "mode": mode or None}, takes_s=3600)
        found: Values = await self._transport.send(ask, data)
        return found

    async def mkdir(self, session_id: str, path: str) -> Values:
        return await self._ask(Ask("POST", f"{_files(session_id)}/mkdir", values={"path": path}))

    async def remove(self, session_id: str, path: str, recursive: bool) -> None:
        await self._ask(Ask("DELETE", _files(session_id), {"path": path, "recursive": recursive}))

    async def move(self, session_id: str, source: str, target: str) -> Values:
        return await self._ask(Ask("POST", f"{_files(session_id)}/move", values={"source": source, "target": target}))

    @contextlib.asynccontextmanager
    async def pack(self, session_id: str, path: str) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        async with self._transport.receive(Ask("GET", f"{_files(session_id)}/archive", {"path": path})) as (_, parts):
            yield parts

    async def unpack(self, session_id: str, path: str, tar: bytes | AsyncIterable[bytes]) -> int:
        ask = Ask("PUT", f"{_files(session_id)}/archive", {"path": path}, takes_s=3600)
        found = await self._transport.send(ask, tar)
        return int(found["members"])

    def watch(self, session_id: str, path: str, recursive: bool) -> AsyncGenerator[tuple[str, Values], None]:
        ask = Ask("GET", f"{_files(session_id)}/watch", {"path": path, "recursive": recursive}, accept=_EVENTS)
        return self._transport.events(ask)

    async def close(self) -> None:
        await self._transport.close()

    async def _ask(self, ask: Ask) -> Values:
        found: Values = await self._transport.ask(ask)
        return found


def _part(offset: int, length: int | None) -> str:
    if not offset and length is None:
        return ""
    return f"bytes={offset}-{'' if length is None else offset + length - 1}"


def _session(session_id: str) -> str:
    return f"/api/sessions/{quote(session_id, safe='')}"


def _process(session_id: str, process_id: str) -> str:
    return f"{_session(session_id)}/processes/{quote(process_id, safe='')}"


def _files(session_id: str) -> str:
    return f"{_session(session_id)}/files"
