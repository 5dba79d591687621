"""What webhooks are sent to in tests: receivers on loopback that count connections, and names that answer as told.

127.0.0.2 stands for a public address: the sender is allowed to call it, and only it. 127.0.0.1 stands for what must
not be reached.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult

PUBLIC, PRIVATE = "127.0.0.2", "127.0.0.1"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def saying(text: bytes, status: str = "200 OK", *headers: str) -> Talk:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(text)}", *headers])

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + b"\r\n\r\n" + text)

    return talk


class Receiver:
    """Reads a request from every connection, then says what `talk` says; `requests` has what came."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[bytes] = []
        self.connections = 0
        self.address, self.port = "", 0

    def url(self, path: str = "/hook") -> str:
        return f"http://{self.address}:{self.port}{path}"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk_to(reader, writer)
        finally:
            writer.transport.abort()

    async def _talk_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            self.requests.append(head + await reader.readexactly(int(lengths[0])))
            await self._talk(reader, writer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def strangers(self) -> int:
        """How many have connected. One more does so now, and comes after all of them."""
        before = self.connections
        _, writer = await asyncio.open_connection(self.address, self.port)
        while self.connections == before:
            await asyncio.sleep(0.01)
        writer.close()
        await writer.wait_closed()
        return self.connections - 1

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def receiving(
    talk: Talk, address: str = PUBLIC, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    receiver = Receiver(talk)
    server = await asyncio.start_server(receiver.accept, address, port, ssl=tls)
    receiver.address, receiver.port = server.sockets[0].getsockname()[:2]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.stop()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def two_receivers(talk: Talk) -> AsyncIterator[tuple[Receiver, Receiver]]:
    """One at the public address and one at the private one, at the same port."""
    for _ in range(50):
        async with contextlib.AsyncExitStack() as stack:
            public = await stack.enter_async_context(receiving(talk))
            try:
                private = await stack.enter_async_context(receiving(talk, PRIVATE, public.port))
            except OSError:  # somebody has this port at the other address
                continue
            yield public, private
            return
    raise RuntimeError("no port is free at both addresses")


class Names(AbstractResolver):
    """Answers look-ups with one list of addresses after the other; the last one serves all that follow."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        answer = self._answers[min(len(self.asked), len(self._answers) - 1)]
        self.asked.append(host)
        if not answer:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [result(host, address, port) for address in answer]

    async def close(self) -> None:
        pass


def result(name: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=name, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)
