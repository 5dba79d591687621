"""The process of the network, served in the test's own loop: nothing that it is asked for or sent holds the loop."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from typing import Any

import pytest
from busiest_turn import MAX_S, busiest_turn

from warren.model.network import MAX_RULES, EgressPolicy, NetworkRules
from warren.sandboxes.egress.__main__ import EgressServer
from warren.sandboxes.egress.judge import Destination
from warren.sandboxes.egress.messages import MAX_MESSAGE, MessageReader, pack, pack_rules
from warren.sandboxes.egress.proxy import ProxiedConnection, SandboxEgress, Shared
from warren.sandboxes.egress.relay import Relay

pytestmark = pytest.mark.anyio
MANY = 1000


class Worker:
    """Asks as a worker does. What it sends is made before it is measured."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._reader = MessageReader(MAX_MESSAGE)
        self.shared = Shared(EgressPolicy(), 10_000)
        self.server = EgressServer(theirs, MessageReader(MAX_MESSAGE), self.shared)

    async def ask(self, data: bytes, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if descriptors:
            socket.send_fds(self._ours, [data[:4]], list(descriptors))
            data = data[4:]
        await loop.sock_sendall(self._ours, data)
        while True:
            for answer in self._reader.feed(await loop.sock_recv(self._ours, 1 << 16)):
                assert "error" not in answer
                return answer

    async def open(self, name: str, rules: NetworkRules) -> SandboxEgress:
        tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with tcp, udp:
            await self.ask(message("open", name, rules), (tcp.fileno(), udp.fileno()))
        return self.server._sandboxes[name]

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.server._control.fileno())
        self.server._control.close()
        self._ours.close()


def message(do: str, name: str, rules: NetworkRules) -> bytes:
    values = {"do": do, "number": 1, "sandbox": name, "rules": pack_rules(rules.indexed), "broker": None, "bounds": []}
    return b"".join(pack(values))


def connect_many(sandbox: SandboxEgress, to: Destination) -> list[socket.socket]:
    """Gives the sandbox open connections. Returns their far ends."""
    ends: list[socket.socket] = []
    for _ in range(MANY):
        inside, client = socket.socketpair()
        server, outside = socket.socketpair()
        for each in (client, server):
            each.setblocking(False)
        connection = ProxiedConnection(client, to)
        sandbox._connections.add(connection)
        sandbox._change_counts(1)
        connection.relay = Relay(
            *(client, server, None),
            work=sandbox._work,
            count=lambda sent, received: 0.0,
            end=lambda why, connection=connection: sandbox._ended(connection, why),  # type: ignore[misc]
        )
        connection.relay.start()
        ends += [inside, outside]
    return ends


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    # What the test run has made so far is not in the process that is tested: the garbage collector leaves it out.
    gc.collect()
    gc.freeze()
    worker = Worker()
    yield worker
    gc.unfreeze()
    for sandbox in worker.server._sandboxes.values():
        await sandbox.close()
    worker.close()


def _long_names(first: str) -> tuple[str, ...]:
    return tuple(f"{first}{number}." + ".".join("a" * 120) for number in range(MAX_RULES))


def _international(first: str) -> tuple[str, ...]:
    return tuple(f"{first}{number}.{'ä' * 30}.{'漢' * 10}.example:443" for number in range(MAX_RULES))


def _networks(first: int) -> tuple[str, ...]:
    return tuple(f"{first + number:x}:db8::/{32 + number % 97}" for number in range(MAX_RULES))


@pytest.mark.parametrize(
    "rules",
    [
        NetworkRules(True, _long_names("*.b"), _long_names("c")),
        NetworkRules(True, _international("*.b"), _international("c")),
        NetworkRules(True, _networks(0x2000), _networks(0x3000)),
    ],
    ids=["long", "international", "networks"],
)
async def test_no_rules_hold_the_loop(worker: Worker, rules: NetworkRules) -> None:
    sandbox = await worker.open("one", NetworkRules())
    data = message("set", "one", rules)
    async with busiest_turn() as busiest:
        for _ in range(3):
            await worker.ask(data)
    assert busiest.seconds < MAX_S
    assert sandbox.rules.internet


@pytest.mark.parametrize("do", ["set", "close"])
async def test_ending_a_thousand_connections_does_not_hold_the_loop(worker: Worker, do: str) -> None:
    to = Destination("web.example", ip_address("93.184.216.34"), 443)
    sandbox = await worker.open("one", NetworkRules(allow=("web.example",)))
    ends = connect_many(sandbox, to)
    assert worker.shared.connections == MANY
    async with busiest_turn() as busiest:
        await worker.ask(message(do, "one", NetworkRules()))
    assert worker.shared.connections == sandbox.open_connections == 0
    assert busiest.seconds < MAX_S
    with contextlib.ExitStack() as stack:
        for end in ends:
            stack.enter_context(end)
            end.setblocking(False)
            try:
                assert end.recv(1) == b""
            except ConnectionResetError:
                pass


async def test_connections_that_new_rules_allow_go_on(worker: Worker) -> None:
    to = Destination("web.example", ip_address("93.184.216.34"), 443)
    sandbox = await worker.open("one", NetworkRules(allow=("web.example",)))
    ends = connect_many(sandbox, to)
    async with busiest_turn() as busiest:
        await worker.ask(message("set", "one", NetworkRules(allow=("*.example",))))
    assert sandbox.open_connections == MANY
    assert busiest.seconds < MAX_S
    for end in ends:
        end.close()
