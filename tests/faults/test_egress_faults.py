"""The network of sandboxes while its process or its worker dies, hangs or gets new rules: at no moment is anything
reached that the rules do not allow."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from contract.network_contract import OTHER, WEB, Echo, do, tried
from network_world import ADDRESSES, NetworkWorld

import warren
from warren.images.store.store import ImageStore
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import InvalidRequest
from warren.model.network import NO_NETWORK, NetworkRules
from warren.model.operations import Command
from warren.model.spec import Layer, SandboxSpec
from warren.sandboxes.network.egress import Egress
from warren.sandboxes.providers.oci import OciProvider

pytestmark = pytest.mark.anyio
BIN = Path(warren.__file__).parent / "bin"
THIRD = ADDRESSES[2]

_TRAFFIC = """
import socket, threading, time
def knock(host):
    while True:
        try:
            with socket.create_connection((host, 7000), 2) as sock:
                sock.settimeout(2)
                for _ in range(20):
                    sock.sendall(b"x")
                    if not sock.recv(1):
                        break
        except OSError:
            time.sleep(0.005)
for host in ("web.example", "other.example", "third.example", "{other}", "{third}"):
    threading.Thread(target=knock, args=(host,), daemon=True).start()
threading.Event().wait()
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NetworkWorld]:
    with NetworkWorld(tmp_path) as world:
        world.names |= {"web.example": [WEB], "other.example": [OTHER], "third.example": [THIRD]}
        yield world


@pytest.fixture
async def egress(world: NetworkWorld) -> Egress:
    return Egress(within=world.within)


@pytest.fixture
async def provider(state_dir: Path, image_store: ImageStore, egress: Egress) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, image_store, BIN, egress=egress)
    yield provider
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()


@pytest.fixture
async def sandbox(provider: OciProvider) -> Sandbox:
    return await provider.create(SandboxSpec(image="host"))


def kill(egress: Egress, number: signal.Signals) -> None:
    pid = egress.pid
    assert pid > 1
    os.kill(pid, number)


def started_worker(*command: str) -> "subprocess.Popen[str]":
    program = Path(__file__).with_name("egress_worker.py")
    return subprocess.Popen([sys.executable, str(program), *command], stdout=subprocess.PIPE, text=True)


async def reached(sandbox: Sandbox, host: str = "web.example", seconds: float = 20) -> bool:
    """Whether it is reached within that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if await tried(sandbox, do("talk", host, 7000, b"x")) == ["x"]:
            return True
        await asyncio.sleep(0.1)
    return False


async def test_killing_the_process_under_traffic_opens_nothing(
    sandbox: Sandbox, world: NetworkWorld, egress: Egress
) -> None:
    web, other, third = (Echo(world.listen(address, 7000)) for address in (WEB, OTHER, THIRD))
    await sandbox.set_network(NetworkRules(allow=("web.example",)))
    await sandbox.start(Command(argv=("python3", "-c", _TRAFFIC.format(other=OTHER, third=THIRD))))
    for _ in range(4):
        killed = egress.pid
        kill(egress, signal.SIGKILL)
        end = time.monotonic() + 20
        while egress.pid in (0, killed) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        before = web.calls  # counted once the next process is there: the last calls of the killed one may come late
        while web.calls <= before and time.monotonic() < end:
            await asyncio.sleep(0.02)
        assert web.calls > before
    assert (other.calls, third.calls) == (0, 0)


async def test_rules_that_change_under_traffic_are_never_wider_than_they_say(
    sandbox: Sandbox, world: NetworkWorld, egress: Egress
) -> None:
    other, third = Echo(world.listen(OTHER, 7000)), Echo(world.listen(THIRD, 7000))
    await sandbox.set_network(NetworkRules(allow=("web.example",)))
    await sandbox.start(Command(argv=("python3", "-c", _TRAFFIC.format(other=OTHER, third=THIRD))))
    for number in range(6):
        if number == 3:
            kill(egress, signal.SIGKILL)  # while it is asked for other rules
        await sandbox.set_network(NetworkRules(allow=("other.example", f"{OTHER}:7000")))
        before = other.calls
        end = time.monotonic() + 10
        while other.calls == before and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert other.calls > before
        await sandbox.set_network(NetworkRules(allow=("web.example",)) if number % 2 else NO_NETWORK)
        assert (await sandbox.network_use()).open_connections == 0
        await asyncio.sleep(0.1)  # the server counts what came before
        before = other.calls
        await asyncio.sleep(0.3)
        assert other.calls == before
    assert third.calls == 0


async def test_a_process_that_hangs_is_killed_and_the_newest_rules_hold(
    sandbox: Sandbox, world: NetworkWorld, egress: Egress
) -> None:
    Echo(world.listen(WEB, 7000))
    other = Echo(world.listen(OTHER, 7000))
    await sandbox.set_network(NetworkRules(allow=("web.example", "other.example")))
    first = egress.pid
    kill(egress, signal.SIGSTOP)
    await sandbox.set_network(NetworkRules(allow=("web.example",)))
    assert egress.pid not in (0, first)
    assert not Path(f"/proc/{first}/exe").exists()
    assert await reached(sandbox)
    kill(egress, signal.SIGSTOP)
    await sandbox.set_network(NO_NETWORK)
    assert Layer.NO_NETWORK in sandbox.isolation
    assert await tried(sandbox, do("talk", WEB, 7000, b"x")) == ["OSError"]
    assert other.calls == 0


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def test_cancelled_requests_leave_the_process_as_it_was(
    sandbox: Sandbox, world: NetworkWorld, egress: Egress
) -> None:
    """They are cancelled while the process does not read: before it has all of a long one, and after a short one."""
    Echo(world.listen(WEB, 7000))
    await sandbox.set_network(NetworkRules(allow=("web.example",)))
    await sandbox.set_network(NO_NETWORK)
    first = egress.pid
    before = descriptors(first)
    long = NetworkRules(allow=tuple(f"a{number}.{'b' * 60}.{'c' * 60}.{'d' * 60}.example" for number in range(1000)))
    for rules in (long, NetworkRules(allow=("web.example",))):
        kill(egress, signal.SIGSTOP)
        setting = asyncio.create_task(sandbox.set_network(rules))
        await asyncio.sleep(0.5)
        setting.cancel()
        await asyncio.sleep(0.1)
        kill(egress, signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await setting
        assert Layer.NO_NETWORK in sandbox.isolation
        assert (egress.pid, descriptors(first)) == (first, before)
    await sandbox.set_network(NetworkRules(allow=("web.example",)))
    assert await reached(sandbox)
    assert egress.pid == first


async def test_a_process_that_does_not_end_is_killed_when_the_network_is_closed(
    sandbox: Sandbox, provider: OciProvider, egress: Egress
) -> None:
    await sandbox.set_network(NetworkRules(allow=("web.example",)))
    first = egress.pid
    kill(egress, signal.SIGSTOP)
    async with asyncio.timeout(20):
        await egress.close()
    assert not Path(f"/proc/{first}/exe").exists()


# Makes the process of the network hang, or end, when it reads rules with a certain name.
_POISON = """
import os, time
from warren.sandboxes.egress import messages
read = messages.unpack_rules
def unpack_rules(message):
    rules = read(message)
    if rules.knows_name("hang.example"):
        time.sleep(60)
    if rules.knows_name("end.example"):
        os._exit(3)
    return rules
