"""The backend that talks to a server: each method sends one request."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any
from urllib.parse import quote

from warren.sdk.aio.transport import AsyncSocket, AsyncTransport
from warren.sdk.protocol import Request

Values = dict[str, Any]
_EVENTS = "text/event-stream"
_BASE64 = {"encoding": "base64"}


class AsyncRemote:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<AsyncRemote {self._transport!r}>"

    # -- sessions

    async def create(self, wanted: Values, key: str) -> Values:
        return await self._call(Request("POST", "/api/sessions", values=wanted, key=key, work_s=60))

    async def session(self, session_id: str) -> Values:
        return await self._call(Request("GET", _session(session_id)))

    async def sessions(self, **filters: Any) -> Values:
        return await self._call(Request("GET", "/api/sessions", filters))

    async def of_thread(self, thread_id: str) -> Values | None:
        found = await self.sessions(thread_id=thread_id, limit=1)
        return found["sessions"][0] if found["sessions"] else None

    async def delete(self, session_id: str) -> Values:
        return await self._call(Request("DELETE", _session(session_id)))

    async def keep_alive(self, session_id: str) -> Values:
        return await self._call(Request("POST", f"{_session(session_id)}/keep-alive", repeatable=True))

    async def change(self, session_id: str, changes: Values) -> Values:
        return await self._call(Request("PATCH", _session(session_id), values=changes))

    async def stats(self) -> Values:
        return await self._call(Request("GET", "/api/stats"))

    # -- commands

    async def execute(self, session_id: str, command: Values, key: str, takes_s: float) -> Values:
        path = f"{_session(session_id)}/exec"
        return await self._call(Request("POST", path, values=command, key=key, work_s=takes_s))

    def stream(self, session_id: str, command: Values) -> AsyncGenerator[tuple[str, Values], None]:
        path = f"{_session(session_id)}/exec"
        return self._transport.events(Request("POST", path, _BASE64, values=command, accept=_EVENTS))

    async def start(self, session_id: str, command: Values) -> Values:
        return await self._call(Request("POST", f"{_session(session_id)}/processes", values=command))

    async def processes(self, session_id: str) -> list[Values]:
        found = await self._call(Request("GET", f"{_session(session_id)}/processes"))
        processes: list[Values] = found["processes"]
        return processes

    async def process(self, session_id: str, process_id: str) -> Values:
        return await self._call(Request("GET", _process(session_id, process_id)))

    async def output(self, session_id: str, process_id: str, **how: Any) -> Values:
        work_s = float(how.get("wait_s", 0))
        return await self._call(Request("GET", f"{_process(session_id, process_id)}/output", how, work_s=work_s))

    def follow(self, session_id: str, process_id: str, offset: int) -> AsyncGenerator[tuple[str, Values], None]:
        query = {"offset": offset, **_BASE64}
        return self._transport.events(
            Request("GET", f"{_process(session_id, process_id)}/output", query, accept=_EVENTS)
        )

    async def wait(self, session_id: str, process_id: str, timeout_s: float) -> Values | None:
        """Returns None while the command still runs."""
        request = Request("GET", f"{_process(session_id, process_id)}/wait", {"timeout_s": timeout_s}, work_s=timeout_s)
        found = await self._call(request)
        return found if "output" in found else None

    async def stdin(self, session_id: str, process_id: str, values: Values) -> None:
        await self._call(Request("POST", f"{_process(session_id, process_id)}/stdin", values=values, work_s=3600))

    async def signal(self, session_id: str, process_id: str, signal: str | int) -> None:
        await self._call(Request("POST", f"{_process(session_id, process_id)}/signal", values={"signal": signal}))

    async def kill(self, session_id: str, process_id: str, grace_s: float) -> Values:
        path = f"{_process(session_id, process_id)}/kill"
        return await self._call(Request("POST", path, values={"grace_s": grace_s}, work_s=grace_s, repeatable=True))

    async def forget(self, session_id: str, process_id: str) -> None:
        await self._call(Request("DELETE", _process(session_id, process_id)))

    @contextlib.asynccontextmanager
    async def terminal(self, session_id: str, **how: Any) -> AsyncIterator[AsyncSocket]:
        given = {name: value for name, value in how.items() if value != ""}
        async with self._transport.socket(Request("GET", f"{_session(session_id)}/terminal", given)) as socket:
            yield socket

    # -- files

    async def list_files(self, session_id: str, path: str, depth: int) -> list[Values]:
        found = await self._call(Request("GET", _files(session_id), {"path": path, "depth": depth}))
        files: list[Values] = found["files"]
        return files

    async def stat(self, session_id: str, path: str) -> Values:
        return await self._call(Request("GET", f"{_files(session_id)}/stat", {"path": path}))

    @contextlib.asynccontextmanager
    async def read(
        self, session_id: str, path: str, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[tuple[int, AsyncGenerator[bytes, None]]]:
        """Yields the length of the file, and its bytes from `offset` on."""
        request = Request(
            "GET", f"{_files(session_id)}/content", {"path": path}, byte_range=_byte_range(offset, length)
        )
        async with self._transport.download(request) as (headers, parts):
            yield int(headers.get("x-file-size", 0)), parts

    async def write(self, session_id: str, path: str, data: bytes | AsyncIterable[bytes], mode: str) -> Values:
        request = Request("PUT", f"{_files(session_id)}/content", {"path": path, "mode": mode or None}, work_s=3600)
        found: Values = await self._transport.upload(request, data)
        return found

    async def mkdir(self, session_id: str, path: str) -> Values:
        return await self._call(Request("POST", f"{_files(session_id)}/mkdir", values={"path": path}))

    async def remove(self, session_id: str, path: str, recursive: bool) -> None:
        await self._call(Request("DELETE", _files(session_id), {"path": path, "recursive": recursive}))

    async def move(self, session_id: str, source: str, target: str) -> Values:
        return await self._call(
            Request("POST", f"{_files(session_id)}/move", values={"source": source, "target": target})
        )

    @contextlib.asynccontextmanager
    async def pack(self, session_id: str, path: str) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        async with self._transport.download(Request("GET", f"{_files(session_id)}/archive", {"path": path})) as (
            _,
            parts,
        ):
            yield parts

    async def unpack(self, session_id: str, path: str, tar: bytes | AsyncIterable[bytes]) -> int:
        request = Request("PUT", f"{_files(session_id)}/archive", {"path": path}, work_s=3600)
        found = await self._transport.upload(request, tar)
        return int(found["members"])

    def watch(self, session_id: str, path: str, recursive: bool) -> AsyncGenerator[tuple[str, Values], None]:
        request = Request("GET", f"{_files(session_id)}/watch", {"path": path, "recursive": recursive}, accept=_EVENTS)
        return self._transport.events(request)

    async def close(self) -> None:
        await self._transport.close()

    async def _call(self, request: Request) -> Values:
        found: Values = await self._transport.call(request)
        return found


def _byte_range(offset: int, length: int | None) -> str:
    if not offset and length is None:
        return ""
    return f"bytes={offset}-{'' if length is None else offset + length - 1}"


def _session(session_id: str) -> str:
    return f"/api/sessions/{quote(session_id, safe='')}"


def _process(session_id: str, process_id: str) -> str:
    return f"{_session(session_id)}/processes/{quote(process_id, safe='')}"


def _files(session_id: str) -> str:
    return f"{_session(session_id)}/files"
