"""Servers inside a sandbox: which ports they listen on, and connections to them from the host."""

import asyncio
import errno
import os
import re
import socket
import sys
from typing import Final

from warren.model.errors import PortClosed, SandboxLost, Unavailable
from warren.model.network import ListeningPort
from warren.sandboxes.host.record import SandboxRecord
from warren.sandboxes.network.namespaces import namespace_thread, open_namespace

_CONNECT_S: Final = 5.0
_MAX_READ: Final = 4 << 20  # bytes of each table, some 28,000 sockets
_MAX_PORTS: Final = 1024
_PIECE: Final = 64 * 1024
_CLOSED: Final = (errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT, errno.EHOSTUNREACH)
_LISTENING: Final = re.compile(rb"^ *\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) [0-9A-F]+:0000 0A ", re.M)


class SandboxPorts:
    """The ports of one sandbox. The sandbox's agent is not involved."""

    def __init__(self, record: SandboxRecord) -> None:
        self._record = record

    async def ports(self) -> list[ListeningPort]:
        """Returns the listening TCP ports, in order. Raises SandboxLost."""
        return await asyncio.to_thread(read_ports, self._record)

    async def dial(self, port: int) -> socket.socket:
        """Connects to 127.0.0.1:port inside, or else to [::1]:port. Raises PortClosed, SandboxLost, Unavailable."""
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                async with asyncio.timeout(_CONNECT_S):
                    return await self._connect(family, host, port)
            except TimeoutError:
                raise Unavailable(f"port {port} of the sandbox accepts no connection: its server is busy") from None
            except OSError as exc:
                if exc.errno not in _CLOSED:
                    raise Unavailable(f"port {port} of the sandbox cannot be reached: {exc.strerror}") from exc
        raise PortClosed(
            f"nothing listens on port {port} of the sandbox",
            remedy="start a server there, on 127.0.0.1 or on all addresses",
        )

    async def _connect(self, family: socket.AddressFamily, host: str, port: int) -> socket.socket:
        made: list[socket.socket] = []
        namespace = open_namespace(self._record)
        try:
            await namespace_thread().run(namespace, lambda: made.append(socket.socket(family, socket.SOCK_STREAM)))
            made[0].setblocking(False)
            made[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(made[0], (host, port))
            return made[0]
        except BaseException:
            for each in made:
                each.close()
            raise
        finally:
            os.close(namespace)


def read_ports(record: SandboxRecord) -> list[ListeningPort]:
    found: dict[int, ListeningPort] = {}
    for name in ("tcp", "tcp6"):
        for raw, port in _LISTENING.findall(_read_table(record, name)):
            if len(found) < _MAX_PORTS:
                found.setdefault(int(port, 16), ListeningPort(int(port, 16), _address(raw)))
    return [found[port] for port in sorted(found)]


def _read_table(record: SandboxRecord, name: str) -> bytes:
    try:
        fd = os.open(f"/proc/{record.pid}/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if record.alive():
            return b""  # the kernel has no IPv6
        raise SandboxLost("the sandbox's first process has ended") from None
    try:
        if not record.alive():  # checked after opening: the pid may belong to another process by now
            raise SandboxLost("the sandbox's first process has ended")
        table = bytearray()
        while len(table) < _MAX_READ and (piece := os.read(fd, _PIECE)):
            table += piece
        return bytes(table)
    except ProcessLookupError:
        raise SandboxLost("the sandbox's first process has ended") from None
    finally:
        os.close(fd)


def _address(text: bytes) -> str:
    """Reads an address as the kernel prints it: as words in this machine's byte order."""
    words = [int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8)]
    packed = b"".join(words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
