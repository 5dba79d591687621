"""What holds for the network of a sandbox, whatever provider made it: names, addresses, rules, and that nothing else is
reached. The sandbox is real, the Internet is the test's own."""

import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from network_world import ADDRESSES, PRIVATE, NetworkWorld

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.network import EgressPolicy, NetworkRules
from warren.model.operations import Command
from warren.model.spec import Layer, SandboxSpec
from warren.worker.network.egress import Egress

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

results = []
for name, args, options in json.loads(sys.argv[1]):
    try:
        results.append(globals()[name](*[bytes(a[1:], "latin-1") if isinstance(a, str) and a[:1] == "\1" else a for a in args], **options))
    except Exception as exc:
        results.append(type(exc).__name__)
print(json.dumps(results))
"""


def do(name: str, *args: Any, **options: Any) -> list[Any]:
    return [name, ["\1" + arg.decode("latin-1") if isinstance(arg, bytes) else arg for arg in args], options]


async def tried(sandbox: Sandbox, *steps: list[Any]) -> list[Any]:
    result = await sandbox.exec(Command(argv=("python3", "-c", _CLIENT, json.dumps(steps)), timeout_s=60))
    assert result.exit_code == 0, result.stderr
    outcome: list[Any] = json.loads(result.stdout)
    return outcome


class NetworkContract:
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
        assert Layer.LOOPBACK_ONLY in sandbox.isolation
        assert await tried(sandbox, do("talk", WEB, 80, b"x"), do("ask", "web.example")) == [
            "OSError",
            "ConnectionRefusedError",
        ]
        assert await sandbox.network_use() == await sandbox.network_use()

    async def test_names_that_are_allowed_are_reached_on_every_port(
        self, sandbox: Sandbox, world: NetworkWorld
    ) -> None:
        for port in (80, 443, 5432):
            Echo(world.listen(WEB, port))
        Echo(world.listen(WEB, 22), greeting=b"SSH-2.0-x\r\n")
        await sandbox.set_network(NetworkRules(allow=("web.example",)))
        outcome = await tried(
            *(
                sandbox,
                do("http", "web.example"),
                do("tls", "web.example"),
                do("talk", "web.example", 5432, b"\0\0\0\x08"),
            ),
            do("talk", "web.example", 22, greet=True),
        )
        assert outcome[0].startswith("GET / HTTP/1.1\r\nHost: web.example")
        assert outcome[1:] == [True, "\0\0\0\x08", "SSH-2.0-x\r\n"]
        use = await sandbox.network_use()
        assert (use.connections, use.refused) == (4, 0)
        assert use.bytes_sent == use.bytes_received - 11 > 500
        assert Layer.LOOPBACK_ONLY not in sandbox.isolation
        assert "1 rules" in sandbox.isolation.missing[Layer.LOOPBACK_ONLY]
