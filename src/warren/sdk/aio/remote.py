"""The backend that talks to a server: each operation is one request, made from its row of the table."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any
from urllib.parse import quote

from warren.model.api import OPERATIONS, Reads
from warren.sdk.aio.transport import AsyncSocket, AsyncTransport
from warren.sdk.protocol import Request

Values = dict[str, Any]
_EVENTS = "text/event-stream"
_UPLOAD_S = 3600.0


class AsyncRemote:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<AsyncRemote {self._transport!r}>"

    async def call(
        self, operation: str, session_id: str = "", *, key: str = "", work_s: float = 0.0, **arguments: Any
    ) -> Values:
        request = _request(operation, session_id, arguments, key=key, work_s=work_s)
        found: Values = await self._transport.call(request)
        return found

    def events(self, operation: str, session_id: str, **arguments: Any) -> AsyncGenerator[tuple[str, Values], None]:
        return self._transport.events(_request(operation, session_id, arguments, accept=_EVENTS))

    @contextlib.asynccontextmanager
    async def download(
        self, operation: str, session_id: str, *, offset: int = 0, length: int | None = None, **arguments: Any
    ) -> AsyncIterator[tuple[int, AsyncGenerator[bytes, None]]]:
        request = _request(operation, session_id, arguments, byte_range=_byte_range(offset, length))
        async with self._transport.download(request) as (headers, parts):
            yield int(headers.get("x-file-size", 0)), parts

    async def upload(
        self, operation: str, session_id: str, data: bytes | AsyncIterable[bytes], **arguments: Any
    ) -> Values:
        request = _request(operation, session_id, arguments, work_s=_UPLOAD_S)
        found: Values = await self._transport.upload(request, data)
        return found

    @contextlib.asynccontextmanager
    async def socket(self, operation: str, session_id: str, **arguments: Any) -> AsyncIterator[AsyncSocket]:
        given = {name: value for name, value in arguments.items() if value != ""}
        async with self._transport.socket(_request(operation, session_id, given)) as socket:
            yield socket

    async def create_ticket(self, session_id: str, **values: Any) -> Values:
        path = f"/api/sessions/{quote(session_id, safe='')}/tickets"
        found: Values = await self._transport.call(Request("POST", path, values=values))
        return found

    async def stats(self) -> Values:
        found: Values = await self._transport.call(Request("GET", "/api/stats"))
        return found

    async def close(self) -> None:
        await self._transport.close()


def _request(operation: str, session_id: str, arguments: Values, **more: Any) -> Request:
    row = OPERATIONS[operation]
    given = {name: value for name, value in arguments.items() if value is not None}
    named = {"session_id": session_id, **{name: given.pop(name) for name in row.names_in_path if name in given}}
    path = row.path.format(**{name: quote(value, safe="") for name, value in named.items()})
    method = "GET" if row.method == "WEBSOCKET" else row.method
    if row.reads not in (Reads.JSON, Reads.OPTIONAL_JSON):
        return Request(method, path, given, repeatable=row.repeatable, **more)
    query = {name: given.pop(name) for name in row.in_query if name in given}
    return Request(method, path, query, values=given, repeatable=row.repeatable, **more)


def _byte_range(offset: int, length: int | None) -> str:
    if not offset and length is None:
        return ""
    return f"bytes={offset}-{'' if length is None else offset + length - 1}"
