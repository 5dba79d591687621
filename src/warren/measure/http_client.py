"""The client that times a server: HTTP/1.1 over kept-alive connections, with as little work per request as possible.

It shares the machine's cores with the server it measures, so it is an asyncio protocol on a raw socket: one write
for a request, one scan for the end of the response. It reads only responses with a Content-Length, which the server
sends for JSON.
"""

import asyncio
import json
from typing import Any, NamedTuple, cast


class Response(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Any:
        if self.status >= 400:
            raise RequestFailed(f"{self.status}: {self.body.decode(errors='replace')}")
        return json.loads(self.body)


class RequestFailed(Exception):
    pass


class Client(asyncio.Protocol):
    """One connection; one request at a time. With `key`, every request carries that API key."""

    def __init__(self, key: str = "") -> None:
        self._key = key
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._length = -1  # of head and body, once the head has come
        self._response: asyncio.Future[Response] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is one without declaring it

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._length < 0 and (end := self._received.find(b"\r\n\r\n")) >= 0:
            self._length = end + 4 + _content_length(bytes(self._received[:end]))
        if 0 <= self._length <= len(self._received):
            self._finish_response()

    def _finish_response(self) -> None:
        body = self._received.index(b"\r\n\r\n") + 4
        response = Response(int(self._received[9:12]), bytes(self._received[body : self._length]))
        del self._received[: self._length]
        self._length = -1
        if self._response is not None and not self._response.done():
            self._response.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(RequestFailed(f"the connection was lost: {exc}"))

    async def send(self, message: bytes) -> Response:
        if self._transport is None or self._transport.is_closing():
            raise RequestFailed("the connection is closed")
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(with_key(message, self._key) if self._key else message)
        return await self._response

    async def call(self, method: str, path: str, body: object = None) -> Any:
        return (await self.send(message(method, path, body))).json()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def message(method: str, path: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    kind = "Content-Type: application/json\r\n" if data else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def with_key(request: bytes, key: str) -> bytes:
    return request.replace(b"Host: localhost\r\n", f"Host: localhost\r\nX-API-Key: {key}\r\n".encode(), 1)


async def connect(port: int, count: int, key: str = "") -> list[Client]:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Client(key), "127.0.0.1", port) for _ in range(count)]
    return [client for _, client in made]


CREATE = message("POST", "/create_session", {})


async def create(client: Client) -> str:
    return str((await client.send(CREATE)).json()["session_id"])


async def cleanup(client: Client, session_id: str) -> None:
    await client.call("POST", "/cleanup", {"session_id": session_id})


def exec_message(session_id: str, command: str | list[str]) -> bytes:
    return message("POST", f"/api/sessions/{session_id}/exec", {"command": command})
