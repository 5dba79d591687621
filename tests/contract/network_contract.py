"""What holds for the network of a sandbox, whatever provider made it: names, addresses, rules, and that nothing else is
reached. The sandbox is real, the Internet is the test's own."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificates
from network_servers import Servers
from network_world import ADDRESSES, PRIVATE, NetworkWorld

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.errors import FileProblem, IsolationUnavailable, SandboxLost
from warren.model.header_rules import HeaderRule
from warren.model.network import NO_NETWORK, EgressBound, EgressPolicy, NetworkRules, NetworkUse
from warren.model.operations import Command
from warren.model.secrets import BoundSecret, SecretBinding, authority_variables, broker_variables, new_binding
from warren.model.spec import Layer, SandboxSpec
from warren.sandboxes.network.egress import Egress
from warren.sandboxes.providers.host_provider import HostProvider

WEB, OTHER = ADDRESSES[:2]


class Echo:
    """A server out there. It says its name first if it is to, then sends back all it gets."""

    def __init__(self, listener: socket.socket, greeting: bytes = b"") -> None:
        self._listener, self._greeting = listener, greeting
        self.got: list[bytes] = []
        self.calls = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.calls += 1
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            if self._greeting:
                sock.sendall(self._greeting)
            while data := sock.recv(1 << 16):
                self.got.append(data)
                sock.sendall(data)


# Runs inside: tries each thing of a list and prints what came of it.
_CLIENT = r"""
import json, socket, ssl, struct, sys

def query(name, kind=1, server="127.0.0.1", number=7):
    labels = b"".join(bytes([len(part)]) + part for part in name.encode("latin-1").split(b".") if part)
    return struct.pack(">HHHHHH", number, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)

def ask(name, kind=1, server="127.0.0.1", connected=True, tcp=False):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        data = query(name, kind)
        if tcp:
            sock.connect((server, 53)); sock.sendall(len(data).to_bytes(2, "big") + data); answer = sock.recv(4096)[2:]
        elif connected:
            sock.connect((server, 53)); sock.send(data); answer = sock.recv(4096)
        else:
            sock.sendto(data, (server, 53)); answer, peer = sock.recvfrom(4096); assert peer == (server, 53), peer
    code, count = answer[3] & 15, int.from_bytes(answer[6:8], "big")
    return [code, socket.inet_ntoa(answer[-4:]) if count else ""]

def talk(host, port, data=b"", wait=3, size=None, greet=False):
    with socket.create_connection((host, port), timeout=10) as sock:
        sock.settimeout(wait)
        got = sock.recv(4096) if greet else b""
        if data:
            sock.sendall(data)
            while len(got) < (size or len(data)):
                part = sock.recv(65536)
                if not part:
                    break
                got += part
        return got.decode("latin-1")

def http(host, port=80, name=None, target="/"):
    head = f"GET {target} HTTP/1.1\r\nHost: {name or host}\r\n\r\n".encode("latin-1")
    return talk(host, port, head)

def tls(host, port=443, name=None, server_name=True):
    context = ssl._create_unverified_context()
    out = ssl.MemoryBIO()
    hello = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=(name or host) if server_name else None)
    try:
        hello.do_handshake()
    except ssl.SSLWantReadError:
        pass
    data = out.read()
    return talk(host, port, data) == data.decode("latin-1")

def udp(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1); sock.connect((host, port)); sock.send(b"hi"); return sock.recv(10).decode()

def read(arg):
    return arg[1:].encode("latin-1") if isinstance(arg, str) and arg[:1] == "\1" else arg

results = []
for name, args, options in json.loads(sys.argv[1]):
    try:
        results.append(globals()[name](*map(read, args), **options))
    except Exception as exc:
        results.append(type(exc).__name__)
