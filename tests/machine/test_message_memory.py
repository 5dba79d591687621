"""WebSockets of the API: a message is held whole, so what comes of it counts in the memory of its tenant."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from guarded_app import guarded
from machine.proxy_world import World, _with_lifespan, until
from machine.test_preview_frames import MIB, client, end_of, head, raw_socket
from starlette.types import Receive, Scope, Send
from websockets.frames import Close

from warren.kernel.answer_memory import AnswerMemory, AnswerRoom, set_answer_room

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


class Terminals(World):
    """A server whose WebSockets take a message only when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = AnswerMemory(8 * MIB)
        self.may_take = asyncio.Event()

    @property
    def held(self) -> int:
        return self.memory._held.in_all

    async def start(self) -> int:
        return await self.serve(guarded(_with_lifespan(self._app), takes_stream=lambda scope: True))

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        room = AnswerRoom(self.memory, "acme")
        set_answer_room(room)
        try:
            await receive()
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] == "websocket.receive":
                await self.may_take.wait()
                await send({"type": "websocket.send", "text": str(len(message.get("bytes") or message["text"]))})
        finally:
            room.release()


@pytest.fixture
async def terminals() -> AsyncIterator[Terminals]:
    terminals = Terminals()
    yield terminals
    await terminals.close()


def settled(terminals: Terminals, readers: list[asyncio.StreamReader]) -> bool:
    """Whether each message that was not refused is held whole, but for its last byte."""
    refused = sum(reader.at_eof() or bool(reader._buffer) for reader in readers)  # type: ignore[attr-defined]
    return terminals.held == (len(readers) - refused) * (MIB - 1)


async def test_unfinished_messages_count_and_are_bounded(terminals: Terminals) -> None:
    port = await terminals.start()
    links = [await raw_socket(port) for _ in range(20)]
    for number, (_, writer) in enumerate(links):  # one after another: which of them find room would else be chance
        writer.write(head(MIB) + bytes(MIB - 1))
        await until(partial(settled, terminals, [reader for reader, _ in links[: number + 1]]))
    assert 3 * MIB < terminals.held <= 4 * MIB
    for _, writer in links:
        writer.transport.abort()
    await until(lambda: terminals.held == 0)


async def test_fragments_count_too(terminals: Terminals) -> None:
    reader, writer = await raw_socket(await terminals.start())
    for number in range(10):
        writer.write(head(50_000, 0x02 if number == 0 else 0x00) + bytes(50_000))
    await until(lambda: terminals.held == 500_000)
    writer.write(head(0, 0x80))
    terminals.may_take.set()
    assert (await reader.readexactly(8))[2:] == b"500000"
    await until(lambda: terminals.held == 0)
    writer.transport.abort()


async def test_a_message_counts_until_the_next_one_is_asked_for(terminals: Terminals) -> None:
    async with client(await terminals.start()) as link:
        await link.send(bytes(MIB))
        await until(lambda: terminals.held == MIB)
        await asyncio.sleep(0.05)
        assert terminals.held == MIB
        terminals.may_take.set()
        assert await link.recv() == str(MIB)
        await until(lambda: terminals.held == 0)
        for size in (1, 16 * 1024, 16 * 1024 + 1, MIB):
            await link.send(bytes(size))
            assert await link.recv() == str(size)
        await until(lambda: terminals.held == 0)


async def test_a_websocket_without_room_is_closed_and_small_messages_pass(terminals: Terminals) -> None:
    terminals.memory.count("acme", 8 * MIB)
    terminals.may_take.set()
    port = await terminals.start()
    async with client(port) as link:
        await link.send(bytes(1000))
        assert await link.recv() == "1000"
        await link.send(bytes(40_000))
        assert (await end_of(link) or Close(0, "")).code == 4503
    terminals.memory.give_back("acme", 8 * MIB)
    async with client(port) as link:
        await link.send(bytes(40_000))
        assert await link.recv() == "40000"
