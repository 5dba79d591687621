"""The network of all sandboxes of a worker: what happens between a sandbox's sockets and the world.

A sandbox comes with two sockets that were made inside its network namespace. The TCP socket gets every connection made
in there, whatever its destination: `getsockname` of the accepted socket tells which. The UDP socket gets every DNS
query. The socket identifies the sandbox, so a sandbox cannot pose as another.

    name looked up --> an address of NameTable, if some rule knows the name
    connection     --> name or address --> rules --> first bytes (inspector) --> real address --> rules, floor --> relay

Rules are checked again after everything that takes time, because they may have been replaced meanwhile.
"""

import asyncio
import contextlib
import errno
import os
import socket
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from warren.kernel.fair_share import FairShare
from warren.model.addresses import Address
from warren.model.network import (
    NO_HOST,
    EgressBound,
    EgressPolicy,
    EndedConnection,
    IndexedRules,
    NetworkRules,
    NetworkUse,
    Refusal,
)
from warren.sandboxes.egress import dns
from warren.sandboxes.egress.broker import Broker, BrokerSetup
from warren.sandboxes.egress.broker_streams import CHUNK, SocketStream
from warren.sandboxes.egress.certificates import upstream_context
from warren.sandboxes.egress.groups import Group, Groups
from warren.sandboxes.egress.http_syntax import Malformed
from warren.sandboxes.egress.inspector import Inspector
from warren.sandboxes.egress.judge import Destination, DestinationRefused, Judge
from warren.sandboxes.egress.messages import KEPT
from warren.sandboxes.egress.names import NETWORK, NameTable
from warren.sandboxes.egress.rate import Bucket, FairBucket, TurnShare, Work
from warren.sandboxes.egress.relay import Relay, reset
from warren.sandboxes.egress.resolver import NotResolved, Resolver

HELLO_S: Final = 15.0
CONNECT_S: Final = 10.0
DNS_PORT: Final = 53
_LOOPBACK: Final = IPv4Network("127.0.0.0/8")
_AT_ONCE: Final = 16
_MAX_ADDRESSES: Final = 4
# Per sandbox, a second and at once, so that no sandbox takes all of this process's time.
_CONNECTS: Final = (200.0, 400.0)
_QUERIES: Final = (500.0, 1000.0)
_WORK: Final = (0.25, 0.05)  # seconds spent on parsing requests and queries: a client may make each of them slow
_ALL_WORK: Final = (0.6e6, 0.25e6)  # microseconds a second and at once, of all tenants together
_TURN_WORK_S: Final = 0.004  # of a tenant in one turn of the loop
_CONNECT_WORK_S: Final = 0.0002  # what a connection costs that is refused at once
_HANDSHAKE_WORK_S: Final = 0.0015  # what a handshake of TLS costs
_REQUEST_WORK_S: Final = 0.0004  # what a request costs that carries a secret
_OPEN_WORK_S: Final = 0.001  # what looking up, connecting and relaying cost more
_SHARE: Final = 4  # a tenant alone may have four fifths of all connections, two four ninths each, and so on
_IDLE_S: Final = 10.0
_TOLD_S: Final = 1.0
_FIRST_READ: Final = 4096
# The kernel's buffers are charged to this process: the more connections a sandbox has, the less each may hold.
_FEW, _SEVERAL = 16, 64
_BUFFER: Final = 256 << 10
_SMALL_BUFFER: Final = 32 << 10
_IP_PKTINFO: Final = 8
_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 120),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


class ProxiedConnection:
    """`active_at`: when bytes came last, by the loop's clock."""

    def __init__(self, client: socket.socket, to: Destination, active_at: float = 0.0) -> None:
        self.client, self.to, self.active_at = client, to, active_at
        self.task: asyncio.Task[None] | None = None
        self.relay: Relay | None = None
        self.sent = self.received = 0
        self.is_brokered = False


