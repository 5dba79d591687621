"""HTTP and WebSockets that block, on http.client: the quickest there is, and in the standard library.

Connections are kept and used again, the last one first; any number of threads may use one transport. A kept
connection that the server has closed meanwhile is noticed before it is used, so a request need not be repeated for it.
A process that was forked makes connections of its own.
"""

import contextlib
import http.client
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any

from warren.model.errors import WarrenError
from warren.sdk.wire import (
    CHUNK,
    KEPT_S,
    PATIENCE,
    Address,
    Ask,
    Events,
    Patience,
    answered,
    check_key,
    cut_off,
    done_before,
    from_event,
    pause_before,
    raised,
    read_address,
    unreachable,
)

_KEPT = 32
_BROKEN = (OSError, http.client.HTTPException)


class Transport:
    def __init__(self, server_url: str, api_key: str = "", patience: Patience = PATIENCE) -> None:
        self.address: Address = read_address(server_url)
        self._patience = patience
        self._api_key = check_key(api_key)
        self._kept: deque[tuple[float, http.client.HTTPConnection]] = deque()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<Transport {self.address.url}, {len(self._kept)} connections kept>"

    def ask(self, ask: Ask) -> Any:
        """The answer's JSON; raises what the server says went wrong. Repeated where that is safe."""
        return self._repeated(ask, ask.body)

    def send(self, ask: Ask, data: bytes | Iterable[bytes]) -> Any:
        """A request whose body is bytes, of any length. What comes in pieces is sent once."""
        return self._repeated(ask, data) if isinstance(data, bytes) else self._once(ask, data)

    def _repeated(self, ask: Ask, data: bytes | None) -> Any:
        attempt = 0
        while True:
            try:
                return self._once(ask, data)
            except WarrenError as exc:
                if done_before(attempt, ask, exc):
                    return None
                pause = pause_before(attempt, ask, exc, self._patience)
                if pause is None:
                    raise
            attempt += 1
            time.sleep(pause)

    def _once(self, ask: Ask, data: bytes | Iterable[bytes] | None) -> Any:
        with self._sent(ask, data) as response:
            body = _read(self.address, ask, response)
            return answered(response.status, body, response.headers.get("Retry-After"))

    @contextlib.contextmanager
    def receive(self, ask: Ask) -> Iterator[tuple[dict[str, str], Generator[bytes, None, None]]]:
        """An answer of any length: its headers and its bytes as they come."""
        with self._sent(ask, ask.body) as response:
            if response.status >= 300:
                raise raised(response.status, _read(self.address, ask, response))
            yield {name.lower(): value for name, value in response.headers.items()}, self._parts(ask, response)

    def _parts(self, ask: Ask, response: http.client.HTTPResponse) -> Generator[bytes, None, None]:
        try:
            while part := response.read1(CHUNK):
                yield part
        except _BROKEN as exc:
            raise cut_off(self.address, ask, exc) from exc

    def events(self, ask: Ask) -> Generator[tuple[str, dict[str, Any]], None, None]:
        """The events of a stream, until it ends; an `error` event is raised."""
        events = Events()
        with self.receive(ask) as (_, parts), contextlib.closing(parts):
            for part in parts:
                for name, values in events.feed(part):
                    if name == "error":
                        raise from_event(values)
                    yield name, values

    @contextlib.contextmanager
    def _sent(self, ask: Ask, data: bytes | Iterable[bytes] | None) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection()
        response: http.client.HTTPResponse | None = None
        try:
            response = self._answer(connection, ask, data)
            yield response
        finally:
            if response is not None and response.isclosed() and not response.will_close:
                self._keep(connection)
            else:
                connection.close()

    def _answer(
        self, connection: http.client.HTTPConnection, ask: Ask, data: bytes | Iterable[bytes] | None
    ) -> http.client.HTTPResponse:
        chunked = data is not None and not isinstance(data, bytes)
        headers = ask.headers(self._api_key)
        if chunked:
            headers["Transfer-Encoding"] = "chunked"
        try:
            connection.sock.settimeout(ask.takes_s + self._patience.answer_s)
            path = f"{self.address.prefix}{ask.target}"
            connection.request(ask.method, path, data, headers, encode_chunked=chunked)
            return connection.getresponse()
        except _BROKEN as exc:
            raise self._refused_early(connection) or cut_off(self.address, ask, exc) from exc

    def _refused_early(self, connection: http.client.HTTPConnection) -> WarrenError | None:
        """A server that refuses a body answers before it has read it all: writing fails then, and reading does not."""
        try:
            response = connection.getresponse()
            return raised(response.status, response.read()) if response.status >= 300 else None
        except _BROKEN:
            return None

    def _connection(self) -> http.client.HTTPConnection:
        if self._process != os.getpid():
            self._process, self._kept, self._lock = os.getpid(), deque(), threading.Lock()
        while True:
            with self._lock:
                since, connection = self._kept.pop() if self._kept else (0.0, None)
            if connection is None:
                return self._connect()
            if time.monotonic() - since < KEPT_S and _quiet(connection):
                return connection
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.address.host, self.address.port, timeout=self._patience.connect_s)
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
                self._kept.append((time.monotonic(), connection))
                return
        connection.close()

    @contextlib.contextmanager
    def socket(self, ask: Ask) -> Iterator["Socket"]:
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        url = f"ws{self.address.url.removeprefix('http')}{ask.target}"
        with contextlib.ExitStack() as stack:
            try:
                opening = connect(
                    url,
                    additional_headers=ask.headers(self._api_key),
                    open_timeout=self._patience.connect_s,
                    max_size=None,
                    compression=None,
                    proxy=None,
                )
                connection = stack.enter_context(opening)
            except InvalidStatus as exc:
                raise raised(exc.response.status_code, bytes(exc.response.body or b"")) from exc
            except (OSError, WebSocketException) as exc:
                raise unreachable(self.address, exc) from exc
            yield Socket(self.address, ask, connection)

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, deque()
        for _, connection in kept:
            connection.close()


def _quiet(connection: http.client.HTTPConnection) -> bool:
    """Nothing has come on it since it was kept: an end, or what nobody asked for."""
    waiting = select.poll()
    waiting.register(connection.sock, select.POLLIN)
    return not waiting.poll(0)


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
