"""Ways to the host and the neighbour: a sandbox has no network but its own loopback."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from warren_attack.probe import Group, Probe, ProbeResult, ProbeVerdict, got_through
from warren_attack.warren.arena import Arena

_G = Group.NETWORK
_HELD_S = 30


@contextmanager
def _listener(host: str, kind: int = socket.SOCK_STREAM) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, kind) as server:
        server.bind((host, 0))
        if kind == socket.SOCK_STREAM:
            server.listen()
        server.setblocking(False)
        yield server


def _host_addresses() -> list[str]:
    """The addresses of this machine, from the kernel's routing table."""
    lines, found = Path("/proc/net/fib_trie").read_text().splitlines(), []
    for before, line in pairwise(lines):
        if "host LOCAL" in line:
            found.append(before.split()[-1])
    return sorted(set(found) - {"127.0.0.1"})


async def _host_loopback(arena: Arena) -> ProbeResult:
    """Serves on the host's loopback and on all its addresses, which the sandbox must not reach."""
    with _listener("127.0.0.1") as loopback, _listener("0.0.0.0") as everywhere:
        targets: list[list[object]] = [["127.0.0.1", loopback.getsockname()[1]]]
        for host in ("127.0.0.1", *_host_addresses()):
            targets.append([host, everywhere.getsockname()[1]])
        outcome = await arena.inside("network:connect", targets=targets, timeout_s=60)
        for server in (loopback, everywhere):
            try:
                came, address = server.accept()
            except BlockingIOError:
                continue
            came.close()
            return got_through(f"a connection reached the host, from {address}")
    return outcome


async def _host_datagrams(arena: Arena) -> ProbeResult:
    with _listener("0.0.0.0", socket.SOCK_DGRAM) as server:
        port = server.getsockname()[1]
        targets = [[host, port] for host in (*_host_addresses(), "255.255.255.255", "224.0.0.1")]
        outcome = await arena.inside("network:connect", targets=targets, timeout_s=60)
        try:
            server.recvfrom(64)
        except BlockingIOError:
            return outcome
    return got_through("a datagram reached the host")


async def _abstract_sockets(arena: Arena) -> ProbeResult:
    """The host's and the neighbour's unix sockets without a file, and the neighbour's loopback."""
    name, port = f"warren-{secrets.token_hex(8)}", 20000 + secrets.randbelow(20000)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}host")
        server.listen()
        async with arena.holding(
            arena.neighbour, "neighbour:hold_sockets", seconds=_HELD_S, token=f"{name}there", port=port
        ):
            beside = await arena.inside(
                "neighbour:reach_sockets", box=arena.neighbour, names=[f"{name}there"], ports=[port]
            )
            if beside.verdict is not ProbeVerdict.GOT_THROUGH:
                raise ValueError(f"the neighbour does not reach its own sockets: {beside.evidence}")
            return await arena.inside("neighbour:reach_sockets", names=[f"{name}host", f"{name}there"], ports=[port])


PROBES: tuple[Probe[Arena], ...] = (
    Probe(
        "host-loopback",
        _G,
        "connect to servers on the host's 127.0.0.1 and addresses (seen from the host)",
        _host_loopback,
    ),
    Probe("host-datagrams", _G, "send datagrams and broadcasts to the host (seen from the host)", _host_datagrams),
    Probe(
        "other-sockets",
        _G,
        "connect to abstract sockets of host and neighbour, to the neighbour's loopback",
        _abstract_sockets,
    ),
)
