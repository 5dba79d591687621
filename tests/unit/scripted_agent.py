"""The other end of a link, as tests want it: frames in, frames out, over a real socket.

`link_over` makes the links of `linked`. A test sets it to `over_guarded` for the transport of kernels before 6.16.
"""

import array
import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from warren.sandboxes.agent.link import AgentLink
from warren.sandboxes.agent.wire import HEADER, VERSION, WireFields, WireRequest, WireResponse, WireTag, fields


def said(kind: int, channel: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload), channel, kind) + payload


def output(channel: int, stream: int, offset: int, data: bytes) -> bytes:
    return said(WireResponse.OUTPUT, channel, struct.pack("<BQ", stream, offset) + data)


def exit_frame(channel: int, code: int = 0, total: int = 0, **more: int) -> bytes:
    items = [(WireTag.EXIT_CODE, code), (WireTag.REASON, 0), (WireTag.BYTES, total)]
    return said(
        WireResponse.EXIT, channel, fields(items + [(WireTag[name.upper()], value) for name, value in more.items()])
    )


def hello(version: int = VERSION) -> bytes:
    return said(WireResponse.HELLO, 0, fields([(WireTag.VERSION, version)]))


async def over_guarded(sock: socket.socket, **options: Any) -> AgentLink:
    return AgentLink.guarded(sock, **options)


link_over: Callable[..., Awaitable[AgentLink]] = AgentLink.over


class ScriptedAgent:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def heard(self) -> tuple[int, int, bytes]:
        """The next frame of the worker: kind, channel, payload."""
        length, channel, kind = HEADER.unpack(await self.reader.readexactly(HEADER.size))
        return kind, channel, await self.reader.readexactly(length)

    async def asked(self, kind: WireRequest) -> tuple[int, WireFields]:
        heard, channel, payload = await self.heard()
        assert heard == kind, f"expected {kind.name}, got {WireRequest(heard).name}"
        return channel, WireFields(payload)

    async def says(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))
        await self.writer.drain()

    async def says_in_pieces(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    def hang_up(self) -> None:
        self.writer.close()


@asynccontextmanager
async def linked(**options: Any) -> Any:
    """A link and the agent at its other end."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    link = await link_over(ours, **options)
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        yield link, ScriptedAgent(reader, writer)
    finally:
        await link.close()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


LINGER_S = 30


@contextmanager
def lingering() -> Iterator[socket.socket]:
    """Yields a socket whose close lasts for LINGER_S: what it has sent finds no room at the other end."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
        listener.accept()[0],
    ):
        sock.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                sock.send(bytes(1 << 20))
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
        yield sock


def pass_on(link: socket.socket, passed: socket.socket, flags: int) -> None:
    """Sends an open socket along with one byte: of several, only the last can be urgent. (`send_fds` ignores flags.)"""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [passed.fileno()]))
    link.sendmsg([b"x"], [rights], flags)
