"""What the kernel shares between sandboxes has a bound in each, and what goes beyond it ends with a clear word."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

import anyio
import pytest

from warren.interfaces.sandbox import Process, Sandbox
from warren.model.errors import FileExists, FileNotFound, InvalidPath, LimitReached
from warren.model.operations import Command, TerminalSize
from warren.model.spec import Limits, SandboxSpec
from warren.sandboxes.host.file_locks import MAX_LOCKS
from warren.sandboxes.host.kernel_queues import tcp_memory, unreclaimable
from warren.sandboxes.providers.hardening import TERMINALS
from warren.sandboxes.providers.oci import OciProvider

pytestmark = pytest.mark.anyio

TAKE_TERMINALS = "import os, time\nheld = [os.open('/dev/ptmx', 2) for _ in range({})]\nprint('up', flush=True)\n"
TAKE_LOCKS = """
import fcntl, time
file = open("/tmp/locks", "w")
for place in range({}):
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * place)
print("up", flush=True)
time.sleep({})
print("held", flush=True)
"""
MAKE = """
rm -rf /tmp/files /tmp/pipes && mkdir /tmp/files /tmp/pipes
cd /tmp/files && touch $(seq 1000) && cd /tmp/pipes && mkfifo $(seq 1000)
"""
FILL_NETLINK = """
import socket, struct, time
held = []
for _ in range(900):
    held.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    for _ in range(6):
        held[-1].send(struct.pack("IHHII", 32016, 9999, 5, 0, 0) + bytes(32000), socket.MSG_DONTWAIT)
time.sleep(30)
"""
MANY_NETLINK = """
import os, socket, time
for _ in range(49):
    if os.fork() == 0:
        break
held = [socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) for _ in range(900)]
time.sleep(30)
"""
HOLD_NETLINK = """
import resource, socket, sys
soft = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20000)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
held = [socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) for _ in range(soft - 20)]
print("up", flush=True)
sys.stdin.read()
"""
FILL_BACKLOG = """
import contextlib, socket, time
server = socket.create_server(("127.0.0.1", 0), backlog=4096)
for _ in range(4000):
    client = socket.create_connection(server.getsockname())
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(bytes(65536), socket.MSG_DONTWAIT)
    client.close()
time.sleep(30)
"""
EXCHANGE = """
import ctypes
libc = ctypes.CDLL(None)
print("up", flush=True)
while True:
    libc.renameat2(-100, b"/tmp/files", -100, b"/tmp/pipes", 2)
"""


async def start(box: Sandbox, script: str) -> Process:
    """Returns when the script has printed that it is up."""
    process = await box.start(Command(argv=("python3", "-c", script)))
    async for chunk in process.output():
        if b"up" in chunk.data:
            break
    return process


async def test_a_caller_is_told_that_all_terminals_are_open(provider: OciProvider) -> None:
    box = await provider.create(SandboxSpec())
    await start(box, TAKE_TERMINALS.format(TERMINALS) + "time.sleep(60)")
    with pytest.raises(LimitReached, match="all terminals that the sandbox may have are open"):
        await box.start(Command(argv=("true",), terminal=TerminalSize()))
    assert (await box.exec(Command(argv=("true",)))).exit_code == 0


async def test_a_process_with_too_many_locks_is_ended_and_another_goes_on(provider: OciProvider) -> None:
    honest, greedy = await provider.create(SandboxSpec()), await provider.create(SandboxSpec())
    going_on = asyncio.ensure_future(honest.exec(Command(argv=("python3", "-c", TAKE_LOCKS.format(MAX_LOCKS // 2, 5)))))
    result = await greedy.exec(Command(argv=("python3", "-c", TAKE_LOCKS.format(MAX_LOCKS * 2, 30))))
    assert (result.exit_code, "held" in result.stdout) == (137, False)
    assert (await going_on).stdout == "up\nheld\n"


async def test_a_sandbox_that_fills_netlink_queues_loses_its_commands_and_lives(provider: OciProvider) -> None:
    honest, greedy = await provider.create(SandboxSpec()), await provider.create(SandboxSpec())
    going_on = asyncio.ensure_future(honest.exec(Command(shell="sleep 3; echo went on")))
    before = unreclaimable()
    result = await greedy.exec(Command(argv=("python3", "-c", FILL_NETLINK)))
    assert result.exit_code == 137
    assert unreclaimable() - before < 400 << 20
    assert (await greedy.exec(Command(argv=("python3", "-c", "import socket; socket.if_nameindex()")))).exit_code == 0
    assert (await going_on).stdout == "went on\n"


@pytest.fixture
def nothing_lies_free() -> Iterator[None]:
    """The kernel keeps memory of sockets that thousands of sandboxes had: new ones take that first, and do not show."""
    holders, before = list[subprocess.Popen[bytes]](), unreclaimable()
    while unreclaimable() < before + (32 << 20) and len(holders) < 100:
        argv = [sys.executable, "-c", HOLD_NETLINK]
        holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        holders.append(holder)
        assert holder.stdout is not None
        holder.stdout.readline()
    yield
    for holder in holders:
        holder.communicate()


@pytest.mark.usefixtures("nothing_lies_free")
@pytest.mark.parametrize("script", [MANY_NETLINK, FILL_BACKLOG], ids=["netlink sockets", "connections not accepted"])
async def test_sockets_that_nobody_is_charged_for_end_their_commands(provider: OciProvider, script: str) -> None:
    honest, greedy = await provider.create(SandboxSpec()), await provider.create(SandboxSpec())
    going_on = asyncio.ensure_future(honest.exec(Command(shell="sleep 3; echo went on")))
    before = tcp_memory() + unreclaimable()
    result = await greedy.exec(Command(argv=("python3", "-c", script)))
    assert result.exit_code == 137
    assert tcp_memory() + unreclaimable() - before < 400 << 20
    assert (await greedy.exec(Command(argv=("true",)))).exit_code == 0
    assert (await going_on).stdout == "went on\n"


async def test_a_move_does_not_wait_for_a_pipe_that_took_a_files_place(provider: OciProvider) -> None:
    """/tmp and /workspace are different mounts, so what is moved is copied, name by name."""
    box = await provider.create(SandboxSpec(limits=Limits(cpus=2)))
    for number in range(8):
        await box.exec(Command(shell=MAKE))
        exchange = await start(box, EXCHANGE)
        await asyncio.sleep(0.2)  # until it is at its full speed
        with anyio.fail_after(15), contextlib.suppress(InvalidPath, FileNotFound, FileExists):
            await box.rename("/tmp/files", f"/workspace/moved{number}")
        await exchange.kill(0)
