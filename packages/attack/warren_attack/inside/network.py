"""Ways to the network that is not there."""

import fcntl
import os
import socket
import struct

from .calls import CONTAINED, THROUGH, Account, ProbeVerdict

_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCADDRT, _SIOCBRADDBR = 0x8914, 0x8916, 0x890B, 0x89A0


def interfaces() -> ProbeVerdict:
    names = [name for _, name in socket.if_nameindex()]
    if names != ["lo"]:
        return THROUGH, f"interfaces: {', '.join(names) or 'none that can be listed'}"
    return CONTAINED, "only lo"


def routes() -> ProbeVerdict:
    with open("/proc/net/route") as file:
        found = [line.split()[0] for line in file.readlines()[1:]]
    try:
        with open("/proc/net/ipv6_route") as file:
            found += [line.split()[-1] for line in file if line.split()[-1] != "lo"]
    except FileNotFoundError:
        pass
    return (THROUGH, f"routes by {', '.join(found)}") if found else (CONTAINED, "no route leads out")


def connect(targets: "list[tuple[str, int]]") -> ProbeVerdict:
    """(host, port) by TCP and by UDP; a UDP packet counts as through when it can be sent."""
    account = Account()
    for host, port in targets:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        account.attempt(f"tcp {host}:{port}", lambda f=family, a=(host, port): _tcp(f, a))  # type: ignore[misc]
        if not host.startswith("127.") and host != "::1":
            account.attempt(f"udp {host}:{port}", lambda f=family, a=(host, port): _udp(f, a))  # type: ignore[misc]
    return account.verdict()


def _tcp(family: int, address: "tuple[str, int]") -> None:
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address)


def _udp(family: int, address: "tuple[str, int]") -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.settimeout(1)
        client.sendto(b"warren", address)


def resolve() -> ProbeVerdict:
    """Queries each configured name server, and those that often listen on loopback."""
    servers = ["127.0.0.1", "127.0.0.11", "127.0.0.53", "192.0.2.53"]
    try:
        with open("/etc/resolv.conf") as file:
            servers += [line.split()[1] for line in file if line.startswith("nameserver") and len(line.split()) > 1]
    except FileNotFoundError:
        pass
    account = Account()
    for server in dict.fromkeys(servers):
        account.attempt(f"ask {server}", lambda server=server: _ask(server))  # type: ignore[misc]
    return account.verdict()


def _ask(server: str) -> None:
    question = struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0) + b"\x09localhost\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(1)
        client.connect((server, 53))
        client.send(question)
        client.recv(512)


def reconfigure() -> ProbeVerdict:
    """An address, a route, an interface, a bridge: by ioctl and by netlink."""
    account = Account()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = b"lo".ljust(16, b"\0")
        alias = b"lo:9".ljust(16, b"\0")  # lo itself keeps 127.0.0.1: it may be the host's
        address = struct.pack("H2x4s8x", socket.AF_INET, socket.inet_aton("127.9.9.9"))
        for what, request, argument in (
            ("flags of lo", _SIOCSIFFLAGS, name + struct.pack("H", 0x49).ljust(24, b"\0")),
            ("address of lo", _SIOCSIFADDR, alias + address.ljust(24, b"\0")),
            ("a route", _SIOCADDRT, bytes(120)),
            ("a bridge", _SIOCBRADDBR, b"warren\0".ljust(40, b"\0")),
        ):
            account.attempt(what, lambda r=request, a=argument: fcntl.ioctl(control, r, a) and None)  # type: ignore[misc]
    kind = b"\x0a\0\x01\0dummy\0\0\0"
    link = struct.pack("HHI", 4 + len(kind), 18, 0)[:4] + kind
    account.attempt("a dummy interface", lambda: _netlink(16, 0x600, struct.pack("BxHiII", 0, 0, 0, 0, 0) + link))
    loopback = struct.pack("BBBBI", socket.AF_INET, 8, 0, 0, 1) + struct.pack("HH4s", 8, 2, bytes([127, 9, 9, 9]))
    account.attempt("an address", lambda: _netlink(20, 0x600, loopback))
    return account.verdict()


def _netlink(kind: int, flags: int, body: bytes) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as control:
        control.settimeout(2)
        control.send(struct.pack("IHHII", 16 + len(body), kind, flags | 5, 1, 0) + body)
        answer = control.recv(4096)
    code = -int(struct.unpack_from("i", answer, 16)[0])
    if code:
        raise OSError(code, os.strerror(code))


def bind_outside() -> ProbeVerdict:
    """Binds ports on addresses of other networks."""
    account = Account()
    for host in ("192.0.2.1", "10.0.0.1", "169.254.169.254"):
        with socket.socket() as server:
            account.attempt(f"bind {host}", lambda h=host, s=server: s.bind((h, 8080)))  # type: ignore[misc]
    return account.verdict()
