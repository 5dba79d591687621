"""HTTP and WebSockets that block, on http.client: the quickest there is, and in the standard library.

Connections are kept and used again, the last one first; any number of threads may use one transport. A kept
connection that the server has closed meanwhile is noticed before it is used, so a request need not be repeated for it.
"""

import contextlib
import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from warren.model.errors import WarrenError
from warren.sdk.wire import (
    ANSWER_S,
    CHUNK,
    CONNECT_S,
    Address,
    Ask,
    Events,
    cut_off,
    from_event,
    pause_before,
    raised,
    read_address,
    unreachable,
)

_KEPT = 32
_BROKEN = (OSError, http.client.HTTPException)


class Transport:
    def __init__(self, server_url: str, api_key: str = "") -> None:
        self.address: Address = read_address(server_url)
        self._api_key = api_key
        self._kept: deque[http.client.HTTPConnection] = deque()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Transport {self.address.url}, {len(self._kept)} connections kept>"

    def ask(self, ask: Ask) -> Any:
        """The answer's JSON; raises what the server says went wrong."""
        attempt = 0
        while True:
            try:
                return self._once(ask)
            except WarrenError as exc:
                pause = pause_before(attempt, exc) if ask.safe else None
                if pause is None:
                    raise
            attempt += 1
            time.sleep(pause)

    def _once(self, ask: Ask) -> Any:
        with self._sent(ask, ask.body) as response:
            body = _read(self.address, ask, response)
            if response.status >= 400:
                raise raised(response.status, body, response.headers.get("Retry-After"))
            return json.loads(body) if body else None

    def send(self, ask: Ask, data: bytes | Iterable[bytes]) -> Any:
        """A request whose body is bytes, of any length. It is sent once."""
        with self._sent(ask, data) as response:
            body = _read(self.address, ask, response)
            if response.status >= 400:
                raise raised(response.status, body)
            return json.loads(body)

    @contextlib.contextmanager
    def receive(self, ask: Ask) -> Iterator[tuple[dict[str, str], Iterator[bytes]]]:
        """An answer of any length: its headers and its bytes as they come."""
        with self._sent(ask, ask.body, streaming=True) as response:
            if response.status >= 400:
                raise raised(response.status, _read(self.address, ask, response))
            yield {name.lower(): value for name, value in response.headers.items()}, self._parts(ask, response)

    def _parts(self, ask: Ask, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while part := response.read1(CHUNK):
                yield part
        except _BROKEN as exc:
            raise cut_off(self.address, ask, exc) from exc

    def events(self, ask: Ask) -> Iterator[tuple[str, dict[str, Any]]]:
        """The events of a stream, until it ends; an `error` event is raised."""
        events = Events()
        with self.receive(ask) as (_, parts):
            for part in parts:
                for name, values in events.feed(part):
                    if name == "error":
                        raise from_event(values)
                    yield name, values

    @contextlib.contextmanager
    def _sent(
        self, ask: Ask, data: bytes | Iterable[bytes] | None, *, streaming: bool = False
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection()
        try:
            assert connection.sock is not None
            connection.sock.settimeout(None if streaming else ask.takes_s + ANSWER_S)
            try:
                chunked = data is not None and not isinstance(data, bytes)
                headers = ask.headers(self._api_key)
                if chunked:
                    headers["Transfer-Encoding"] = "chunked"
                path = f"{self.address.prefix}{ask.target}"
                connection.request(ask.method, path, data, headers, encode_chunked=chunked)
                response = connection.getresponse()
            except _BROKEN as exc:
                raise self._refused_early(connection) or cut_off(self.address, ask, exc) from exc
            yield response
            if response.isclosed() and not response.will_close:
                self._keep(connection)
                connection = None  # type: ignore[assignment]
        finally:
            if connection is not None:
                connection.close()

    def _refused_early(self, connection: http.client.HTTPConnection) -> WarrenError | None:
        """A server that refuses a body answers before it has read it all: writing fails then, and reading does not."""
        try:
            response = connection.getresponse()
            return raised(response.status, response.read()) if response.status >= 400 else None
        except _BROKEN:
            return None

    def _connection(self) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._kept.pop() if self._kept else None
            if connection is None:
                return self._connect()
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.address.host, self.address.port, timeout=CONNECT_S)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ssl.SSLError) as exc:
            connection.close()
            raise unreachable(self.address, exc) from exc
        return connection

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._kept) < _KEPT:
                self._kept.append(connection)
                return
        connection.close()

    @contextlib.contextmanager
    def socket(self, ask: Ask) -> Iterator["Socket"]:
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        url = f"ws{self.address.url.removeprefix('http')}{ask.target}"
        try:
            connection = connect(
                url, additional_headers=ask.headers(self._api_key), max_size=None, compression=None, proxy=None
            )
        except InvalidStatus as exc:
            raise raised(exc.response.status_code, bytes(exc.response.body or b"")) from exc
        except (OSError, WebSocketException) as exc:
            raise unreachable(self.address, exc) from exc
        try:
            yield Socket(self.address, ask, connection)
        finally:
            connection.close()

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, deque()
        for connection in kept:
            connection.close()


def _read(address: Address, ask: Ask, response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read()
    except _BROKEN as exc:
        raise cut_off(address, ask, exc) from exc


class Socket:
    """`receive` gives a text or bytes; None when the server has closed the socket."""

    def __init__(self, address: Address, ask: Ask, connection: Any) -> None:
        self._address, self._ask, self._connection = address, ask, connection

    def send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            self._connection.send(message)
        except (OSError, ConnectionClosed) as exc:
            raise cut_off(self._address, self._ask, exc) from exc

    def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        from websockets.exceptions import ConnectionClosed, ConnectionClosedError

        try:
            message: str | bytes = self._connection.recv(timeout=timeout_s)
        except TimeoutError:
            raise TimeoutError("nothing came in time") from None
        except ConnectionClosedError as exc:
            if exc.rcvd is None:
                raise cut_off(self._address, self._ask, exc) from exc
            return None
        except ConnectionClosed:
            return None
        return message
