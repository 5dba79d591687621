"""What all sandboxes of the machine use together is limited, and so are the buffers of their sockets."""

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.interfaces.sandbox import Sandbox
from warren.model.operations import Command
from warren.model.spec import MIB, Limits, SandboxSpec
from warren.sandboxes.host.cgroups import CgroupLimits, Hierarchies, SandboxCgroup
from warren.sandboxes.host.machine_size import memory_total_mb, most_processes
from warren.sandboxes.providers.host_limits import SOCKETS_SHARE
from warren.sandboxes.providers.oci import OciProvider

pytestmark = pytest.mark.anyio

# Data that nobody reads stays in the buffers of both ends.
HOARD = """python3 -c '
import socket
server = socket.create_server(("127.0.0.1", 0), backlog=1000)
held = []
try:
    for _ in range(400):
        client = socket.create_connection(server.getsockname(), timeout=2)
        peer, _ = server.accept()
        held += [client, peer]
        for end in (client, peer):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            end.setblocking(False)
            try:
                for _ in range(64):
                    end.send(bytes(1 << 20))
            except BlockingIOError:
                pass
except OSError:
    pass
print("full", flush=True)
import time; time.sleep(3)
'"""

# What others do in the sandbox meanwhile asks for memory too: with v2 that cost the agent its life.
HOARD_UDP = """python3 -c '
import socket, time
held = []
try:
    for _ in range(400):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        receiver.bind(("127.0.0.1", 0))
        held.append(receiver)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            for _ in range(256):
                sender.sendto(bytes(32 << 10), receiver.getsockname())
except OSError:
    pass
print("full", flush=True)
time.sleep(1)
'"""


def cgroup_of(box: Sandbox, provider: OciProvider) -> SandboxCgroup:
    record = provider.load_record(box.id)
    assert record is not None
    return provider._cgroup(record)


def socket_memory() -> int:
    """What the sockets of the whole machine hold, in bytes."""
    lines = Path("/proc/net/sockstat").read_text().splitlines()
    words = next(line for line in lines if line.startswith("TCP:")).split()
    return int(words[words.index("mem") + 1]) * os.sysconf("SC_PAGE_SIZE")


async def test_buffers_of_sockets_are_bounded(provider: OciProvider) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(memory_mb=128, cpus=1)))
    cgroup = cgroup_of(box, provider)
    before, most = socket_memory(), 0
    hoarding = asyncio.ensure_future(box.exec(Command(shell=HOARD, timeout_s=30)))
    while not hoarding.done():
        await asyncio.sleep(0.1)
        most = max(most, socket_memory() - before)
    assert most < (128 + 32) * MIB, f"{most // MIB} MiB in the buffers of a sandbox with 128 MiB of memory"
    if not cgroup.unified:
        assert cgroup.limits().sockets == 128 * MIB // SOCKETS_SHARE
    assert (await box.exec(Command(shell="echo alive"))).stdout == "alive\n"


@pytest.mark.extended
async def test_buffers_of_udp_do_not_cost_a_sandbox_its_agent(provider: OciProvider) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(memory_mb=128, cpus=1)))
    hoarding = asyncio.ensure_future(box.exec(Command(shell=HOARD_UDP, timeout_s=30)))
    while not hoarding.done():
        assert (await box.exec(Command(shell="echo alive"))).stdout == "alive\n"
        await asyncio.sleep(0.02)
    assert (await hoarding).stdout == "full\n"


async def test_all_sandboxes_together_leave_something_of_the_machine(provider: OciProvider) -> None:
    box = await provider.create(SandboxSpec())
    cgroup = cgroup_of(box, provider)
    above = SandboxCgroup(
        {name: os.path.dirname(path) for name, path in cgroup.directories.items()}, unified=cgroup.unified
    )
    limits = above.limits()
    assert limits.memory is not None
    assert memory_total_mb() // 2 <= limits.memory // MIB <= memory_total_mb() - 256
    assert limits.pids is not None
    assert limits.pids < most_processes()


@pytest.fixture
def parent() -> Iterator[str]:
    hierarchies, path = Hierarchies.here(), f"/warren-test-{secrets.token_hex(4)}"
    yield path
    hierarchies.remove_parent(path)


def test_limits_of_the_cgroup_above_are_set_and_set_again(parent: str) -> None:
    hierarchies = Hierarchies.here()
    hierarchies.limit_parent(parent, CgroupLimits(memory=256 * MIB, cpus=1.5, pids=100, sockets=16 * MIB))
    hierarchies.limit_parent(parent, CgroupLimits(memory=128 * MIB, pids=100))
    directories = {name: mount / parent.strip("/") for name, mount in hierarchies.mounts.items()}
    limits = SandboxCgroup(directories, unified=hierarchies.version == "v2").limits()
    assert (limits.memory, limits.cpus, limits.pids) == (128 * MIB, 1.5, 100)
