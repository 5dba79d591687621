"""The host of the attack's secret: it writes down all that it gets, and says the secret in every way it can."""

import asyncio
import base64
import contextlib
import gzip
import re
import secrets
from typing import Final
from urllib.parse import quote

from warren.model.secrets import BoundSecret
from warren_attack.inside.egress import MARK

HOST: Final = "bound.example"
NAME: Final = "attacked"
HEADER: Final = "X-Api-Key"
_MOST: Final = 1 << 20
_PIECE: Final = 7
_REQUEST: Final = re.compile(rb"[A-Z]+ (/[a-z0-9]*)")


def new_secret(*hosts: str) -> BoundSecret:
    """With characters that are encoded in a URL."""
    value = f"key/{secrets.token_hex(12)}+="
    return BoundSecret(name=NAME, hosts=hosts, header=HEADER, format="Key {}", value=value)


class BoundHost:
    def __init__(self, secret: BoundSecret) -> None:
        self.secret = secret
        self.received = bytearray()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(1 << 16):
                if len(self.received) < _MOST:
                    self.received += data
                found = _REQUEST.match(data)
                if found is not None:
                    await self._send(writer, self._answer(found[1].decode(), data))
        writer.close()

    async def _send(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        for at in range(0, len(answer), _PIECE):
            writer.write(answer[at : at + _PIECE])
            await writer.drain()
            await asyncio.sleep(0)

    def _answer(self, path: str, request: bytes) -> bytes:
        value = self.secret.value
        match path:
            case "/head":
                return _answer(b"", f"X-Seen: {value}", reason=value)
            case "/echo":
                return _answer(request)
            case "/encoded":
                return _answer(f"{base64.b64encode(value.encode()).decode()} {quote(value, safe='')}".encode())
            case "/packed":
                return _answer(gzip.compress(value.encode()), "Content-Encoding: gzip")
            case "/chunks":
                body = b"".join(b"1\r\n%c\r\n" % byte for byte in value.encode())
                return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
            case "/trailer":
                return f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Seen: {value}\r\n\r\n".encode()
            case "/early":
                return f"HTTP/1.1 103 Early Hints\r\nLink: {value}\r\n\r\n".encode() + _answer(b"")
            case "/broken":
                return f"HTTP/1.1 200 OK\r\nX-Seen {value}\n\r\n\r\n{value}".encode()
            case "/nonsense":
                return f"{value} {value}\r\n\r\n".encode()
            case "/switch":
                switched = "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
                return (switched + value).encode()
            case "/fragments":
                shaken = "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
                return shaken.encode() + _fragments(value.encode())
            case "/range":
                return _part(value.encode(), request)
            case "/go":
                return _answer(b"", "Location: http://allowed.example/", reason="Found", status=302)
        return _answer(MARK.encode())


def _fragments(message: bytes) -> bytes:
    """Returns a text message of a WebSocket in frames of a few bytes."""
    parts = [message[at : at + _PIECE] for at in range(0, len(message), _PIECE)]
    ends = [b"\1", *[b"\0"] * (len(parts) - 2), b"\x80"]
    return b"".join(end + bytes([len(part)]) + part for end, part in zip(ends, parts, strict=True))


def _part(body: bytes, request: bytes) -> bytes:
    """Answers with the bytes that a request asks for, or with all of them."""
    asked = re.search(rb"(?i)\r\nrange: bytes=(\d+)-(\d+)", request)
    if asked is None:
        return _answer(body)
    first, last = int(asked[1]), min(int(asked[2]), len(body) - 1)
    where = f"Content-Range: bytes {first}-{last}/{len(body)}"
    return _answer(body[first : last + 1], where, status=206, reason="Partial Content")


def _answer(body: bytes, *headers: str, status: int = 200, reason: str = "OK") -> bytes:
    lines = f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(body)}", *headers, "", ""
    return "\r\n".join(lines).encode() + body
