"""An Internet of the attack's own, which the sandbox under attack may reach by rules.

It is one network namespace: with addresses of every kind on its loopback, servers that answer on all of them and write
down what they get, and a name server whose answers the attack decides. Two hosts speak TLS: one that a secret is bound
to, and one whose certificate nobody vouches for. The process of the sandbox's network runs in it instead of in the
machine's own, so that no packet leaves.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import shlex
import socket
import struct
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import WarrenError
from warren.model.network import NO_NETWORK, EgressBound, EgressPolicy, NetworkRules
from warren.sandboxes.egress.broker import BrokerSetup
from warren.sandboxes.egress.certificates import new_certificates, server_context
from warren.sandboxes.network.egress import Egress, OpenableNetwork
from warren.sandboxes.providers.host_provider import HostProvider
from warren_attack.inside.egress import MARK
from warren_attack.warren import bound_host
from warren_attack.warren.bound_host import BoundHost
from warren_attack.warren.name_server import answer

NETWORK: Final = "93.184.216.0/24"
ALLOWED, OTHER, DENIED, BY_ADDRESS = "93.184.216.34", "93.184.216.35", "93.184.216.37", "93.184.216.40"
BOUND, FALSE = "93.184.216.41", "93.184.216.42"
FALSE_HOST: Final = "false.example"
PRIVATE, METADATA, OWN = "10.99.0.7", "169.254.169.254", "8.8.4.4"
ADDRESSES: Final = (
    *(ALLOWED, OTHER, DENIED, BY_ADDRESS, BOUND, FALSE, PRIVATE, METADATA, OWN),
    *("100.64.0.1", "100.100.100.200", "168.63.129.16", "172.16.0.1", "192.168.0.1", "192.0.2.1", "198.51.100.1"),
)
PORTS: Final = (22, 53, 80, 443, 5432, 8080)
_LISTENERS: Final = (
    *(("0.0.0.0", port, socket.SOCK_STREAM) for port in PORTS),
    *((address, 443, socket.SOCK_STREAM) for address in (BOUND, FALSE)),
    ("0.0.0.0", 53, socket.SOCK_DGRAM),
)
SILENT: Final = ".silent.example"
"""Names below this are looked up in vain: nobody answers."""
NAMES: Final = {
    "allowed.example": (ALLOWED,),
    "port.example": (ALLOWED,),
    "deep.wild.example": (ALLOWED,),
    "wild.example": (OTHER,),
    "other.example": (OTHER,),
    "denied.example": (DENIED,),
    bound_host.HOST: (BOUND,),
    FALSE_HOST: (FALSE,),
    "below.denied.example": (OTHER,),
    "private.evil.example": (PRIVATE,),
    "loopback.evil.example": ("127.0.0.1",),
    "metadata.evil.example": (METADATA,),
    "zero.evil.example": ("0.0.0.0",),
    "mapped.evil.example": (f"::ffff:{PRIVATE}",),
    "nat64.evil.example": ("64:ff9b::10.99.0.7",),
    "loopback6.evil.example": ("::1",),
    "local6.evil.example": ("fd00::1",),
    "link6.evil.example": ("fe80::1",),
    "carrier.evil.example": ("100.64.0.1",),
    "own.evil.example": (OWN,),
    "many.evil.example": ("224.0.0.1",),
    "benchmark.evil.example": ("198.18.0.1",),
}
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(MARK), MARK.encode())
_MOST: Final = 1 << 20
_CLONE_NEWNET: Final = 0x40000000
_UP, _SET_FLAGS, _NEW_ADDRESS = 0x1, 0x8914, 20
_SETTLE_S: Final = 0.1
_libc = ctypes.CDLL(None, use_errno=True)


class Outside:
    """`received` is what came to servers, `asked` the names that were looked up. `names` may be changed. `bound` is the
    host of a secret, which `broker` brings to a sandbox."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.names: dict[str, Callable[[], Sequence[str]]] = {}
        self.received = bytearray()
        self.asked: list[str] = []
        self._namespace = -1
        self._listeners: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._resolver: asyncio.DatagramTransport | None = None
        self.bound = BoundHost(bound_host.new_secret(bound_host.HOST, FALSE_HOST))
        self._folder = tempfile.TemporaryDirectory(prefix="warren-attack-")
        self.egress: Egress

    async def open(self) -> None:
        for name, addresses in NAMES.items():
            self.names[name] = lambda addresses=addresses: addresses  # type: ignore[misc]
        made = threading.Thread(target=self._make_namespace)
        made.start()
        made.join()
        if len(self._listeners) != len(_LISTENERS):
            raise WarrenError("a network for the attack cannot be made: it takes root and network namespaces")
        *streams, bound, false, datagrams = self._listeners
        for listener in streams:
            self._servers.append(await asyncio.start_server(self._serve, sock=listener))
        trusted = new_certificates([bound_host.HOST])
        for listener, host, shown in (
            (bound, bound_host.HOST, trusted),
            (false, FALSE_HOST, new_certificates([FALSE_HOST])),
        ):
            tls = server_context(shown, host)
            self._servers.append(await asyncio.start_server(self.bound.serve, sock=listener, ssl=tls))
        self.broker = BrokerSetup((self.bound.secret,), new_certificates(self.bound.secret.hosts))
        loop = asyncio.get_running_loop()
        self._resolver, _ = await loop.create_datagram_endpoint(lambda: _NameServer(self), sock=datagrams)
        self.egress = Egress(EgressPolicy(networks=(NETWORK,), authorities=trusted.authority), within=self._within())

    async def close(self) -> None:
        if hasattr(self, "egress"):
            await self.egress.close()
        for server in self._servers:
            server.close()
        if self._resolver is not None:
            self._resolver.close()
        for listener in self._listeners:
            listener.close()
        if self._namespace >= 0:
            os.close(self._namespace)
        self._folder.cleanup()

    def _make_namespace(self) -> None:
        if _libc.unshare(_CLONE_NEWNET):
            return
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
        for address in ADDRESSES:
            _add_address(address)
        for address, port, kind in _LISTENERS:
            listener = socket.socket(socket.AF_INET, kind)
            self._listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # of two, the one for the address is taken
            listener.bind((address, port))
            if kind == socket.SOCK_STREAM:
                listener.listen(256)
            listener.setblocking(False)

    def _within(self) -> tuple[str, ...]:
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:2 attempts:1\n")
        (folder / "nsswitch.conf").write_text("hosts: dns\n")
        mounts = "".join(
            f"mount --bind {shlex.quote(str(folder / name))} /etc/{name} && "
            for name in ("resolv.conf", "nsswitch.conf")
        )
        few = "ulimit -n 1200 && "  # descriptors for 172 connections, so that one sandbox can ask for all of them
        enter = ("nsenter", f"--net=/proc/{os.getpid()}/fd/{self._namespace}")
        return (*enter, "unshare", "--mount", "--propagation", "slave", "sh", "-c", f'{mounts}{few}exec "$@"', "sh")

    # -- a sandbox's way here

    def network_of(self, sandbox: Sandbox) -> OpenableNetwork:
        assert isinstance(self._provider, HostProvider)
        record = self._provider.load_record(sandbox.id)
        if record is None:
            raise WarrenError(f"there is no sandbox {sandbox.id}")
        return self.egress.network_of(record)

    @asynccontextmanager
    async def opened(
        self, sandbox: Sandbox, rules: NetworkRules, broker: BrokerSetup | None = None, tenant: str = ""
    ) -> AsyncIterator[OpenableNetwork]:
        """Gives the sandbox these rules meanwhile. Without `tenant` it is a tenant of its own."""
        network = self.network_of(sandbox)
        await network.set(rules, broker, (EgressBound(f"tenant:{tenant}"),) if tenant else ())
        self.received.clear()
        self.bound.received.clear()
        self.asked.clear()
        try:
            yield network
        finally:
            with contextlib.suppress(WarrenError):
                await network.set(NO_NETWORK)

    async def has_got(self, token: str) -> bool:
        """Whether something came out, by a server or in a name."""
        await asyncio.sleep(_SETTLE_S)
        return token.encode() in self.received or any(token in name for name in self.asked)

    # -- what answers here

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            if writer.get_extra_info("sockname")[1] not in (80, 443):
                writer.write(MARK.encode())
            while data := await reader.read(1 << 16):
                if len(self.received) < _MOST:
                    self.received += data
                writer.write(_ANSWER)
                await writer.drain()
        writer.close()


class _NoAnswer(Exception):
    pass


class _NameServer(asyncio.DatagramProtocol):
    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        with contextlib.suppress(_NoAnswer):
            self._transport.sendto(answer(data, self._find), addr)

    def _find(self, name: str) -> Sequence[str] | None:
        self._outside.asked.append(name)
        if name.endswith(SILENT):
            raise _NoAnswer
        known = self._outside.names.get(name)
        return None if known is None else known()


def _add_address(address: str) -> None:
    packed = socket.inet_aton(address)
    body = struct.pack("BBBBI", socket.AF_INET, 32, 0, 0, 1) + struct.pack("HH4sHH4s", 8, 2, packed, 8, 1, packed)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as control:
        control.send(struct.pack("IHHII", 16 + len(body), _NEW_ADDRESS, 0x605, 1, 0) + body)
        code = struct.unpack_from("i", control.recv(4096), 16)[0]
    if code:
        raise OSError(-code, os.strerror(-code))