print(json.dumps(results))
"""


def do(name: str, /, *args: Any, **options: Any) -> list[Any]:
    return [name, ["\1" + arg.decode("latin-1") if isinstance(arg, bytes) else arg for arg in args], options]


async def tried(sandbox: Sandbox, *steps: list[Any]) -> list[Any]:
    result = await sandbox.exec(Command(argv=("python3", "-c", _CLIENT, json.dumps(steps)), timeout_s=60))
    assert result.exit_code == 0, result.stderr
    outcome: list[Any] = json.loads(result.stdout)
    return outcome


class NetworkContract:
    pytestmark = pytest.mark.anyio

    def spec(self) -> SandboxSpec:
        raise NotImplementedError

    @pytest.fixture
    def new_provider(self) -> Callable[[Egress], Provider]:
        raise NotImplementedError

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[NetworkWorld]:
        with NetworkWorld(tmp_path) as world:
            world.names |= {"web.example": [WEB], "other.example": [OTHER], "inside.example": [PRIVATE]}
            yield world

    @pytest.fixture
    async def egress(self, world: NetworkWorld) -> Egress:
        return Egress(EgressPolicy(denied=("denied.example",), connections=20), within=world.within)

    @pytest.fixture
    async def provider(self, new_provider: Callable[[Egress], Provider], egress: Egress) -> AsyncIterator[Provider]:
        provider = new_provider(egress)
        yield provider
        for sandbox_id in await provider.list_ids():
            await provider.destroy(sandbox_id)
        await provider.close()

    @pytest.fixture
    async def sandbox(self, provider: Provider) -> Sandbox:
        return await provider.create(self.spec())

    async def test_a_sandbox_has_no_network_until_it_is_given_one(self, sandbox: Sandbox, provider: Provider) -> None:
        assert Capability.EGRESS in provider.capabilities
        assert Layer.NO_NETWORK in sandbox.isolation
        steps = do("talk", WEB, 80, b"x"), do("ask", "web.example")
        assert await tried(sandbox, *steps) == ["OSError", "ConnectionRefusedError"]
        assert await sandbox.network_use() == NetworkUse()

    async def test_names_that_are_allowed_are_reached_on_every_port(
        self, sandbox: Sandbox, provider: Provider, world: NetworkWorld
    ) -> None:
        for port in (80, 443, 5432):
            Echo(world.listen(WEB, port))
        Echo(world.listen(WEB, 22), greeting=b"SSH-2.0-x\r\n")
        await sandbox.set_network(NetworkRules(allow=("web.example",)))
        outcome = await tried(
            *(sandbox, do("http", "web.example"), do("tls", "web.example")),
            do("talk", "web.example", 5432, b"\0\0\0\x08"),
            do("talk", "web.example", 22, greet=True),
        )
        assert outcome[0].startswith("GET / HTTP/1.1\r\nHost: web.example")
        assert outcome[1:] == [True, "\0\0\0\x08", "SSH-2.0-x\r\n"]
        use = await _use_at_rest(sandbox)
        assert (use.connections, use.refused) == (4, 0)
        assert use.bytes_sent == use.bytes_received - 11 > 500
        ended = [(each.name, each.address, each.port) for each in use.ended]
        assert sorted(ended) == [("web.example", "", port) for port in (22, 80, 443, 5432)]  # each ends when it may
        assert sum(each.bytes_sent for each in use.ended) == use.bytes_sent
        assert sum(each.bytes_received for each in use.ended) == use.bytes_received
        assert Layer.NO_NETWORK not in sandbox.isolation
        assert "1 rules" in sandbox.isolation.missing[Layer.NO_NETWORK]
        assert isinstance(provider, HostProvider)
        read_back = await provider.read_isolation(sandbox.id)  # by anybody, from the kernel
        assert "led outside" in read_back.missing[Layer.NO_NETWORK]

    async def test_names_have_addresses_of_no_host_and_nothing_is_asked_of_others(
        self, sandbox: Sandbox, world: NetworkWorld
    ) -> None:
        await sandbox.set_network(NetworkRules(allow=("web.example", "*.wild.example")))
        outcome = await tried(
            *(sandbox, do("ask", "web.example"), do("ask", "WEB.eXample"), do("ask", "a.wild.example")),
            *(do("ask", "web.example", server="8.8.8.8"), do("ask", "web.example", server="9.9.9.9", connected=False)),
            *(do("ask", "web.example", tcp=True), do("ask", "web.example", tcp=True, server="1.1.1.1")),
            *(do("ask", "web.example", 28), do("ask", "web.example", 65), do("ask", "web.example", 16)),
            *(do("ask", "wild.example"), do("ask", "stolen-data.other.example"), do("ask", "web.example\0.evil")),
            *(do("ask", "x" * 63 + "." + "y" * 63), do("ask", "other.example", 16)),
        )
        address = outcome[0][1]
        assert address.startswith("198.18.")
        assert outcome[1] == outcome[0] == outcome[3] == outcome[4] == outcome[5] == outcome[6] == [0, address]
        assert outcome[2][1].startswith("198.18.")
        assert outcome[2][1] != address
        assert outcome[7:10] == [[0, ""]] * 3
        assert outcome[10:] == [[3, ""]] * 5
        assert world.asked == []

    async def test_what_no_rule_allows_is_refused_and_the_refusal_says_what_would(
        self, sandbox: Sandbox, world: NetworkWorld
    ) -> None:
        web, other = Echo(world.listen(WEB, 443)), Echo(world.listen(OTHER, 443))
        await sandbox.set_network(NetworkRules(allow=("web.example:443", f"{OTHER}:9")))
        outcome = await tried(
            *(
                sandbox,
                do("talk", WEB, 443, b"x"),
                do("talk", OTHER, 443, b"x"),
                do("talk", "other.example", 443, b"x"),
            ),
            *(do("talk", "web.example", 80, b"x"), do("udp", WEB, 443), do("udp", WEB, 123)),
            *(do("tls", "web.example", name="other.example"), do("tls", "web.example", server_name=False)),
            *(
                do("talk", "web.example", 443, b"GET / HTTP/1.1\r\nHost: web.example\r\n\r\n"),
                do("talk", "198.18.9.9", 443),
            ),
        )
        assert outcome[2] == "gaierror"
        refused = "ConnectionResetError"
        assert [outcome[at] for at in (0, 1, 3, 6, 7, 8)] == [refused] * 6
        assert outcome[4:6] == ["ConnectionRefusedError"] * 2
        assert web.calls == other.calls == 0
        use = await sandbox.network_use()
        assert (use.connections, use.bytes_received, use.open_connections) == (0, 0, 0)
        told = [(each.name, each.address, each.port, each.rule) for each in use.refusals]
        assert told[:2] == [("", WEB, 443, f"{WEB}:443"), ("", OTHER, 443, f"{OTHER}:443")]
        assert ("other.example", "", 0, "other.example") in told
        assert ("web.example", "", 80, "web.example:80") in told
        assert sum(each.count for each in use.refusals) == use.refused
        reasons = [each.reason for each in use.refusals]
        assert "TLS is for other.example, the connection for web.example" in reasons
        assert "what is sent to port 443 is not TLS" in reasons

    async def test_what_is_not_public_is_refused_whatever_the_rules_say(
        self, sandbox: Sandbox, world: NetworkWorld
    ) -> None:
        inside, own = Echo(world.listen(PRIVATE, 5432)), world.inner.address
        world.names |= {
            "meta.example": ["169.254.169.254"],
            "self.example": [own],
            "mapped.example": ["::ffff:10.99.0.7"],
        }
        world.names |= {"denied.example": [WEB]}
        rules = ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", f"{own}/32", "*.example", "198.18.0.0/15")
        for internet in (False, True):
            await sandbox.set_network(NetworkRules(internet=internet, allow=rules))
            outcome = await tried(
                sandbox,
                *(do("talk", host, 5432, b"x") for host in (PRIVATE, "169.254.169.254", own, "198.18.200.1")),
                *(do("talk", f"{name}.example", 5432, b"x") for name in ("inside", "meta", "self", "mapped")),
                do("talk", "denied.example", 80, b"x"),
            )
            assert outcome == ["ConnectionResetError"] * 8 + ["gaierror"]
        assert inside.calls == 0
        use = await sandbox.network_use()
        assert all(not each.address for each in use.refusals if each.name)  # names of the inside are not looked up
        assert all(not each.rule for each in use.refusals)

    async def test_internet_reaches_all_that_is_not_denied(self, sandbox: Sandbox, world: NetworkWorld) -> None:
        for address in (WEB, OTHER):
            for port in (80, 443, 7000):
                Echo(world.listen(address, port))
        await sandbox.set_network(NetworkRules(internet=True, deny=("other.example", f"{ADDRESSES[2]}/32")))
        outcome = await tried(
            *(sandbox, do("talk", WEB, 7000, b"hello"), do("tls", "web.example"), do("tls", WEB, server_name=False)),
            *(do("tls", OTHER, name="web.example"), do("talk", ADDRESSES[2], 80, b"x"), do("ask", "other.example")),
            *(do("tls", OTHER, name="other.example"), do("http", OTHER, name="other.example")),
        )
        assert outcome[:4] == ["hello", True, True, True]
        assert outcome[4:] == ["ConnectionResetError", [3, ""], "ConnectionResetError", "ConnectionResetError"]

    async def test_every_request_of_a_connection_is_for_its_host(self, sandbox: Sandbox, world: NetworkWorld) -> None:
        web = Echo(world.listen(WEB, 80))
        Echo(world.listen(WEB, 8080))
        await sandbox.set_network(NetworkRules(allow=("web.example",)))
        good = b"GET / HTTP/1.1\r\nHost: web.example\r\n\r\n"
        post = b"POST / HTTP/1.1\r\nHost: web.example:80\r\nContent-Length: 4\r\n\r\nGET "
        chunked = good.replace(b"GET", b"PUT")[:-2] + b"Transfer-Encoding: chunked\r\n\r\n5;x\r\nGET /\r\n0\r\n\r\n"
        bad = good.replace(b"web", b"other")
        steps = [good + good, post + good, chunked + good, good.replace(b" / ", b" http://web.example/ ")]
        outcome = await tried(sandbox, *(do("talk", "web.example", 80, step) for step in steps))
        assert outcome == [step.decode() for step in steps]
        before = sum(map(len, web.got))
        wrong = [
            *(
                bad,
                b"\0\0",
                b"CONNECT web.example:80 HTTP/1.1\r\nHost: web.example\r\n\r\n",
                good.replace(b"\r\n", b"\n"),
            ),
            *(good.replace(b" / ", b" http://other.example/ "), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            *(good.replace(b"Host", b"Host : x\r\nHost"), good[:-2] + b"Host: other.example\r\n\r\n"),
            *(good.replace(b"web.example", b"web.example\0"), good.replace(b"web.example", b"web.example:81")),
            post.replace(b"Content-Length: 4", b"Content-Length: 4\r\nTransfer-Encoding: chunked"),
        ]
        outcome = await tried(sandbox, *(do("talk", "web.example", 80, step) for step in wrong))
        assert outcome == ["ConnectionResetError"] * len(wrong)
        assert sum(map(len, web.got)) == before
        later = await tried(sandbox, *(do("talk", "web.example", port, good + bad) for port in (80, 8080)))
        assert later == ["ConnectionResetError"] * 2
        assert b"other" not in b"".join(web.got)

    async def test_new_rules_hold_at_once_and_cut_what_they_do_not_allow(
        self, sandbox: Sandbox, world: NetworkWorld
    ) -> None:
        Echo(world.listen(WEB, 7000))
        Echo(world.listen(OTHER, 7000))
        await sandbox.set_network(NetworkRules(allow=("web.example", OTHER)))
        script = _KEEP_OPEN.format(hosts=["web.example", OTHER])
        process = await sandbox.start(Command(argv=("python3", "-c", script)), follow=True)
        output = process.output()
        assert (await anext(output)).data == b"open open\n"
        async with asyncio.timeout(10):
            while (await sandbox.network_use()).open_connections < 2:
                await asyncio.sleep(0.01)
        await sandbox.set_network(NetworkRules(allow=("web.example:7000",)))
        assert (await sandbox.network_use()).open_connections == 1
        await process.write(b"\n")
        assert (await anext(output)).data == b"echo ConnectionResetError\n"
        await sandbox.set_network(NO_NETWORK)
        assert Layer.NO_NETWORK in sandbox.isolation
        await process.write(b"\n")
        assert (await anext(output)).data == b"ConnectionResetError ConnectionResetError\n"
        await process.kill()
        steps = do("talk", WEB, 7000, b"x"), do("ask", "web.example")
        assert await tried(sandbox, *steps) == ["OSError", "ConnectionRefusedError"]
        use = await sandbox.network_use()
        assert (use.connections, use.open_connections, use.bytes_sent) == (2, 0, 3)
        await sandbox.set_network(NetworkRules(allow=("web.example",)))
        assert await tried(sandbox, do("talk", "web.example", 7000, b"again")) == ["again"]

    async def test_a_name_that_moves_inside_is_refused_each_time(self, sandbox: Sandbox, world: NetworkWorld) -> None:
        """The address that was checked is the one that is called."""
        Echo(world.listen(WEB, 7000))
        inside = Echo(world.listen(PRIVATE, 7000))
        await sandbox.set_network(NetworkRules(allow=("web.example", "both.example")))
        world.names["both.example"] = [PRIVATE, WEB]
        assert await tried(sandbox, do("talk", "both.example", 7000, b"x")) == ["x"]
        world.names["web.example"] = [PRIVATE]
        assert await tried(sandbox, do("talk", "web.example", 7000, b"x")) == ["ConnectionResetError"]
        assert inside.calls == 0

    async def test_servers_inside_stay_reachable_on_loopback(self, sandbox: Sandbox, world: NetworkWorld) -> None:
        Echo(world.listen(WEB, 5432), greeting=b"outside")
        await sandbox.start(Command(argv=("python3", "-c", _SQUATTER)))
        await sandbox.set_network(NetworkRules(allow=("web.example",)))
        outcome = await tried(
            *(sandbox, do("talk", "127.0.0.1", 5432, greet=True), do("talk", "web.example", 5432, greet=True)),
            *(do("talk", "127.9.9.9", 5432, greet=True), do("talk", "127.0.0.1", 53, b"GET / HTTP/1.1\r\n\r\n")),
        )
        assert outcome[:3] == ["inside", "outside", "inside"]

    async def test_connections_are_limited_and_those_that_say_nothing_are_cut(
        self, sandbox: Sandbox, world: NetworkWorld
    ) -> None:
        Echo(world.listen(WEB, 7000))
        await sandbox.set_network(NetworkRules(allow=("web.example",)))
        result = await sandbox.exec(Command(argv=("python3", "-c", _MANY)))
        assert result.stdout.split() == ["20", "10"], result.stderr
        use = await sandbox.network_use()
        assert use.refused == 10
        assert use.refusals[-1].reason == "more than 20 connections are open"

    async def test_a_lot_of_bytes_arrive_as_they_were_sent(self, sandbox: Sandbox, world: NetworkWorld) -> None:
        Echo(world.listen(WEB, 7000))
        await sandbox.set_network(NetworkRules(allow=("web.example",)))
        result = await sandbox.exec(Command(argv=("python3", "-c", _BULK)))
        assert result.stdout == "same 33554432\n", result.stderr
        use = await sandbox.network_use()
        assert use.bytes_sent == use.bytes_received == 32 << 20

    async def test_a_sandbox_sends_and_receives_no_more_than_its_rate(
        self, world: NetworkWorld, new_provider: Callable[[Egress], Provider]
    ) -> None:
        Echo(world.listen(WEB, 7000))
        provider = new_provider(Egress(EgressPolicy(mbps=64), within=world.within))
        try:
            sandbox = await provider.create(self.spec())
            await sandbox.set_network(NetworkRules(allow=("web.example",)))
            start = time.monotonic()
            result = await sandbox.exec(Command(argv=("python3", "-c", _BULK.replace("* 32", "* 8"))))
            took = time.monotonic() - start
            assert result.stdout == "same 8388608\n", result.stderr
            assert took > 1.6  # 16 MiB, of which 2 MB come at once, at 8 MB a second
            await provider.destroy(sandbox.id)
        finally:
            await provider.close()

    async def test_sandboxes_of_one_owner_share_its_connections_and_its_rate(
        self, provider: Provider, world: NetworkWorld
    ) -> None:
        Echo(world.listen(WEB, 7000))
        rules, few = NetworkRules(allow=("web.example",)), EgressBound("tenant:one", connections=6)
        first, second, other = [await provider.create(self.spec()) for _ in range(3)]
        await first.set_network(rules, (), (few,))
        await second.set_network(rules, (), (few, EgressBound("key:mine", connections=4)))
        await other.set_network(rules, (), (EgressBound("tenant:two", connections=6),))
        holding = await first.start(Command(argv=("python3", "-c", _HOLD, "4"), timeout_s=60))
        try:
            async with asyncio.timeout(20):
                while (await first.network_use()).open_connections < 4:
                    await asyncio.sleep(0.05)
            counts = [await sandbox.exec(Command(argv=("python3", "-c", _MANY))) for sandbox in (second, other)]
            assert [result.stdout.strip() for result in counts] == ["2 28", "6 24"]
            reasons = {refusal.reason for refusal in (await second.network_use()).refusals}
            assert reasons == {"all sandboxes of this tenant or key together may have 6 connections open"}
            # The last bounds hold, whichever sandbox they were given with.
            await second.set_network(rules, (), (EgressBound("tenant:one", connections=9), EgressBound("key:mine", 4)))
            assert (await second.exec(Command(argv=("python3", "-c", _MANY)))).stdout.strip() == "4 26"
        finally:
            await holding.kill()
        slow = (EgressBound("tenant:one", mbps=32),)
        for sandbox in (first, second):
            await sandbox.set_network(rules, (), slow)
        await other.set_network(rules, (), (EgressBound("tenant:two", mbps=0),))
        greedy = await first.start(Command(argv=("python3", "-c", _HOLD, "8", "bulk"), timeout_s=60))
        try:
            async with asyncio.timeout(20):
                while _bytes(await first.network_use()) < 8 << 20:  # what all its connections take at once is over
                    await asyncio.sleep(0.05)
            start, before = time.monotonic(), _bytes(await first.network_use())
            result = await second.exec(Command(argv=("python3", "-c", _BULK.replace("* 32", "* 4")), timeout_s=60))
            took, shared = time.monotonic() - start, (_bytes(await first.network_use()) - before) / (8 << 20)
        finally:
            await greedy.kill()
        assert result.stdout == "same 4194304\n", result.stderr
        assert took > 3.0  # 8 MiB of the second and as much of the first, at 4 MB a second
        assert 0.6 < shared < 2.5, "eight connections of one sandbox count as one sandbox"
        assert await tried(other, do("talk", "web.example", 7000, b"x")) == ["ConnectionResetError"]

    async def test_without_its_process_nothing_is_reached_and_a_new_one_has_the_newest_rules(
        self, sandbox: Sandbox, world: NetworkWorld, egress: Egress
    ) -> None:
        Echo(world.listen(WEB, 7000))
        Echo(world.listen(OTHER, 7000))
        await sandbox.set_network(NetworkRules(allow=("web.example", "other.example")))
        await sandbox.set_network(NetworkRules(allow=("web.example",)))
        assert await tried(sandbox, do("talk", "web.example", 7000, b"x")) == ["x"]
        first = egress.pid
        assert first > 1
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(20):
            while await tried(sandbox, do("talk", "web.example", 7000, b"x")) != ["x"]:
                await asyncio.sleep(0.1)
        assert egress.pid not in (0, first)
        assert await tried(sandbox, do("talk", "other.example", 7000, b"x")) == ["gaierror"]
        assert (await sandbox.network_use()).connections >= 1

    async def test_the_process_has_no_rights(self, sandbox: Sandbox, egress: Egress) -> None:
        await sandbox.set_network(NetworkRules(internet=True))
        status = dict(line.split(":", 1) for line in Path(f"/proc/{egress.pid}/status").read_text().splitlines())
        assert 0 not in {int(uid) for uid in (*status["Uid"].split(), *status["Gid"].split())}
        assert not status["Groups"].strip()
        assert status["Name"].strip() == "warren-egress"
        assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
        secret = "WARREN_" + "SECRETS"
        assert secret not in Path(f"/proc/{egress.pid}/environ").read_text()

    async def test_a_sandbox_that_must_have_no_network_gets_none(self, provider: Provider) -> None:
        spec = replace(self.spec(), require=frozenset({Layer.NO_NETWORK}))
        sandbox = await provider.create(spec)
        with pytest.raises(IsolationUnavailable, match="no network"):
            await sandbox.set_network(NetworkRules(internet=True))
        assert Layer.NO_NETWORK in sandbox.isolation

    async def test_programs_use_secrets_that_the_sandbox_never_has(
        self, world: NetworkWorld, new_provider: Callable[[Egress], Provider], tmp_path: Path
    ) -> None:
        value, hosts = "user:0123456789abcdef", {"openai": "api.example", "git": "git.example", "pip": "pip.example"}
        made = make_certificates(tmp_path, *hosts.values())
        bindings = [new_binding(kind, (host,), kind=kind) for kind, host in hosts.items()]
        bound = [BoundSecret(**fields_of(binding), value=value) for binding in bindings]
        provider = new_provider(Egress(EgressPolicy(authorities=made.ca.read_text()), within=world.within))
        try:
            with Servers(tmp_path, made) as servers:
                servers.serve_web(world.listen(WEB, 443), tls=True)
                world.names |= {host: [WEB] for host in hosts.values()}
                sandbox = await provider.create(self.spec())
                await sandbox.set_network(NO_NETWORK, bound)
                printed = ""
                for command in (
                    "curl -sS --fail https://api.example/curl http://openai.broker.internal/v1/curl",
                    "node -e 'fetch(`https://api.example/node`).then(a => a.text()).then(console.log)'",
                    "git clone -q git@git.example:git/repository.git /tmp/clone && cat /tmp/clone/hello.txt",
                    "pip install -q --no-cache-dir --target /tmp/pip tiny-package && ls /tmp/pip",
                    "cat /proc/*/environ /proc/*/cmdline; env; grep -rs . /tmp /home /workspace /run | tail -c 1000000",
                    "! curl -sS -m5 https://other.example/ && ! curl -sS -m5 http://api.example/",
                ):
                    run = Command(shell=command, env=broker_variables(bindings), timeout_s=60)
                    result = await sandbox.exec(run)
                    assert result.exit_code == 0, (command, result.stderr)
                    printed += result.stdout + result.stderr
                assert (printed.count("hello from api.example"), "tiny_package" in printed) == (3, True)
                encoded = base64.b64encode(value.encode()).decode()
                assert value not in printed
                assert encoded not in printed
                carried = {host: headers.get("Authorization") for host, _, _, headers in servers.seen}
                basic = f"Basic {encoded}"
                assert carried == {"api.example": f"Bearer {value}", "git.example": basic, "pip.example": basic}
            await provider.destroy(sandbox.id)
        finally:
            await provider.close()

    async def test_header_rules_change_requests_for_hosts_that_are_allowed(
        self, world: NetworkWorld, new_provider: Callable[[Egress], Provider], tmp_path: Path
    ) -> None:
        value, hosts = "key-0123456789abcdef", ("api.example", "closed.example")
        made = make_certificates(tmp_path, *hosts)
        headers = tuple(HeaderRule(host, "X-Api-Key", value) for host in hosts)
        provider = new_provider(Egress(EgressPolicy(authorities=made.ca.read_text()), within=world.within))
        try:
            with Servers(tmp_path, made) as servers:
                servers.serve_web(world.listen(WEB, 443), tls=True)
                world.names |= {host: [WEB] for host in hosts}
                sandbox = await provider.create(self.spec())
                printed = ""

                async def carried(host: str, options: str = "") -> str | None:
                    """The header that the host got; raises if the client failed."""
                    nonlocal printed
                    seen = len(servers.seen)
                    shell = f"curl -sS --fail -m20 {options} -H 'X-Api-Key: mine' https://{host}/; x=$?; env; exit $x"
                    result = await sandbox.exec(Command(shell=shell, env=authority_variables(), timeout_s=60))
                    printed += result.output
                    if result.exit_code:
                        assert len(servers.seen) == seen
                        raise ConnectionRefusedError(result.stderr)
                    return servers.seen[-1][3].get("X-Api-Key")

                await sandbox.set_network(NetworkRules(allow=("api.example",), headers=headers))
                assert await carried("api.example") == value
                with pytest.raises(ConnectionRefusedError):  # a header opens nothing
                    await carried("closed.example")
                await sandbox.set_network(NetworkRules(internet=True, headers=headers))
                assert await carried("closed.example") == value
                await sandbox.set_network(NetworkRules(internet=True, deny=(f"{WEB}/32",), headers=headers))
                with pytest.raises(ConnectionRefusedError):  # also where only the address tells
                    await carried("api.example")
                binding = new_binding("other", ("api.example",), header="X-Other")
                opens = BoundSecret(**fields_of(binding), value="other-0123456789")
                await sandbox.set_network(NetworkRules(headers=headers), [opens])
                assert await carried("api.example") == value  # a secret opens the host
                with pytest.raises(ConnectionRefusedError):
                    await carried("closed.example")
                await sandbox.set_network(NetworkRules(internet=True))
                assert await carried("api.example", "-k") == "mine"
                assert value not in printed
                await provider.destroy(sandbox.id)  # with its connections, which the servers then close
        finally:
            await provider.close()

    async def test_a_sandbox_that_does_not_let_its_certificates_be_written_reaches_nothing(
        self, sandbox: Sandbox, world: NetworkWorld
    ) -> None:
        Echo(world.listen(WEB, 7000))
        secrets = [
            BoundSecret(**fields_of(new_binding(name, (f"{name}.example",), header="X-Key")), value="0123456789abcdef")
            for name in ("kept", "deleted")
        ]
        rules = NetworkRules(allow=("web.example",))
        await sandbox.set_network(rules, secrets)
        assert await tried(sandbox, do("talk", "web.example", 7000, b"x")) == ["x"]
        blocked = await sandbox.exec(Command(shell="rm -r ~/.warren && touch ~/.warren"))
        assert blocked.exit_code == 0, blocked.stderr
        with pytest.raises(FileProblem):
            await sandbox.set_network(rules, secrets[:1])
        assert Layer.NO_NETWORK in sandbox.isolation
        refused = await tried(sandbox, do("talk", "web.example", 7000, b"x"), do("ask", "deleted.example"))
        assert refused == ["gaierror", "ConnectionRefusedError"]

    async def test_an_adopted_sandbox_has_no_network_until_it_is_set_again(
        self, provider: Provider, sandbox: Sandbox, world: NetworkWorld, new_provider: Callable[[Egress], Provider]
    ) -> None:
        Echo(world.listen(WEB, 7000))
        await sandbox.set_network(NetworkRules(allow=("web.example",)))
        await provider.close()
        again = new_provider(Egress(within=world.within))
        try:
            adopted = await again.adopt(sandbox.id)
            assert Layer.NO_NETWORK in adopted.isolation
            refused = await tried(adopted, do("talk", "web.example", 7000, b"x"), do("talk", WEB, 7000, b"x"))
            assert refused == ["gaierror", "ConnectionRefusedError"]
            await adopted.set_network(NetworkRules(allow=("web.example",)))
            assert await tried(adopted, do("talk", "web.example", 7000, b"x")) == ["x"]
        finally:
            await again.destroy(sandbox.id)
            with pytest.raises(SandboxLost):
                await adopted.set_network(NetworkRules(internet=True))
            await again.close()


def fields_of(binding: SecretBinding) -> dict[str, Any]:
    return {name: getattr(binding, name) for name in binding.__dataclass_fields__}


async def _use_at_rest(sandbox: Sandbox) -> NetworkUse:
    """The use once no connection is open: one ends when both its sides have, which is after the client has left."""
    async with asyncio.timeout(10):
        while (use := await sandbox.network_use()).open_connections:
            await asyncio.sleep(0.01)
    return use


def _bytes(use: NetworkUse) -> int:
    return use.bytes_sent + use.bytes_received


_KEEP_OPEN = """
import socket, sys
socks = [socket.create_connection((host, 7000), 10) for host in {hosts}]
print("open open", flush=True)
for _ in range(2):
    sys.stdin.readline()
    told = []
    for sock in socks:
        try:
            sock.sendall(b"abc")
            told.append("echo" if sock.recv(10) == b"abc" else "end")
        except OSError as exc:
            told.append(type(exc).__name__.replace("BrokenPipeError", "ConnectionResetError"))
    print(*told, flush=True)
"""
_SQUATTER = """
import socket
sock = socket.create_server(("0.0.0.0", 5432))
while True:
    sock.accept()[0].sendall(b"inside")
"""
_MANY = """
import socket
good, bad, socks = 0, 0, []
for _ in range(30):
    try:
        sock = socket.create_connection(("web.example", 7000), 10)
        socks.append(sock)
        sock.sendall(b"x"); good += sock.recv(1) == b"x"
    except OSError:
        bad += 1
print(good, bad)
"""
_HOLD = """
import select, socket, sys
socks = [socket.create_connection(("web.example", 7000), 10) for _ in range(int(sys.argv[1]))]
for sock in socks:
    sock.sendall(b"x")
    sock.setblocking(False)
while True:
    ready, free, _ = select.select(socks, socks if sys.argv[2:] else [], [])
    for sock in ready:
        sock.recv(1 << 16)
    for sock in free:
        sock.send(bytes(1 << 16))
"""
_BULK = """
import hashlib, os, socket, threading
data = os.urandom(1 << 20) * 32
sock = socket.create_connection(("web.example", 7000), 10)
def send():
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
got = bytearray()
while part := sock.recv(1 << 18):
    got += part
print("same" if got == data else "other", len(got))
"""