class _Counted(SocketStream):
    """Counts what a client sends and receives, and slows the client down to its rate."""

    def __init__(self, sock: socket.socket, count: Callable[[int, int], float]) -> None:
        super().__init__(sock)
        self._count = count

    async def read(self, limit: int = CHUNK) -> bytes:
        data = await super().read(limit)
        if wait := self._count(len(data), 0):
            await asyncio.sleep(wait)
        return data

    async def write(self, data: bytes) -> None:
        if wait := self._count(0, len(data)):
            await asyncio.sleep(wait)
        await super().write(data)


class SandboxEgress:
    def __init__(
        self,
        tcp: socket.socket,
        udp: socket.socket,
        rules: IndexedRules,
        shared: "Shared",
        broker: BrokerSetup | None = None,
        bounds: Sequence[EgressBound] = (),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tcp, self._udp, self._shared = tcp, udp, shared
        self.tenant = bounds[-1].owner if bounds else ""
        self.rules = rules
        self._broker_setup: BrokerSetup | None = None
        self._broker: Broker | None = None
        self._set_broker(broker)
        self._names = NameTable()
        self._connections: set[ProxiedConnection] = set()
        self._refusals: deque[Refusal] = deque(maxlen=KEPT)
        self._lately: deque[EndedConnection] = deque(maxlen=KEPT)
        self._sent = self._received = self._opened = self._closed = self._refused = 0
        self._connects = Bucket(*_CONNECTS, self._loop.time)
        self._queries = Bucket(*_QUERIES, self._loop.time)
        self._work = Work(Bucket(*_WORK, self._loop.time), shared.work, shared.turn_work, self.tenant)
        self._turn = asyncio.Lock()  # of the one task that works or waits to
        bytes_s = shared.policy.mbps * 125_000
        self._rate = Bucket(bytes_s, bytes_s / 4, self._loop.time) if bytes_s else None
        self._pauses: dict[int, asyncio.TimerHandle] = {}
        self._none_idle_until = 0.0
        _set_options(tcp)  # accepted connections inherit the options of their listener
        for sock, read in ((tcp, self._accept), (udp, self._answer_query)):
            sock.setblocking(False)
            self._loop.add_reader(sock.fileno(), read)
        self._groups: tuple[Group, ...] = shared.groups.join(self, (), bounds)
        shared.sandboxes.setdefault(self.tenant, set()).add(self)

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def use(self) -> NetworkUse:
        return NetworkUse(
            *(self._sent, self._received, self._opened, self._opened - self._closed, self._refused),
            *(tuple(self._refusals), tuple(self._lately)),
        )

    async def set_rules(
        self, rules: IndexedRules, broker: BrokerSetup | None = None, bounds: Sequence[EgressBound] = ()
    ) -> None:
        self.rules = rules
        self._groups = self._shared.groups.join(self, self._groups, bounds)
        if (old := self._set_broker(broker)) is not None:
            # Any change of a secret ends all connections that carry one.
            await self._drop_all([each for each in self._connections if each.is_brokered])
            old.close()
        # New rules also end connections that the old ones allowed.
        await _in_turns(self._connections, self._check_again)

    def _check_again(self, connection: ProxiedConnection) -> None:
        to, broker = connection.to, self._broker
        if broker is not None and broker.takes(to.name, to.port):
            # Ends what went past the broker until now, and what a header rule is for: only the broker knows to which
            # addresses that has led.
            if not connection.is_brokered or not broker.knows_name(to.name):
                self._drop(connection)
            return
        try:
            self._shared.judge.check(self.rules, to)
        except DestinationRefused:
            self._drop(connection)

    async def close(self) -> None:
        for pause in self._pauses.values():
            pause.cancel()
        for sock in (self._tcp, self._udp):
            self._loop.remove_reader(sock.fileno())
            sock.close()
        await self._drop_all(self._connections)
        self._groups = self._shared.groups.join(self, self._groups, ())
        others = self._shared.sandboxes.get(self.tenant, set())
        others.discard(self)
        if not others:
            self._shared.sandboxes.pop(self.tenant, None)

    # -- secrets

    def _set_broker(self, setup: BrokerSetup | None) -> Broker | None:
        """Replaces the broker if the setup has changed. Returns the old one."""
        if setup == self._broker_setup:
            return None
        old, self._broker_setup, self._broker = self._broker, setup, None
        if setup is not None:
            self._broker = Broker(
                *(setup, self._shared.upstream, self._dial_bound),
                refused=self._note_broker,
                pay=partial(self._pay, _REQUEST_WORK_S),
                work=self._pay,
            )
        return old

    async def _serve_broker(self, broker: Broker, connection: ProxiedConnection) -> None:
        connection.is_brokered = True
        self._opened += 1
        _limit_buffers(connection.client, _BUFFER if len(self._connections) <= _SEVERAL else _SMALL_BUFFER)
        stream = _Counted(connection.client, partial(self._count, connection))
        try:
            await self._pay(_HANDSHAKE_WORK_S)
            await broker.serve(connection.to.name, connection.to.port, stream)
        finally:
            self._ended(connection, None)

    async def _dial_bound(self, host: str, port: int) -> socket.socket:
        to = Destination(host, None, port)
        await self._pay(_HANDSHAKE_WORK_S)
        is_granted = self._broker is not None and self._broker.knows_name(host)
        try:
            return (await self._connect(to, NetworkRules(allow=(to.rule,)).indexed if is_granted else None))[0]
        except (DestinationRefused, NotResolved) as exc:
            self._note(to, str(exc), "")
            raise OSError(errno.EACCES, str(exc)) from exc

    async def _pay(self, seconds: float) -> None:
        """Waits until the sandbox has time left to work, and counts this much of it."""
        async with self._working():
            self._work.take(seconds)

    def _note_broker(self, name: str, port: int, reason: str) -> None:
        self._note(Destination(name, None, port), reason, "")

    # -- names

    def _answer_query(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                query, ancillary, _, peer = self._udp.recvmsg(dns.MAX_QUERY + 1, 64)
            except OSError:
                return
            response, wait = self._answer(query)
            if response is not None:
                # The answer must come from the address that was asked: a resolver ignores all others.
                source = [_from_address(data) for _, kind, data in ancillary if kind == _IP_PKTINFO]
                with contextlib.suppress(OSError):
                    self._udp.sendmsg([response], source, 0, peer)
            if wait:
                self._pause(self._udp, self._answer_query, wait)
                return

    def _answer(self, query: bytes) -> tuple[bytes | None, float]:
        """Returns the response, if there is one, and for how many seconds not to answer another query."""
        begun = time.thread_time()
        response = dns.answer(query, self._look_up)
        return response, max(self._queries.take(1), self._work.take(time.thread_time() - begun))

    def _look_up(self, name: str) -> IPv4Address | None:
        if self._broker is not None and self._broker.knows_name(name):
            return self._names.address_of(name)
        if self._shared.judge.knows_name(self.rules, name):
            return self._names.address_of(name)
        is_denied = self.rules.knows_name(name)
        reason = "the operator does not allow its name" if is_denied else "no rule allows its name"
        self._note(Destination(name, None, 0), reason, "" if is_denied else name)
        return None

    async def _answer_stream(self, client: socket.socket) -> None:
        data = bytearray()
        for _ in range(_AT_ONCE):
            while len(data) < 2 or len(data) < 2 + int.from_bytes(data[:2], "big"):
                part = await self._loop.sock_recv(client, 4096)
                if not part or len(data) > 2 + dns.MAX_QUERY:
                    return
                data += part
            end = 2 + int.from_bytes(data[:2], "big")
            async with self._turn:
                response, wait = self._answer(bytes(data[2:end]))
                await asyncio.sleep(wait)
            if response is None:
                return
            await self._loop.sock_sendall(client, len(response).to_bytes(2, "big") + response)
            del data[:end]

    # -- connections

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            begun = time.thread_time()
            try:
                client, _ = self._tcp.accept()
            except BlockingIOError:
                return
            except OSError:  # too many descriptors, or the client has gone
                self._pause(self._tcp, self._accept, 0.05)
                return
            client.setblocking(False)
            # The address that the program inside dialled: the route makes every address a local one.
            address, port = client.getsockname()[:2]
            self._begin(client, IPv4Address(address), port)
            self._work.begin(_OPEN_WORK_S)
            spent = max(_CONNECT_WORK_S, time.thread_time() - begun)
            if wait := max(self._connects.take(1), self._work.take(spent)):
                self._pause(self._tcp, self._accept, wait)
                return

    def _begin(self, client: socket.socket, address: IPv4Address, port: int) -> None:
        name = self._names.name_of(address)
        to = Destination(name, None if name else address, port)
        connection = ProxiedConnection(client, to, self._loop.time())
        full = next((group for group in self._groups if group.is_full), None)
        if len(self._connections) >= self._shared.policy.connections:
            self._refuse(
                connection, DestinationRefused(f"more than {self._shared.policy.connections} connections are open")
            )
        elif full is not None:
            whose = "all sandboxes of this tenant or key together"
            self._refuse(connection, DestinationRefused(f"{whose} may have {full.most} connections open"))
        elif not self._shared.has_room(self.tenant):
            self._refuse(connection, DestinationRefused("its tenant has its share of all connections of the worker"))
        else:
            self._connections.add(connection)
            self._change_counts(1)
            connection.task = self._loop.create_task(self._serve(connection, address))
            connection.task.add_done_callback(lambda _: self._served(connection))

    async def _serve(self, connection: ProxiedConnection, address: IPv4Address) -> None:
        try:
            if connection.to.port == DNS_PORT:
                async with asyncio.timeout(HELLO_S):
                    await self._answer_stream(connection.client)
                connection.client.close()
                return
            if address in _LOOPBACK or (address in NETWORK and not connection.to.name):
                raise DestinationRefused(NO_HOST)
            await self._open(connection)
        except (DestinationRefused, Malformed) as exc:
            self._refuse(connection, exc)
        except NotResolved as exc:
            self._refuse(connection, DestinationRefused(str(exc)))
        except TimeoutError:
            self._refuse(connection, DestinationRefused("nothing was sent in time"))
        except OSError as exc:
            self._refuse(connection, DestinationRefused(f"it cannot be reached: {exc.strerror or 'no answer'}"))

    def _served(self, connection: ProxiedConnection) -> None:
        """Cleans up after the task of a connection, also after one that was cancelled before it began."""
        connection.task = None
        if connection.relay is None:
            self._end(connection)
            reset(connection.client)

    async def _open(self, connection: ProxiedConnection) -> None:
        to, judge = connection.to, self._shared.judge
        broker = self._broker if self._broker is not None and self._broker.takes(to.name, to.port) else None
        if broker is None or not broker.knows_name(to.name):
            judge.check(self.rules, to)
        if broker is not None:
            return await self._serve_broker(broker, connection)
        inspector = self._inspect(connection)
        first = b""
        async with asyncio.timeout(HELLO_S):
            while inspector.comes_first and not first:
                data = await self._loop.sock_recv(connection.client, _FIRST_READ)
                if not data:
                    raise Malformed("it ended before it said which host it is for")
                async with self._working():
                    first = inspector.feed(data)
        rules = self.rules
        server, connection.to = await self._connect(to)
        try:
            if self.rules is not rules:  # the rules were replaced while it connected
                judge.check(self.rules, connection.to)
        except DestinationRefused:
            server.close()
            raise
        self._opened += 1
        self._work.count(_OPEN_WORK_S)
        count = len(self._connections)
        buffer = 0 if count <= _FEW else _BUFFER if count <= _SEVERAL else _SMALL_BUFFER
        for sock in (connection.client, server):
            _limit_buffers(sock, buffer)
        connection.relay = Relay(
            *(connection.client, server, None if inspector.is_over else inspector),
            work=self._work,
            count=lambda sent, received: self._count(connection, sent, received),
            end=lambda why: self._ended(connection, why),
        )
        self._count(connection, len(first), 0)
        connection.relay.start(first)

    @contextlib.asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """Enters the block when the sandbox has time left to work, and counts the time that the block takes."""
        async with self._turn:
            wait = self._work.take(0)
            while wait > 0:
                await asyncio.sleep(wait)
                wait = self._work.take(0)
            begun = time.thread_time()
            try:
                yield
            finally:
                self._work.take(time.thread_time() - begun)

    def _inspect(self, connection: ProxiedConnection) -> Inspector:
        to, judge = connection.to, self._shared.judge

        def check_tls(name: str) -> None:
            if to.name and name != to.name:
                raise DestinationRefused(f"TLS is for {name or 'no name'}, the connection for {to.name}")
            if name and not to.name and name != str(to.address):
                judge.check_visible_name(self.rules, name, to)

        def check_http(host: str, port: int) -> None:
            if to.name and (host != to.name or port not in (0, to.port)):
                raise DestinationRefused(
                    f"a request is for {host}{f':{port}' if port else ''}, the connection for {to.name}:{to.port}"
                )
            if not to.name and host != str(to.address):
                judge.check_visible_name(self.rules, host, to)

        return Inspector(to.port, check_tls, check_http, strict=bool(to.name))

    async def _connect(self, to: Destination, rules: IndexedRules | None = None) -> tuple[socket.socket, Destination]:
        """Connects to the first allowed address that accepts. Raises DestinationRefused, NotResolved, OSError."""
        addresses: Sequence[Address] = [to.address] if to.address is not None else await self._resolve(to.name)
        failure: Exception = OSError("no address")
        for address in addresses[:_MAX_ADDRESSES]:
            found = replace(to, address=address)
            try:
                # Every resolved address is checked, and dialled as checked: a name must not lead past the rules (DNS
                # rebinding).
                self._shared.judge.check(rules or self.rules, found)
                return await _dial(address, to.port), found
            except TimeoutError:
                failure = OSError(0, "it does not answer")
            except (DestinationRefused, OSError) as exc:
                failure = exc
        raise failure

    async def _resolve(self, name: str) -> Sequence[Address]:
        return await self._shared.resolver.resolve(name, self.tenant, f"{id(self):x}")

    def _count(self, connection: ProxiedConnection, sent: int, received: int) -> float:
        connection.active_at = self._loop.time()
        connection.sent += sent
        connection.received += received
        self._sent += sent
        self._received += received
        wait = self._rate.take(sent + received) if self._rate is not None else 0.0
        for group in self._groups:
            wait = max(wait, group.take(self, sent + received))
        return wait

    # -- how connections end

    def _refuse(self, connection: ProxiedConnection, why: Exception) -> None:
        rule = why.rule if isinstance(why, DestinationRefused) else ""
        self._note(connection.to, str(why), rule)
        reset(connection.client)

    def give_up_idle(self) -> None:
        """Ends the connection that has been silent for longest, if that is long enough."""
        now = self._loop.time()
        if now < self._none_idle_until:
            return
        connection = min(self._connections, key=lambda each: each.active_at, default=None)
        if connection is not None and now - connection.active_at >= _IDLE_S:
            self._note(connection.to, "it was silent, and its place was needed", "")
            self._drop(connection)
        else:
            # Connections are looked at again when the oldest may be idle; no other is so before.
            self._none_idle_until = (connection.active_at if connection is not None else now) + _IDLE_S

    async def _drop_all(self, connections: Collection[ProxiedConnection]) -> None:
        """Ends the connections, and returns when their clients are told: who asks for it may take the route away."""
        tasks = [each.task for each in connections if each.task is not None]
        await _in_turns(connections, self._drop)
        if tasks:
            await asyncio.wait(tasks, timeout=_TOLD_S)

    def _drop(self, connection: ProxiedConnection) -> None:
        if connection.relay is not None:
            connection.relay.abort()
        elif connection.task is not None:
            connection.task.cancel()
            self._end(connection)  # its place is free at once: whoever drops it may need it

    def _ended(self, connection: ProxiedConnection, why: Exception | None) -> None:
        if why is not None:
            self._note(connection.to, str(why), why.rule if isinstance(why, DestinationRefused) else "")
        self._closed += 1
        to, counts = connection.to, (connection.sent, connection.received)
        self._lately.append(EndedConnection(time.time(), to.name, _shown(to), to.port, *counts))
        self._end(connection)

    def _end(self, connection: ProxiedConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._change_counts(-1)

    def _change_counts(self, by: int) -> None:
        if by > 0:
            self._shared.connections.take(self.tenant, by)
        else:
            self._shared.connections.give_back(self.tenant, -by)
        for group in self._groups:
            group.connections += by

    def _note(self, to: Destination, reason: str, rule: str) -> None:
        self._refused += 1
        refusal = Refusal(time.time(), to.name, _shown(to), to.port, reason[:400], rule)
        if self._refusals and replace(self._refusals[-1], at=refusal.at, count=1) == refusal:
            refusal = replace(refusal, count=self._refusals.pop().count + 1)
        self._refusals.append(refusal)

    def _pause(self, sock: socket.socket, read: Callable[[], None], seconds: float) -> None:
        number = sock.fileno()
        self._loop.remove_reader(number)

        def go_on() -> None:
            del self._pauses[number]
            self._loop.add_reader(number, read)

        self._pauses[number] = self._loop.call_later(seconds, go_on)


class Shared:
    """What all sandboxes share: the operator's limits, resolved names, and the process's time and descriptors."""

    def __init__(self, policy: EgressPolicy, max_connections: int) -> None:
        self.policy = policy
        self.judge = Judge(policy)
        self.resolver = Resolver()
        self.groups = Groups()
        self.upstream = upstream_context(policy.authorities)  # slow to make, so it is made before sandboxes wait for it
        self.connections = FairShare(max_connections, of_rest=_SHARE)  # by tenant
        self.sandboxes: dict[str, set[SandboxEgress]] = {}  # by tenant
        loop = asyncio.get_running_loop()
        self.work = FairBucket(*_ALL_WORK, loop.time)
        self.turn_work = TurnShare(_TURN_WORK_S, loop.call_soon)

    def has_room(self, tenant: str) -> bool:
        """Returns whether the tenant may have one more connection. If it may not, a silent connection makes room: of
        this tenant if it has more than others, else of the tenant with the most, and there of the sandbox with the
        most."""
        connections = self.connections
        for _ in range(2):  # a share is part of what is left: where nothing is, one more place is not enough
            if connections.may_take(tenant) or not connections.in_all:
                break
            greediest = tenant if connections.has_more_than_others(tenant) else connections.largest()
            if sandboxes := self.sandboxes.get(greediest):
                max(sandboxes, key=lambda each: each.open_connections).give_up_idle()
        return connections.may_take(tenant)


async def _in_turns(connections: Collection[ProxiedConnection], do: Callable[[ProxiedConnection], None]) -> None:
    """Does something with each, a few at a time: a sandbox may have a thousand, and the others wait meanwhile."""
    for number, connection in enumerate(list(connections), 1):
        do(connection)
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)


def _shown(to: Destination) -> str:
    """Returns the address to report, but none of a name: it would reveal names of the operator's network."""
    return "" if to.name else str(to.address or "")


async def _dial(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        _set_options(sock)
        async with asyncio.timeout(CONNECT_S):
            await _connected(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


async def _connected(sock: socket.socket, address: tuple[str, int]) -> None:
    """Connects without asyncio's sock_connect, which would resolve the address again."""
    try:
        sock.connect(address)
        return
    except BlockingIOError:
        pass
    loop, number = asyncio.get_running_loop(), sock.fileno()
    done = loop.create_future()
    loop.add_writer(number, _set, done)
    try:
        await done
    finally:
        loop.remove_writer(number)
    if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(code, os.strerror(code))


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _set_options(sock: socket.socket) -> None:
    for level, option, value in _OPTIONS:
        sock.setsockopt(level, option, value)


def _limit_buffers(sock: socket.socket, buffer: int) -> None:
    """Sets the sizes of the socket's buffers; 0 leaves them to the kernel."""
    if buffer:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)


def _from_address(info: bytes) -> tuple[int, int, bytes]:
    """Returns the ancillary data that makes an answer come from the address that the question was sent to."""
    _, _, asked = struct.unpack("=I4s4s", info[:12])
    return socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=I4s4s", 0, asked, bytes(4))
