"""Ports of loopback for servers that this process starts."""

import contextlib
import secrets
import socket
from pathlib import Path
from typing import Final

_FIRST: Final = 10_000
_FEWEST: Final = 1_000
_LAST: Final = 65_535


def free_port() -> int:
    """Returns a port of loopback that no other process gets from this function as long as this one runs: two servers
    could be started on it at the same time, and the clients of both would talk to the first. It is none of those that
    the kernel gives to clients, if it leaves enough others: one of them could take it before the server does."""
    first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = first_of_clients if first_of_clients >= _FIRST + _FEWEST else _LAST
    while True:
        port = _FIRST + secrets.randbelow(end - _FIRST)
        with socket.socket() as sock, socket.socket(socket.AF_UNIX) as claim, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            claim.bind(f"\0warren-port-{port}")
            claim.detach()  # it stays open, and bound, until this process ends
            return port
