"""HTTP and WebSockets for asyncio, on aiohttp: a request costs a sixth of what it costs with httpx (bench/sdk.py).

A connection belongs to the event loop that made it, so every loop has an aiohttp session of its own, made with the
loop's first request.
"""

import asyncio
import contextlib
import io
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any

import aiohttp
from yarl import URL

from warren.model.errors import WarrenError
from warren.sdk.addresses import ServerAddress, parse_address
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

_CONNECT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_SWITCHING_PROTOCOLS = 101
_CONNECTION_ERRORS = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class AsyncTransport:
    def __init__(self, server_url: str, api_key: str = "", options: TransportOptions = DEFAULT_OPTIONS) -> None:
        self.address: ServerAddress = parse_address(server_url)
        self._options = options
        self._api_key = check_api_key(api_key)
        self._has_answered = False
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    def __repr__(self) -> str:
        return f"<AsyncTransport {self.address.url}>"

    def _loop_session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            for closed in [known for known in list(self._sessions) if known.is_closed()]:
                self._sessions.pop(closed, None)
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S)
            session = self._sessions[loop] = aiohttp.ClientSession(connector=connector, auto_decompress=False)
            disable_retries(session)
        return session

    async def call(self, request: ClientRequest) -> Any:
        """Sends a request and returns the JSON of its response. Repeats it where that is safe."""
        return await self._send_with_retries(request, request.body)

    async def upload(self, request: ClientRequest, data: bytes | AsyncIterable[bytes]) -> Any:
        """Sends a request whose body is bytes of any length. A body that comes in pieces is sent once only."""
        if isinstance(data, bytes):
            return await self._send_with_retries(request, data)
        failed: list[Exception] = []
        try:
            return await self._send(request, _note_failure(data, failed))
        except WarrenError:
            if failed:  # the connection broke because the caller's iterable did
                raise failed[0] from None
            raise

    async def _send_with_retries(self, request: ClientRequest, data: bytes | None) -> Any:
        attempt = 0
        while True:
            try:
                return await self._send(request, data)
            except WarrenError as exc:
                if is_already_deleted(attempt, request, exc):
                    return None
                pause = pause_before_retry(attempt, request, exc, self._options)
                if pause is None:
                    raise
            attempt += 1
            await asyncio.sleep(pause)

    async def _send(self, request: ClientRequest, data: bytes | AsyncIterable[bytes] | None) -> Any:
        async with self._open(request, data) as response:
            body = await self._read_body(request, response)
            return parse_response(response.status, body, self._api_key, response.headers.get("Retry-After"))

    async def _read_body(self, request: ClientRequest, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.read()
        except _CONNECTION_ERRORS as exc:
            raise connection_lost(self.address, request, exc) from exc

    @contextlib.asynccontextmanager
    async def download(
        self, request: ClientRequest
    ) -> AsyncIterator[tuple[dict[str, str], AsyncGenerator[bytes, None]]]:
        """Yields the headers of a response of any length, and its bytes as they come."""
        async with self._open(request, request.body) as response:
            if response.status >= 300:
                raise error_from_response(response.status, await self._read_body(request, response), self._api_key)
            yield {name.lower(): value for name, value in response.headers.items()}, self._iterate(request, response)

    async def _iterate(self, request: ClientRequest, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        try:
            async for part in response.content.iter_chunked(CHUNK_BYTES):
                yield part
        except _CONNECTION_ERRORS as exc:
            raise connection_lost(self.address, request, exc) from exc

    async def events(self, request: ClientRequest) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yields the events of a stream until it ends. Raises an event that says that the operation failed."""
        parser = EventParser()
        async with self.download(request) as (_, parts), contextlib.aclosing(parts):
            async for part in parts:
                for name, values in parser.feed(part):
                    if is_problem(name, values):
                        raise error_from_event(values)
                    yield name, values

    @contextlib.asynccontextmanager
    async def _open(self, request: ClientRequest, data: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(
            total=None,
            connect=self._options.connect_timeout_s,
            sock_read=request.work_s + self._options.answer_timeout_s,
        )
        try:
            response = await self._loop_session().request(
                request.method,
                self._url(request),
                data=io.BytesIO(data) if isinstance(data, bytes) and len(data) > CHUNK_BYTES else data,
                headers=request.headers(self._api_key),
                timeout=timeout,
                allow_redirects=False,
            )
        except _CONNECT_ERRORS as exc:
            raise unreachable(self.address, exc) from exc
        except _CONNECTION_ERRORS as exc:
            raise connection_lost(self.address, request, exc, was_known=self._has_answered) from exc
        self._has_answered = True
        try:
            yield response
        finally:
            response.release() if response.content.at_eof() else response.close()

    def _url(self, request: ClientRequest) -> URL:
        return URL(f"{self.address.url}{request.target}", encoded=True)

    @contextlib.asynccontextmanager
    async def socket(self, request: ClientRequest) -> AsyncIterator["AsyncSocket"]:
        refusal = bytearray()
        no_limit = aiohttp.ClientTimeout()
        async with aiohttp.ClientSession(
            timeout=no_limit, trace_configs=[_keep_refusal(refusal, self._options)]
        ) as session:
            try:
                async with asyncio.timeout(self._options.answer_timeout_s):
                    connection = await session.ws_connect(
                        self._url(request), headers=request.headers(self._api_key), max_msg_size=0, heartbeat=30
                    )
            except aiohttp.WSServerHandshakeError as exc:
                raise error_from_response(exc.status, bytes(refusal), self._api_key) from exc
            except _CONNECTION_ERRORS as exc:
                raise unreachable(self.address, exc) from exc
            try:
                yield AsyncSocket(self.address, request, connection)
            finally:
                await connection.close()

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, {}
        for loop, session in sessions.items():
            if loop is asyncio.get_running_loop():
                await session.close()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(session.close(), loop)


def disable_retries(session: aiohttp.ClientSession) -> None:
    """Leaves it to `_send_with_retries` whether to repeat a request when the server closed a kept connection.

    The switch is private to aiohttp: see test_private_apis.
    """
    session._retry_connection = False


async def _note_failure(data: AsyncIterable[bytes], failed: list[Exception]) -> AsyncIterator[bytes]:
    try:
        async for part in data:
            yield part
    except Exception as exc:
        failed.append(exc)
        raise


def _keep_refusal(refusal: bytearray, options: TransportOptions) -> aiohttp.TraceConfig:
    """Keeps the body of the response that refuses a socket: aiohttp reports the status only, and drops the rest."""

    async def keep(_: aiohttp.ClientSession, context: Any, end: aiohttp.TraceRequestEndParams) -> None:
        if end.response.status != _SWITCHING_PROTOCOLS:
            with contextlib.suppress(*_CONNECTION_ERRORS):
                async with asyncio.timeout(options.connect_timeout_s):
                    refusal.extend(await end.response.read())

    tracing = aiohttp.TraceConfig()
    tracing.on_request_end.append(keep)
    return tracing


class AsyncSocket:
    """An open WebSocket. `receive` returns a text or bytes, and None when the server has closed the socket."""

    def __init__(
        self, address: ServerAddress, request: ClientRequest, connection: aiohttp.ClientWebSocketResponse
    ) -> None:
        self._address, self._request, self._connection = address, request, connection

    async def send(self, message: str | bytes) -> None:
        try:
            if isinstance(message, bytes):
                await self._connection.send_bytes(message)
            else:
                await self._connection.send_str(message)
        except _CONNECTION_ERRORS as exc:
            raise connection_lost(self._address, self._request, exc) from exc

    async def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        try:
            # For aiohttp a time-out of 0 means none at all.
            message = await self._connection.receive(timeout=None if timeout_s is None else max(timeout_s, 0.001))
        except TimeoutError:
            raise TimeoutError("nothing came in time") from None
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            data: str | bytes = message.data
            return data
        if message.type is aiohttp.WSMsgType.ERROR:
            raise connection_lost(self._address, self._request, self._connection.exception() or OSError("broken"))
        return None
