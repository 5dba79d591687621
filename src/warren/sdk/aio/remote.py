"""The backend that talks to a server: each operation is one request, made from its row of the table."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any
from urllib.parse import quote

from warren.sdk.aio.transport import AsyncSocket, AsyncTransport
from warren.sdk.protocol import ClientRequest, byte_range, request_for

Values = dict[str, Any]
_EVENTS = "text/event-stream"
_UPLOAD_S = 3600.0


class AsyncRemote:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<AsyncRemote {self._transport!r}>"

    async def call(
        self, operation: str, session_id: str = "", /, *, key: str = "", work_s: float = 0.0, **arguments: Any
    ) -> Values:
        request = request_for(operation, session_id, arguments, key=key, work_s=work_s)
        found: Values = await self._transport.call(request)
        return found

    def events(self, operation: str, session_id: str, **arguments: Any) -> AsyncGenerator[tuple[str, Values], None]:
        return self._transport.events(request_for(operation, session_id, arguments, accept=_EVENTS))

    @contextlib.asynccontextmanager
    async def download(
        self, operation: str, session_id: str, *, offset: int = 0, length: int | None = None, **arguments: Any
    ) -> AsyncIterator[tuple[int, AsyncGenerator[bytes, None]]]:
        request = request_for(operation, session_id, arguments, byte_range=byte_range(offset, length))
        async with self._transport.download(request) as (headers, parts):
            yield int(headers.get("x-file-size", 0)), parts

    async def upload(
        self, operation: str, session_id: str, data: bytes | AsyncIterable[bytes], **arguments: Any
    ) -> Values:
        request = request_for(operation, session_id, arguments, work_s=_UPLOAD_S)
        found: Values = await self._transport.upload(request, data)
        return found

    @contextlib.asynccontextmanager
    async def socket(self, operation: str, session_id: str, **arguments: Any) -> AsyncIterator[AsyncSocket]:
        given = {name: value for name, value in arguments.items() if value != ""}
        async with self._transport.socket(request_for(operation, session_id, given)) as socket:
            yield socket

    async def create_ticket(self, session_id: str, **values: Any) -> Values:
        path = f"/api/sessions/{quote(session_id, safe='')}/tickets"
        found: Values = await self._transport.call(ClientRequest("POST", path, values=values))
        return found

    async def stats(self) -> Values:
        found: Values = await self._transport.call(ClientRequest("GET", "/api/stats"))
        return found

    async def close(self) -> None:
        await self._transport.close()
