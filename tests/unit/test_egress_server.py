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
WEB = Destination("web.example", ip_address("93.184.216.34"), 443)
RULES = NetworkRules(allow=("web.example",))


class Worker:
    """Asks as a worker does. What it sends is made before it is measured."""

    def __init__(self, most: int = 10_000) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._reader = MessageReader(MAX_MESSAGE)
        self.shared = Shared(EgressPolicy(), most)
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

    async def open(self, name: str, rules: NetworkRules, tenant: str = "a tenant") -> SandboxEgress:
        tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with tcp, udp:
            await self.ask(message("open", name, rules, tenant), (tcp.fileno(), udp.fileno()))
        return self.server._sandboxes[name]

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.server._control.fileno())
        self.server._control.close()
        self._ours.close()


def message(do: str, name: str, rules: NetworkRules, tenant: str = "a tenant") -> bytes:
    values = {"do": do, "number": 1, "sandbox": name, "rules": pack_rules(rules.indexed), "broker": None}
    return b"".join(pack({**values, "bounds": [(tenant, None, None)]}))


def connect(sandbox: SandboxEgress, count: int, *, idle_s: float = 0.0) -> list[socket.socket]:
    """Gives the sandbox open connections. Returns their far ends."""
    ends: list[socket.socket] = []
    for _ in range(count):
        inside, client = socket.socketpair()
        server, outside = socket.socketpair()
        for each in (client, server):
            each.setblocking(False)
        connection = ProxiedConnection(client, WEB, asyncio.get_running_loop().time() - idle_s)
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
    sandbox = await worker.open("one", RULES)
    ends = connect(sandbox, MANY)
    assert worker.shared.connections.in_all == MANY
    async with busiest_turn() as busiest:
        await worker.ask(message(do, "one", NetworkRules()))
    assert worker.shared.connections.in_all == sandbox.open_connections == 0
    assert busiest.seconds < MAX_S
    with contextlib.ExitStack() as stack:
        for end in ends:
            stack.enter_context(end)
            end.setblocking(False)
            with contextlib.suppress(ConnectionResetError):
                assert end.recv(1) == b""


async def test_connections_that_new_rules_allow_go_on(worker: Worker) -> None:
    sandbox = await worker.open("one", RULES)
    ends = connect(sandbox, MANY)
    async with busiest_turn() as busiest:
        await worker.ask(message("set", "one", NetworkRules(allow=("*.example",))))
    assert sandbox.open_connections == MANY
    assert busiest.seconds < MAX_S
    close(ends)


def begin(sandbox: SandboxEgress, port: int, sent: bytes) -> socket.socket:
    """Connects from inside to a port of web.example, and has sent something. Returns the end inside."""
    inside, client = socket.socketpair()
    for each in (inside, client):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        each.setblocking(False)
    assert inside.send(sent) == len(sent)
    sandbox._begin(client, sandbox._names.address_of(WEB.name), port)
    return inside


def refused(ends: Sequence[socket.socket]) -> int:
    """Returns how many of the ends were closed."""
    closed = 0
    for end in ends:
        with contextlib.suppress(BlockingIOError):
            with contextlib.suppress(ConnectionResetError):
                assert end.recv(1) == b""
            closed += 1
    return closed


LONG_HEAD = b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 9000 + b"Host: other.example\r\n\r\n"


async def test_long_heads_of_many_connections_at_once_do_not_hold_the_loop(worker: Worker) -> None:
    sandbox = await worker.open("one", RULES)
    async with busiest_turn() as busiest:
        ends = [begin(sandbox, 80, LONG_HEAD) for _ in range(20)]
        async with asyncio.timeout(20):
            while refused(ends) < len(ends):
                await asyncio.sleep(0.01)
    assert busiest.seconds < MAX_S
    close(ends)


async def test_what_was_held_until_an_answer_does_not_hold_the_loop(worker: Worker) -> None:
    """A client may send another request after one for an upgrade: both are read when the server refuses the upgrade."""
    sandbox = await worker.open("one", RULES)
    upgrade = b"GET / HTTP/1.1\r\nHost: web.example\r\nUpgrade: websocket\r\n\r\n"
    ended: list[Exception | None] = []
    relays: list[Relay] = []
    ends: list[socket.socket] = []
    for _ in range(20):
        (inside, client), (server, outside) = socket.socketpair(), socket.socketpair()
        for each in (client, server):
            each.setblocking(False)
        inspector = sandbox._inspect(ProxiedConnection(client, Destination(WEB.name, WEB.address, 8080)))
        assert inspector.feed(upgrade + LONG_HEAD) == upgrade
        relays.append(
            Relay(*(client, server, inspector), work=sandbox._work, count=lambda *counts: 0.0, end=ended.append)
        )
        relays[-1].start()
        ends += [inside, outside]
    async with busiest_turn() as busiest:
        for end in ends[1::2]:
            end.send(b"HTTP/1.1 400 No\r\n\r\n")
        async with asyncio.timeout(20):
            while len(ended) < len(relays):
                await asyncio.sleep(0.01)
    assert busiest.seconds < MAX_S
    assert all("a request is for other.example" in str(why) for why in ended)
    close(ends)


