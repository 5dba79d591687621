"""The programs that bound the UDP sockets of a cgroup of v2, which hybrid machines have too."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.sandboxes.host import datagram_limit
from warren.sandboxes.host.cgroups import Hierarchies

MOST = 10
INSIDE = """
import json, socket, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")

def fill():
    held = []
    try:
        for number in range(30):
            held.append(socket.socket((socket.AF_INET, socket.AF_INET6)[number % 2], socket.SOCK_DGRAM))
    except OSError as exc:
        return len(held), exc.strerror
    return len(held), ""

def buffer_of(kind, wanted):
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

def short():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, b"..")
        except OSError as exc:
            return exc.strerror

print(json.dumps({
    "filled": [fill() for _ in range(3)],
    "buffers": [buffer_of(socket.SOCK_DGRAM, size) for size in (50_000, 212_992, 4 << 20)],
    "tcp": buffer_of(socket.SOCK_STREAM, 1 << 20) == buffer_of(socket.SOCK_STREAM, 212_992),
    "short": short(),
    "others": [len(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)) for _ in range(30)].count(2),
}))
"""


@pytest.fixture
def cgroup() -> Iterator[str]:
    path = Path(Hierarchies.here().mounts[""], f"warren-test-{secrets.token_hex(4)}")
    path.mkdir()
    yield str(path)
    path.rmdir()


def test_udp_sockets_are_counted_and_their_buffers_bounded(cgroup: str) -> None:
    assert not datagram_limit.is_set(cgroup)
    datagram_limit.limit(cgroup, MOST)
    assert datagram_limit.is_set(cgroup)
    out = subprocess.run([sys.executable, "-c", INSIDE, cgroup], capture_output=True, check=True, timeout=30).stdout
    seen = json.loads(out)
    assert seen["filled"] == [[MOST, os.strerror(105)]] * 3  # what was closed counts no more
    assert seen["buffers"] == [100_000, 2 * 212_992, 2 * 212_992]
    assert seen["tcp"] is False
    assert seen["short"] == "Invalid argument"
    assert seen["others"] == 30


def test_each_cgroup_counts_its_own_sockets(cgroup: str) -> None:
    datagram_limit.limit(cgroup, 0)
    other = Path(f"{cgroup}-other")
    other.mkdir()
    try:
        datagram_limit.limit(str(other), MOST)
        for directory, allowed in ((cgroup, 0), (str(other), MOST)):
            argv = [sys.executable, "-c", INSIDE.partition("print(")[0] + "print(fill()[0])", directory]
            assert int(subprocess.run(argv, capture_output=True, check=True, timeout=30).stdout) == allowed
    finally:
        other.rmdir()


def test_a_small_sandbox_still_gets_some_sockets() -> None:
    assert datagram_limit.sockets_within(0) == datagram_limit.LEAST_SOCKETS
    assert datagram_limit.sockets_within(1 << 30) > datagram_limit.LEAST_SOCKETS