messages.unpack_rules = unpack_rules
"""


@pytest.fixture
async def poisoned(world: NetworkWorld, tmp_path: Path) -> Egress:
    (tmp_path / "sitecustomize.py").write_text(_POISON)
    script = f'PYTHONPATH="{tmp_path}:$PYTHONPATH" exec "$@"'
    return Egress(within=(*world.within, "sh", "-c", script, "sh"))


@pytest.mark.parametrize("name", ["hang.example", "end.example"])
async def test_rules_that_the_process_ends_of_end_it_once_and_fail_alone(
    state_dir: Path, image_store: ImageStore, world: NetworkWorld, poisoned: Egress, name: str
) -> None:
    Echo(world.listen(WEB, 7000))
    provider = OciProvider(state_dir, image_store, BIN, egress=poisoned)
    try:
        bad, neighbour = [await provider.create(SandboxSpec(image="host")) for _ in range(2)]
        for sandbox in (bad, neighbour):
            await sandbox.set_network(NetworkRules(allow=("web.example",)))
        first = poisoned.pid
        with pytest.raises(InvalidRequest, match="ends of these rules"):
            await bad.set_network(NetworkRules(allow=(name,)))
        assert Layer.NO_NETWORK in bad.isolation
        assert await reached(neighbour)
        second = poisoned.pid
        assert second not in (0, first)
        for _ in range(2):  # nobody else learns of it any more
            with pytest.raises(InvalidRequest, match="ends of these rules"):
                await bad.set_network(NetworkRules(allow=(name,)))
        assert poisoned.pid == second
        await bad.set_network(NetworkRules(allow=("web.example",)))
        assert await reached(bad)
        assert poisoned.pid == second
    finally:
        for sandbox_id in await provider.list_ids():
            await provider.destroy(sandbox_id)
        await provider.close()


async def test_killing_the_worker_ends_the_process_and_closes_the_network(
    world: NetworkWorld, state_dir: Path, provider: OciProvider
) -> None:
    web = Echo(world.listen(WEB, 7000))
    worker = started_worker(str(state_dir), str(BIN), *world.within)
    try:
        assert worker.stdout is not None
        sandbox_id, pid = (await asyncio.to_thread(worker.stdout.readline)).split()
    finally:
        worker.kill()
        worker.communicate()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/exe").exists() and time.monotonic() < end:
        await asyncio.sleep(0.05)
    assert not Path(f"/proc/{pid}/exe").exists()
    sandbox = await provider.adopt(sandbox_id)
    assert Layer.NO_NETWORK in sandbox.isolation
    steps = do("talk", "web.example", 7000, b"x"), do("talk", WEB, 7000, b"x")
    assert await tried(sandbox, *steps) == ["gaierror", "ConnectionRefusedError"]
    assert web.calls == 0
    await sandbox.set_network(NetworkRules(allow=("web.example",)))
    assert await reached(sandbox)
