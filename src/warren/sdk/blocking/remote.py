"""The backend that talks to a server: each operation is one request, made from its row of the table."""

# Made from src/warren/sdk/aio/remote.py by scripts/generate_sync.py: edit that one.

import contextlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from warren.sdk.blocking.transport import Socket, Transport
from warren.sdk.protocol import ClientRequest, byte_range, request_for

Values = dict[str, Any]
_EVENTS = "text/event-stream"
_UPLOAD_S = 3600.0


class Remote:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<Remote {self._transport!r}>"

    def call(
        self, operation: str, session_id: str = "", /, *, key: str = "", work_s: float = 0.0, **arguments: Any
    ) -> Values:
        request = request_for(operation, session_id, arguments, key=key, work_s=work_s)
        found: Values = self._transport.call(request)
        return found

    def events(self, operation: str, session_id: str, **arguments: Any) -> Generator[tuple[str, Values], None, None]:
        return self._transport.events(request_for(operation, session_id, arguments, accept=_EVENTS))

    @contextlib.contextmanager
    def download(
        self, operation: str, session_id: str, *, offset: int = 0, length: int | None = None, **arguments: Any
    ) -> Iterator[tuple[int, Generator[bytes, None, None]]]:
        request = request_for(operation, session_id, arguments, byte_range=byte_range(offset, length))
        with self._transport.download(request) as (headers, parts):
            yield int(headers.get("x-file-size", 0)), parts

    def upload(self, operation: str, session_id: str, data: bytes | Iterable[bytes], **arguments: Any) -> Values:
        request = request_for(operation, session_id, arguments, work_s=_UPLOAD_S)
        found: Values = self._transport.upload(request, data)
        return found

    @contextlib.contextmanager
    def socket(self, operation: str, session_id: str, **arguments: Any) -> Iterator[Socket]:
        given = {name: value for name, value in arguments.items() if value != ""}
        with self._transport.socket(request_for(operation, session_id, given)) as socket:
            yield socket

    def create_ticket(self, session_id: str, **values: Any) -> Values:
        path = f"/api/sessions/{quote(session_id, safe='')}/tickets"
        found: Values = self._transport.call(ClientRequest("POST", path, values=values))
        return found

    def stats(self) -> Values:
        found: Values = self._transport.call(ClientRequest("GET", "/api/stats"))
        return found

    def close(self) -> None:
        self._transport.close()
