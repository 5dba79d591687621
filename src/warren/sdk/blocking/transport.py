"""Blocking HTTP and WebSockets, on http.client: the quickest there is, and in the standard library.

Any number of threads may share a transport. It keeps idle connections and reuses the last one first. It notices that
the server has closed an idle connection before it uses it, so no request has to be repeated for that. A forked process
makes connections of its own.
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
from functools import cached_property
from typing import Any, cast

from warren.model.errors import WarrenError
from warren.sdk.addresses import ServerAddress, parse_address
from warren.sdk.blocking.tls_socket import TlsSocket
from warren.sdk.protocol import (
    CHUNK_BYTES,
    DEFAULT_OPTIONS,
    IDLE_CONNECTION_S,
    ClientRequest,
    EventParser,
    TransportOptions,
    check_api_key,
    connection_lost,
    error_from_event,
    error_from_response,
    is_already_deleted,
    is_problem,
    parse_response,
    pause_before_retry,
    unreachable,
)

_MAX_IDLE = 32
_CONNECTION_ERRORS = (OSError, http.client.HTTPException)


class Transport:
    def __init__(self, server_url: str, api_key: str = "", options: TransportOptions = DEFAULT_OPTIONS) -> None:
        self.address: ServerAddress = parse_address(server_url)
        self._options = options
        self._api_key = check_api_key(api_key)
        self._idle: deque[tuple[float, http.client.HTTPConnection]] = deque()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._has_answered = False

    def __repr__(self) -> str:
        return f"<Transport {self.address.url}, {len(self._idle)} idle connections>"

    def call(self, request: ClientRequest) -> Any:
        """Sends a request and returns the JSON of its response. Repeats it where that is safe."""
        return self._send_with_retries(request, request.body)

    def upload(self, request: ClientRequest, data: bytes | Iterable[bytes]) -> Any:
        """Sends a request whose body is bytes of any length. A body that comes in pieces is sent once only."""
        return self._send_with_retries(request, data) if isinstance(data, bytes) else self._send(request, data)

    def _send_with_retries(self, request: ClientRequest, data: bytes | None) -> Any:
        attempt = 0
        while True:
            try:
                return self._send(request, data)
            except WarrenError as exc:
                if is_already_deleted(attempt, request, exc):
                    return None
                pause = pause_before_retry(attempt, request, exc, self._options)
                if pause is None:
                    raise
            attempt += 1
            time.sleep(pause)

    def _send(self, request: ClientRequest, data: bytes | Iterable[bytes] | None) -> Any:
        with self._open(request, data) as response:
            body = _read_body(self.address, request, response)
            return parse_response(response.status, body, self._api_key, response.headers.get("Retry-After"))

    @contextlib.contextmanager
    def download(self, request: ClientRequest) -> Iterator[tuple[dict[str, str], Generator[bytes, None, None]]]:
        """Yields the headers of a response of any length, and its bytes as they come."""
        with self._open(request, request.body) as response:
            if response.status >= 300:
                raise error_from_response(response.status, _read_body(self.address, request, response), self._api_key)
            yield {name.lower(): value for name, value in response.headers.items()}, self._iterate(request, response)

    def _iterate(self, request: ClientRequest, response: http.client.HTTPResponse) -> Generator[bytes, None, None]:
        try:
            while part := response.read1(CHUNK_BYTES):
                yield part
        except _CONNECTION_ERRORS as exc:
            raise connection_lost(self.address, request, exc) from exc

    def events(self, request: ClientRequest) -> Generator[tuple[str, dict[str, Any]], None, None]:
        """Yields the events of a stream until it ends. Raises an event that says that the operation failed."""
        parser = EventParser()
        with self.download(request) as (_, parts), contextlib.closing(parts):
            for part in parts:
                for name, values in parser.feed(part):
                    if is_problem(name, values):
                        raise error_from_event(values)
                    yield name, values

    @contextlib.contextmanager
    def _open(self, request: ClientRequest, data: bytes | Iterable[bytes] | None) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection()
        response: http.client.HTTPResponse | None = None
        try:
            response = self._exchange(connection, request, data)
            yield response
        finally:
            if response is not None and response.isclosed() and not response.will_close:
                self._keep(connection)
            else:
                connection.close()

    def _exchange(
        self, connection: http.client.HTTPConnection, request: ClientRequest, data: bytes | Iterable[bytes] | None
    ) -> http.client.HTTPResponse:
        chunked = data is not None and not isinstance(data, bytes)
        headers = request.headers(self._api_key)
        if chunked:
            headers["Transfer-Encoding"] = "chunked"
        try:
            connection.sock.settimeout(request.work_s + self._options.answer_timeout_s)
            path = f"{self.address.prefix}{request.target}"
            connection.request(request.method, path, data, headers, encode_chunked=chunked)
            response = connection.getresponse()
        except _CONNECTION_ERRORS as exc:
            lost = connection_lost(self.address, request, exc, was_known=self._has_answered)
            raise self._early_refusal(connection) or lost from exc
        self._has_answered = True
        return response

    def _early_refusal(self, connection: http.client.HTTPConnection) -> WarrenError | None:
        """Reads the response of a server that refused the body before it had read it all: only writing fails then."""
        try:
            response = connection.getresponse()
            if response.status < 300:
                return None
            return error_from_response(response.status, response.read(), self._api_key)
        except _CONNECTION_ERRORS:
            return None

    def _connection(self) -> http.client.HTTPConnection:
        if self._process != os.getpid():
            self._process, self._idle, self._lock = os.getpid(), deque(), threading.Lock()
        while True:
            with self._lock:
                since, connection = self._idle.pop() if self._idle else (0.0, None)
            if connection is None:
                return self._connect()
            if time.monotonic() - since < IDLE_CONNECTION_S and _is_idle(connection):
                return connection
            connection.close()

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        """Made once, before there is a connection: a busy machine may read all authorities for longer than a server
        waits for the first request."""
        if self.address.scheme != "https":
            return None
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _connect(self) -> http.client.HTTPConnection:
        at, timeout_s = (self.address.host, self.address.port), self._options.connect_timeout_s
        connection = (
            http.client.HTTPConnection(*at, timeout=timeout_s)
            if self._tls is None
            else http.client.HTTPSConnection(*at, timeout=timeout_s, context=self._tls)
        )
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ssl.SSLError) as exc:
            connection.close()
            raise unreachable(self.address, exc) from exc
        return connection

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    @contextlib.contextmanager
    def socket(self, request: ClientRequest) -> Iterator["Socket"]:
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import ClientConnection, connect

        def on_socket(connected: Any, *args: Any, **kwargs: Any) -> ClientConnection:
            shared = connected if self._tls is None else TlsSocket(connected)
            return ClientConnection(cast(Any, shared), *args, **kwargs)

        url = f"ws{self.address.url.removeprefix('http')}{request.target}"
        with contextlib.ExitStack() as stack:
            try:
                opening = connect(
                    url,
                    additional_headers=request.headers(self._api_key),
                    open_timeout=self._options.connect_timeout_s,
                    max_size=None,
                    compression=None,
                    proxy=None,
                    ssl=self._tls,
                    create_connection=cast(Any, on_socket),
                )
                connection = stack.enter_context(opening)
            except InvalidStatus as exc:
                refusal = exc.response
                raise error_from_response(refusal.status_code, bytes(refusal.body or b""), self._api_key) from exc
            except (OSError, WebSocketException) as exc:
                raise unreachable(self.address, exc) from exc
            yield Socket(self.address, request, connection)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, deque()
        for _, connection in idle:
            connection.close()


def _is_idle(connection: http.client.HTTPConnection) -> bool:
    """Whether nothing has come on a kept connection: neither its end nor bytes that no request asked for."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _read_body(address: ServerAddress, request: ClientRequest, response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read()
    except _CONNECTION_ERRORS as exc:
        raise connection_lost(address, request, exc) from exc


class Socket:
    """An open WebSocket. `receive` returns a text or bytes, and None when the server has closed the socket."""

    def __init__(self, address: ServerAddress, request: ClientRequest, connection: Any) -> None:
        self._address, self._request, self._connection = address, request, connection

    def send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            self._connection.send(message)
        except (OSError, ConnectionClosed) as exc:
            raise connection_lost(self._address, self._request, exc) from exc

    def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        from websockets.exceptions import ConnectionClosed, ConnectionClosedError

        try:
            message: str | bytes = self._connection.recv(timeout=timeout_s)
        except TimeoutError:
            raise TimeoutError("nothing came in time") from None
        except ConnectionClosedError as exc:
            if exc.rcvd is None:
                raise connection_lost(self._address, self._request, exc) from exc
            return None
        except ConnectionClosed:
            return None
        return message
