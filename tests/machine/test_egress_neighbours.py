"""Two tenants in the process that all sandboxes share, one of them hostile: the other's connections go through."""

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.network_contract import WEB, Echo, do, tried
from network_world import SILENT, NetworkWorld

import warren
from warren.images.store.store import ImageStore
from warren.interfaces.sandbox import Sandbox
from warren.model.network import EgressBound, NetworkRules
from warren.model.operations import Command
from warren.model.spec import SandboxSpec
from warren.sandboxes.network.egress import Egress
from warren.sandboxes.providers.oci import OciProvider

pytestmark = pytest.mark.anyio
RULES = NetworkRules(allow=("web.example", f"*{SILENT}"))
HOSTILE, OTHER = EgressBound("tenant:hostile"), EgressBound("tenant:other")

# Opens connections until no more are taken, says nothing, and keeps them.
_HOARD = """
import socket, time
kept = []
for _ in range(120):
    try:
        sock = socket.create_connection(("web.example", 7000), 5)
        sock.sendall(b"x")
        if sock.recv(1):
            kept.append(sock)
    except OSError:
        pass
print(len(kept), flush=True)
time.sleep(600)
"""

_ASK_SILENT = f"""
import socket, threading
def ask(number):
    while True:
        try:
            socket.create_connection((f"n{{number}}{SILENT}", 7000), 30).recv(1)
        except OSError:
            pass
for number in range(80):
    threading.Thread(target=ask, args=(number,), daemon=True).start()
threading.Event().wait()
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NetworkWorld]:
    with NetworkWorld(tmp_path) as world:
        world.names |= {f"{name}.example": [WEB] for name in ("web", "a", "b", "c", "d")}
        yield world


@pytest.fixture
def egress(world: NetworkWorld) -> Egress:
    """Its process has descriptors for 172 connections."""
    return Egress(within=(*world.within, "sh", "-c", 'ulimit -n 1200; exec "$@"', "sh"))


@pytest.fixture
async def sandboxes(state_dir: Path, image_store: ImageStore, egress: Egress) -> AsyncIterator[list[Sandbox]]:
    """Two of a hostile tenant and one of another."""
    provider = OciProvider(state_dir, image_store, Path(warren.__file__).parent / "bin", egress=egress)
    made = [await provider.create(SandboxSpec(image="host")) for _ in range(3)]
    for sandbox, bound in zip(made, (HOSTILE, HOSTILE, OTHER), strict=True):
        await sandbox.set_network(RULES if bound is HOSTILE else NetworkRules(allow=("*.example",)), bounds=(bound,))
    yield made
    for sandbox in made:
        await provider.destroy(sandbox.id)
    await provider.close()


async def open_count(sandbox: Sandbox) -> int:
    return (await sandbox.network_use()).open_connections


async def test_a_hoarder_of_connections_leaves_some_to_others(sandboxes: list[Sandbox], world: NetworkWorld) -> None:
    Echo(world.listen(WEB, 7000))
    *hostile, other = sandboxes
    for sandbox in hostile:
        await sandbox.start(Command(argv=("python3", "-c", _HOARD)))
    async with asyncio.timeout(60):
        while sum([await open_count(sandbox) for sandbox in hostile]) < 130:
            await asyncio.sleep(0.2)
    steps = [do("talk", "a.example", 7000, b"hello") for _ in range(20)]
    assert await tried(other, *steps) == ["hello"] * 20
    assert sum([await open_count(sandbox) for sandbox in hostile]) <= 172 * 4 // 5
    reasons = [each.reason for sandbox in hostile for each in (await sandbox.network_use()).refusals]
    assert any("share of all connections" in reason for reason in reasons)


async def test_a_silent_name_server_stops_nobody_elses_look_ups(
    sandboxes: list[Sandbox], world: NetworkWorld, egress: Egress
) -> None:
    threading.Thread(target=echo_in_turns, args=(world.listen(WEB, 7000),), daemon=True).start()
    *hostile, other = sandboxes
    for sandbox in hostile:
        await sandbox.start(Command(argv=("python3", "-c", _ASK_SILENT)))
    async with asyncio.timeout(60):
        while len({name for name in world.asked if name.endswith(SILENT)}) < 16:
            await asyncio.sleep(0.1)
    before = ready_s(egress.pid) + ready_s(os.getpid())
    timed: Any = json.loads((await other.exec(Command(argv=("python3", "-c", _TIMED), timeout_s=60))).stdout)
    # The servers outside are threads of this process. Waiting for a processor is no part of a look-up.
    ready = ready_s(egress.pid) + ready_s(os.getpid()) - before
    assert [each[0] for each in timed] == ["hello"] * 4
    assert max(each[1] for each in timed) < 1.0 + ready


def echo_in_turns(listener: socket.socket) -> None:
    """Answers in one thread: of threads that have ended, nobody knows how long they waited for a processor."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as sock:
                sock.sendall(sock.recv(10))


def ready_s(pid: int) -> float:
    """Returns how long the threads of a process have been ready to run and had no processor, in seconds."""
    waited_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            waited_ns += int((thread / "schedstat").read_text().split()[1])
    return waited_ns / 1e9


_TIMED = """
import json, socket, time
def now():
    with open("/proc/self/schedstat") as file:
        return time.monotonic() - int(file.read().split()[1]) / 1e9
found = []
for name in "abcd":
    begun = now()
    with socket.create_connection((f"{name}.example", 7000), 30) as sock:
        sock.sendall(b"hello")
        found.append((sock.recv(10).decode(), now() - begun))
print(json.dumps(found))
"""
