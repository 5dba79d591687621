"""An HTTP client that sends exactly the bytes it is given, also wrong ones, and reads what comes back up to a bound."""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from warren.model.errors import InvalidRequest

MAX_BYTES = 64 << 20
_HEAD_BYTES = 1 << 20
_CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: the server closed the connection without an answer. `rest` came after the answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    rest: bytes = b""

    @property
    def values(self) -> Any:
        """The JSON of the body; None if it is none."""
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(self.body)
        return None

    def __str__(self) -> str:
        code = self.values.get("code", "") if isinstance(self.values, dict) else ""
        return f"{self.status or 'closed'} {code}".strip()


class RawHttp:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"{url!r} is not the address of a server", remedy="give http://HOST:PORT")
        self.host = parts.hostname
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.port = parts.port or (443 if self.tls else 80)
        self.authority = parts.netloc.rpartition("@")[2]
        self.prefix = parts.path.rstrip("/")

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.tls, limit=_HEAD_BYTES)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await writer.wait_closed()

    def head(self, method: str, target: str, headers: Mapping[str, str], *, host: str | None = None) -> bytes:
        lines = [f"{method} {self.prefix}{target} HTTP/1.1", f"Host: {self.authority if host is None else host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")

    async def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout_s: float = 60.0,
        most: int = MAX_BYTES,
        host: str | None = None,
    ) -> Answer:
        length = {} if body is None else {"Content-Length": str(len(body))}
        head = self.head(method, target, {"Connection": "close", **headers, **length}, host=host)
        return await self.send(head + (body or b""), timeout_s=timeout_s, most=most)

    async def send(self, data: bytes, *, timeout_s: float = 60.0, most: int = MAX_BYTES) -> Answer:
        """Sends the bytes and reads the answer, also one that comes before all bytes were taken."""
        started = time.monotonic()
        async with asyncio.timeout(timeout_s), self.connection() as (reader, writer):
            sending = asyncio.ensure_future(_send(writer, data))
            try:
                status, headers, body = await read_answer(reader, most)
                rest = await _rest(reader) if headers.get("connection", "") == "close" else b""
            finally:
                sending.cancel()
                await asyncio.wait([sending])
        return Answer(status, headers, body, time.monotonic() - started, rest)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(OSError):
        for at in range(0, len(data), 1 << 18):
            writer.write(data[at : at + (1 << 18)])
            await writer.drain()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            return await reader.read(65536)
    return b""


async def read_answer(reader: asyncio.StreamReader, most: int) -> tuple[int, dict[str, str], bytes]:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError):
        return 0, {}, b""
    first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
    status = int(first.split(" ")[1])
    if status == 101 or status == 204:
        return status, headers, b""
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        return status, headers, await _read_body(reader, headers, most if status < 400 else MAX_BYTES)
    return status, headers, b""


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str], most: int) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(min(int(headers["content-length"]), most))
    body = bytearray()
    if headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
            if len(body) >= most:
                return bytes(body)
        await reader.readuntil(b"\r\n")
        return bytes(body)
    while len(body) < most and (part := await reader.read(65536)):
        body += part
    return bytes(body)
