"""The backend that talks to a server: each operation is one request, made from its row of the table."""

# Made from src/warren/sdk/aio/remote.py by scripts/generate_sync.py: edit that one.

import contextlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from warren.model.api import OPERATIONS, Reads
from warren.sdk.blocking.transport import Socket, Transport
from warren.sdk.protocol import Request

Values = dict[str, Any]
_EVENTS = "text/event-stream"
_UPLOAD_S = 3600.0


class Remote:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<Remote {self._transport!r}>"

    def call(
        self, operation: str, session_id: str = "", *, key: str = "", work_s: float = 0.0, **arguments: Any
    ) -> Values:
        request = _request(operation, session_id, arguments, key=key, work_s=work_s)
        found: Values = self._transport.call(request)
        return found

    def events(self, operation: str, session_id: str, **arguments: Any) -> Generator[tuple[str, Values], None, None]:
        return self._transport.events(_request(operation, session_id, arguments, accept=_EVENTS))

    @contextlib.contextmanager
    def download(
        self, operation: str, session_id: str, *, offset: int = 0, length: int | None = None, **arguments: Any
    ) -> Iterator[tuple[int, Generator[bytes, None, None]]]:
        request = _request(operation, session_id, arguments, byte_range=_byte_range(offset, length))
        with self._transport.download(request) as (headers, parts):
            yield int(headers.get("x-file-size", 0)), parts

    def upload(self, operation: str, session_id: str, data: bytes | Iterable[bytes], **arguments: Any) -> Values:
        request = _request(operation, session_id, arguments, work_s=_UPLOAD_S)
        found: Values = self._transport.upload(request, data)
        return found

    @contextlib.contextmanager
    def socket(self, operation: str, session_id: str, **arguments: Any) -> Iterator[Socket]:
        given = {name: value for name, value in arguments.items() if value != ""}
        with self._transport.socket(_request(operation, session_id, given)) as socket:
            yield socket

    def create_ticket(self, session_id: str, **values: Any) -> Values:
        path = f"/api/sessions/{quote(session_id, safe='')}/tickets"
        found: Values = self._transport.call(Request("POST", path, values=values))
        return found

    def stats(self) -> Values:
        found: Values = self._transport.call(Request("GET", "/api/stats"))
        return found

    def close(self) -> None:
        self._transport.close()


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