async def test_questions_of_many_connections_at_once_do_not_hold_the_loop(worker: Worker) -> None:
    sandbox = await worker.open("one", RULES)
    question = bytes(2) + b"\1\0\0\1" + bytes(6) + b"\1a" * 126 + b"\0\0\1\0\1"
    sent = len(question).to_bytes(2, "big") + question
    ends = [begin(sandbox, 53, b"") for _ in range(MANY)]
    await asyncio.sleep(0.1)  # they wait for questions
    async with busiest_turn() as busiest:
        for end in ends:
            end.send(sent)
        async with asyncio.timeout(20):
            while sandbox.use().refused < MANY // 4:
                await asyncio.sleep(0.01)
    assert busiest.seconds < MAX_S
    close(ends)


async def test_what_the_broker_does_takes_from_the_time_of_the_sandbox(worker: Worker) -> None:
    sandbox = await worker.open("one", RULES)
    begun = asyncio.get_running_loop().time()
    await asyncio.gather(*(sandbox._pay(0.0015) for _ in range(200)))
    assert asyncio.get_running_loop().time() - begun > 0.9  # 0.3 s of work, of which a second has a quarter


async def test_a_tenant_has_its_share_of_connections_and_leaves_the_rest() -> None:
    worker = Worker(most=100)
    greedy = [await worker.open(f"greedy {number}", RULES, "greedy") for number in range(4)]
    ends = [end for sandbox in greedy for end in connect(sandbox, 20)]
    assert worker.shared.connections.held("greedy") == 80
    assert not worker.shared.has_room("greedy")
    other = await worker.open("other", RULES, "other")
    ends += connect(other, 10)
    assert worker.shared.has_room("other")
    assert not worker.shared.has_room("greedy")
    assert [sandbox.open_connections for sandbox in (*greedy, other)] == [20, 20, 20, 20, 10]
    close(ends)
    for sandbox in (*greedy, other):
        await sandbox.close()
    assert worker.shared.sandboxes == {}
    worker.close()


async def test_silent_connections_of_the_greediest_make_room() -> None:
    worker = Worker(most=100)
    hoarder, sibling = [await worker.open(name, RULES, "greedy") for name in ("hoarder", "sibling")]
    ends = [*connect(hoarder, 60, idle_s=100), *connect(sibling, 20, idle_s=200)]
    assert worker.shared.has_room("greedy")  # for the sibling too
    assert (hoarder.open_connections, sibling.open_connections) == (59, 20)
    assert "it was silent" in hoarder.use().refusals[-1].reason
    others = [await worker.open(name, RULES, name) for name in ("one", "two", "three", "four")]
    for other, count in zip(others, (15, 4, 1, 0), strict=True):
        ends += connect(other, count)
    ends += connect(sibling, 1)
    assert worker.shared.connections.in_all == 100
    assert worker.shared.has_room("four")
    assert hoarder.open_connections < 59
    assert [other.open_connections for other in others] == [15, 4, 1, 0]
    close(ends)
    for sandbox in (hoarder, sibling, *others):
        await sandbox.close()
    worker.close()


async def test_a_silent_connection_that_is_not_relayed_yet_makes_room_at_once() -> None:
    worker = Worker(most=10)
    sandbox = await worker.open("one", RULES, "greedy")
    ends = [begin(sandbox, 443, b"") for _ in range(8)]
    assert not worker.shared.has_room("greedy")
    for connection in sandbox._connections:
        connection.active_at -= 100
    sandbox._none_idle_until -= 100
    assert worker.shared.has_room("greedy")
    assert (sandbox.open_connections, sandbox.use().refused) == (7, 1)
    await asyncio.sleep(0.01)
    assert refused(ends) == 1
    await sandbox.close()
    await asyncio.sleep(0.01)
    assert worker.shared.connections.in_all == 0
    close(ends)
    worker.close()


async def test_clients_are_told_before_a_network_is_closed() -> None:
    """The worker takes the route away as soon as it is: what is sent later does not arrive."""
    worker = Worker()
    sandbox = await worker.open("one", RULES)
    ends = [begin(sandbox, 443, b"") for _ in range(3)]
    await asyncio.sleep(0.01)  # they wait for the first bytes
    await sandbox.close()
    assert refused(ends) == 3
    close(ends)
    worker.close()


async def test_work_of_many_sandboxes_of_a_tenant_does_not_delay_another_tenants() -> None:
    worker = Worker()
    greedy = [await worker.open(f"greedy {number}", RULES, "greedy") for number in range(20)]
    other = await worker.open("other", RULES, "other")
    waits = [sandbox._work.take(0.04) for sandbox in greedy for _ in range(2)]
    assert waits[-1] > 1.0
    assert other._work.take(0.001) < 0.01
    for sandbox in (*greedy, other):
        await sandbox.close()
    worker.close()


async def test_opened_connections_are_work_of_their_tenant_and_not_of_their_sandbox() -> None:
    worker = Worker()
    greedy, sibling = [await worker.open(name, RULES, "greedy") for name in ("one", "two")]
    other = await worker.open("other", RULES, "other")
    for _ in range(1000):
        greedy._work.count(0.001)
    assert sibling._work.take(0.0001) > 0.5
    assert greedy._work._own.take(0.0001) == 0.0
    assert other._work.take(0.001) < 0.01
    for sandbox in (greedy, sibling, other):
        await sandbox.close()
    worker.close()


def close(ends: Sequence[socket.socket]) -> None:
    for end in ends:
        end.close()
