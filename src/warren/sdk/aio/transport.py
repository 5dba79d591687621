"""HTTP and WebSockets for asyncio, on aiohttp: a sixth of what httpx costs per request (bench/sdk.py).

A connection belongs to the event loop it was made in, so there is one aiohttp session per loop; it is made
with the first request, and a request does not touch the others.
"""

import asyncio
import contextlib
import io
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any

import aiohttp
from yarl import URL

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

_CONNECTING = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_SWITCHED = 101
_BROKEN = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class AsyncTransport:
    def __init__(self, server_url: str, api_key: str = "", patience: Patience = PATIENCE) -> None:
        self.address: Address = read_address(server_url)
        self._patience = patience
        self._api_key = check_key(api_key)
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    def __repr__(self) -> str:
        return f"<AsyncTransport {self.address.url}>"

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            for ended in [known for known in list(self._sessions) if known.is_closed()]:
                self._sessions.pop(ended, None)
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S)
            session = self._sessions[loop] = aiohttp.ClientSession(connector=connector, auto_decompress=False)
            disable_retries(session)
        return session

    async def ask(self, ask: Ask) -> Any:
        """The answer's JSON; raises what the server says went wrong. Repeated where that is safe."""
        return await self._repeated(ask, ask.body)

    async def send(self, ask: Ask, data: bytes | AsyncIterable[bytes]) -> Any:
        """A request whose body is bytes, of any length. What comes in pieces is sent once."""
        if isinstance(data, bytes):
            return await self._repeated(ask, data)
        failed: list[Exception] = []
        try:
            return await self._once(ask, _noted(data, failed))
        except WarrenError:
            if failed:  # it broke because there was nothing more to send
                raise failed[0] from None
            raise

    async def _repeated(self, ask: Ask, data: bytes | None) -> Any:
        attempt = 0
        while True:
            try:
                return await self._once(ask, data)
            except WarrenError as exc:
                if done_before(attempt, ask, exc):
                    return None
                pause = pause_before(attempt, ask, exc, self._patience)
                if pause is None:
                    raise
            attempt += 1
            await asyncio.sleep(pause)

    async def _once(self, ask: Ask, data: bytes | AsyncIterable[bytes] | None) -> Any:
        async with self._sent(ask, data) as response:
            body = await self._read(ask, response)
            return answered(response.status, body, response.headers.get("Retry-After"))

    async def _read(self, ask: Ask, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.read()
        except _BROKEN as exc:
            raise cut_off(self.address, ask, exc) from exc

    @contextlib.asynccontextmanager
    async def receive(self, ask: Ask) -> AsyncIterator[tuple[dict[str, str], AsyncGenerator[bytes, None]]]:
        """An answer of any length: its headers and its bytes as they come."""
        async with self._sent(ask, ask.body) as response:
            if response.status >= 300:
                raise raised(response.status, await self._read(ask, response))
            yield {name.lower(): value for name, value in response.headers.items()}, self._parts(ask, response)

    async def _parts(self, ask: Ask, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        try:
            async for part in response.content.iter_chunked(CHUNK):
                yield part
        except _BROKEN as exc:
            raise cut_off(self.address, ask, exc) from exc

    async def events(self, ask: Ask) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """The events of a stream, until it ends; an `error` event is raised."""
        events = Events()
        async with self.receive(ask) as (_, parts), contextlib.aclosing(parts):
            async for part in parts:
                for name, values in events.feed(part):
                    if name == "error":
                        raise from_event(values)
                    yield name, values

    @contextlib.asynccontextmanager
    async def _sent(self, ask: Ask, data: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(
            total=None, connect=self._patience.connect_s, sock_read=ask.takes_s + self._patience.answer_s
        )
        try:
            response = await self._session().request(
                ask.method,
                self._url(ask),
                data=io.BytesIO(data) if isinstance(data, bytes) and len(data) > CHUNK else data,
                headers=ask.headers(self._api_key),
                timeout=timeout,
                allow_redirects=False,
            )
        except _CONNECTING as exc:
            raise unreachable(self.address, exc) from exc
        except _BROKEN as exc:
            raise cut_off(self.address, ask, exc) from exc
        try:
            yield response
        finally:
            response.release() if response.content.at_eof() else response.close()

    def _url(self, ask: Ask) -> URL:
        return URL(f"{self.address.url}{ask.target}", encoded=True)

    @contextlib.asynccontextmanager
    async def socket(self, ask: Ask) -> AsyncIterator["AsyncSocket"]:
        said = bytearray()
        no_limit = aiohttp.ClientTimeout()
        async with aiohttp.ClientSession(
            timeout=no_limit, trace_configs=[_refusals_into(said, self._patience)]
        ) as session:
            try:
                async with asyncio.timeout(self._patience.answer_s):
                    connection = await session.ws_connect(
                        self._url(ask), headers=ask.headers(self._api_key), max_msg_size=0, heartbeat=30
                    )
            except aiohttp.WSServerHandshakeError as exc:
                raise raised(exc.status, bytes(said)) from exc
            except _BROKEN as exc:
                raise unreachable(self.address, exc) from exc
            try:
                yield AsyncSocket(self.address, ask, connection)
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
    """aiohttp repeats a request over a new connection when a kept one was closed: here `_repeated` decides about that.

    The switch is private to aiohttp: see test_private_apis.
    """
    session._retry_connection = False


async def _noted(data: AsyncIterable[bytes], failed: list[Exception]) -> AsyncIterator[bytes]:
    try:
        async for part in data:
            yield part
    except Exception as exc:
        failed.append(exc)
        raise


def _refusals_into(said: bytearray, patience: Patience) -> aiohttp.TraceConfig:
    """What a server says when it does not open a socket: aiohttp tells the status only, and drops the rest."""

    async def read(_: aiohttp.ClientSession, context: Any, answer: aiohttp.TraceRequestEndParams) -> None:
        if answer.response.status != _SWITCHED:
            with contextlib.suppress(*_BROKEN):
                async with asyncio.timeout(patience.connect_s):
                    said.extend(await answer.response.read())

    tracing = aiohttp.TraceConfig()
    tracing.on_request_end.append(read)
    return tracing


class AsyncSocket:
    """`receive` gives a text or bytes; None when the server has closed the socket."""

    def __init__(self, address: Address, ask: Ask, connection: aiohttp.ClientWebSocketResponse) -> None:
        self._address, self._ask, self._connection = address, ask, connection

    async def send(self, message: str | bytes) -> None:
        try:
            if isinstance(message, bytes):
                await self._connection.send_bytes(message)
            else:
                await self._connection.send_str(message)
        except _BROKEN as exc:
            raise cut_off(self._address, self._ask, exc) from exc

    async def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        try:
            # aiohttp takes a time-out of 0 for none at all.
            message = await self._connection.receive(timeout=None if timeout_s is None else max(timeout_s, 0.001))
        except TimeoutError:
            raise TimeoutError("nothing came in time") from None
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            data: str | bytes = message.data
            return data
        if message.type is aiohttp.WSMsgType.ERROR:
            raise cut_off(self._address, self._ask, self._connection.exception() or OSError("broken"))
        return None
