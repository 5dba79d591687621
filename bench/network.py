"""Measures the network of sandboxes: switching it on, connecting, carrying bytes, memory, and what creates cost then.

    sudo .venv/bin/python bench/network.py                everything, some minutes
    sudo .venv/bin/python bench/network.py --count 1000   measures the memory with 1,000 open sandboxes

The servers are in a network namespace of their own, behind a router. Direct figures are those of the same program in
the namespace of `warren-egress`, without a sandbox around it. Absolute times depend on the machine; compare the ratios.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import this_run  # noqa: E402
from docker_engine import DockerEngine  # noqa: E402
from network_world import ADDRESSES, NetworkWorld  # noqa: E402
from table import Table  # noqa: E402

from warren.images.store.store import ImageStore  # noqa: E402
from warren.interfaces.sandbox import Sandbox  # noqa: E402
from warren.model.network import EgressPolicy, NetworkRules  # noqa: E402
from warren.model.operations import Command  # noqa: E402
from warren.model.spec import SandboxSpec  # noqa: E402
from warren.sandboxes.network.egress import Egress  # noqa: E402
from warren.sandboxes.providers.oci import OciProvider  # noqa: E402

SERVER = ADDRESSES[0]
RULES = NetworkRules(allow=("bench.example",))
SPEC = SandboxSpec(image="host")
_ECHO, _SEND, _TAKE = 7001, 7002, 7003
_BYTES = 1 << 30

_SERVERS = f"""
import socket, threading
data = bytes(1 << 20)
def echo(sock):
    while part := sock.recv(65536):
        sock.sendall(part)
def send(sock):
    while True:
        sock.sendall(data)
def take(sock):
    room, left = bytearray(1 << 20), {_BYTES}
    while left > 0 and (count := sock.recv_into(room)):
        left -= count
    sock.sendall(b"x")
def serve(port, talk):
    def run(sock):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            talk(sock)
        except OSError:
            pass
        sock.close()
    listener = socket.create_server(("{SERVER}", port), backlog=512)
    while True:
        threading.Thread(target=run, args=(listener.accept()[0],), daemon=True).start()
for port, talk in (({_ECHO}, echo), ({_SEND}, send), ({_TAKE}, take)):
    threading.Thread(target=serve, args=(port, talk), daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""

_CLIENT = f"""
import json, socket, statistics, sys, time
host, what = sys.argv[1:3]
address = socket.gethostbyname(host) if what != "look_up" else host
def connect():
    took = []
    for _ in range(300):
        start = time.perf_counter()
        sock = socket.create_connection((address, {_ECHO}))
        sock.sendall(b"x"); sock.recv(1)
        took.append(time.perf_counter() - start)
        sock.close()
    return statistics.median(took) * 1000
def look_up():
    took = []
    for _ in range(300):
        start = time.perf_counter()
        socket.gethostbyname(host)
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1000
def down():
    room, left = bytearray(1 << 20), {_BYTES}
    sock = socket.create_connection((address, {_SEND}))
    start = time.perf_counter()
    while left > 0:
        left -= sock.recv_into(room)
    return ({_BYTES} - left) / (time.perf_counter() - start) / (1 << 20)
def up():
    data = bytes(1 << 20)
    sock = socket.create_connection((address, {_TAKE}))
    start = time.perf_counter()
    for _ in range({_BYTES} >> 20):
        sock.sendall(data)
    sock.recv(1)
    return {_BYTES} / (time.perf_counter() - start) / (1 << 20)
print(json.dumps(globals()[what]()))
"""


def direct(world: NetworkWorld, what: str) -> float:
    command = [*world.within, sys.executable, "-c", _CLIENT, "bench.example", what]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def inside(sandbox: Sandbox, what: str) -> float:
    result = await sandbox.exec(Command(argv=("python3", "-c", _CLIENT, "bench.example", what), timeout_s=300))
    if result.exit_code:
        raise SystemExit(result.stderr)
    return float(result.stdout)


def private_memory(pid: int) -> int:
    """Returns the memory that only this process has, in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private"))


class Bench:
    def __init__(self, world: NetworkWorld, provider: OciProvider, egress: Egress, table: Table) -> None:
        self.world, self.provider, self.egress, self.table = world, provider, egress, table

    async def switching(self) -> None:
        boxes = [await self.provider.create(SPEC) for _ in range(12)]
        await boxes.pop().set_network(RULES)  # starts the proxy process
        took, changed = [], []
        for box in boxes:
            start = time.perf_counter()
            await box.set_network(RULES)
            took.append((time.perf_counter() - start) * 1000)
            start = time.perf_counter()
            await box.set_network(NetworkRules(internet=True))
            changed.append((time.perf_counter() - start) * 1000)
        p50 = statistics.median(took)
        self.table.add("switch a pooled sandbox's network on, p50", f"{p50:.2f} ms", "<= 5 ms", p50 <= 5)
        self.table.add("  slowest of 11", f"{max(took):.2f} ms")
        self.table.add("replace the rules of an open network, p50", f"{statistics.median(changed):.2f} ms")
        await self.destroy_all()

    async def carrying(self) -> None:
        box = await self.provider.create(SPEC)
        await box.set_network(RULES)
        took = await inside(box, "look_up")
        self.table.add("look a name up inside, p50", f"{took:.3f} ms")
        without, through = direct(self.world, "connect"), await inside(box, "connect")
        more = through - without
        self.table.add("connect, send a byte, get one, direct, p50", f"{without:.2f} ms")
        self.table.add("  through warren-egress", f"{through:.2f} ms", "<= 2 ms more", more <= 2)
        for what, name in (("down", "receive"), ("up", "send")):
            without, through = direct(self.world, what), await inside(box, what)
            self.table.add(f"{name} 1 GiB, direct", f"{without:,.0f} MiB/s")
            self.table.add("  through warren-egress", f"{through:,.0f} MiB/s", ">= 400 MiB/s", through >= 400)
        await self.destroy_all()

    async def memory(self, count: int) -> None:
        first = await self.provider.create(SPEC)
        await first.set_network(RULES)
        boxes = [await self.provider.create(SPEC) for _ in range(count)]
        pids = self.egress.pid, os.getpid()
        before = [private_memory(pid) for pid in pids]
        start = time.perf_counter()
        for box in boxes:
            await box.set_network(RULES)
        took = (time.perf_counter() - start) / count * 1000
        after = [private_memory(pid) for pid in pids]
        proxy, worker = ((late - early) / count for late, early in zip(after, before, strict=True))
        self.table.add("warren-egress with one open network", f"{before[0] / 1024:.1f} MiB")
        self.table.add(f"  more for each of {count} sandboxes", f"{proxy:.1f} KiB")
        self.table.add("  more in the worker for each", f"{worker:.1f} KiB")
        self.table.add(f"  switching each of {count} on, mean", f"{took:.2f} ms")
        await self.destroy_all()

    async def creating(self) -> None:
        rates = {}
        for name, rules in (("without", None), ("with", RULES)) * 2:
            start = time.perf_counter()
            await _at_once(4, 24, lambda rules=rules: self._create(rules))
            rates.setdefault(name, []).append(24 / (time.perf_counter() - start))
            await self.destroy_all()
        without, with_network = max(rates["without"]), max(rates["with"])
        self.table.add("creates a second, 4 at once, without a network", f"{without:.1f} /s")
        kept = with_network / without
        self.table.add("  with an open network", f"{with_network:.1f} /s", ">= 80 %", kept >= 0.8)

    async def _create(self, rules: NetworkRules | None) -> None:
        box = await self.provider.create(SPEC)
        if rules is not None:
            await box.set_network(rules)

    def rivals(self) -> None:
        for program in ("slirp4netns", "dockerd"):
            if shutil.which(program) is None:
                self.table.add(program, "not installed")
        if shutil.which("slirp4netns"):
            self._measure_slirp()
        if shutil.which("dockerd"):
            self._measure_bridge()

    def _measure_slirp(self) -> None:
        """Measures slirp4netns in an existing namespace, to the same servers as a sandbox; without names and rules."""
        with subprocess.Popen(["unshare", "--net", "sleep", "300"]) as holder:
            time.sleep(0.2)
            ready, told = os.pipe()
            start = time.perf_counter()
            options = ("--configure", "--disable-host-loopback", f"--ready-fd={told}", str(holder.pid), "tap0")
            command = [*self.world.inner.within, "slirp4netns", *options]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            with subprocess.Popen(command, pass_fds=(told,), **quiet) as process:
                os.close(told)
                os.read(ready, 1)
                took = (time.perf_counter() - start) * 1000
                inside = ("nsenter", f"--net=/proc/{holder.pid}/ns/net", sys.executable, "-c", _CLIENT, SERVER)
                figures = {
                    what: float(subprocess.run([*inside, what], capture_output=True, check=True).stdout)
                    for what in ("connect", "down", "up")
                }
                memory = private_memory(process.pid)
                process.terminate()
            os.close(ready)
            holder.terminate()
        self.table.add("slirp4netns, for one sandbox, until it is up", f"{took:.1f} ms")
        self.table.add("  connect, send a byte, get one, p50", f"{figures['connect']:.2f} ms")
        self.table.add("  receive 1 GiB", f"{figures['down']:,.0f} MiB/s")
        self.table.add("  send 1 GiB", f"{figures['up']:,.0f} MiB/s")
        self.table.add("  its memory, for each sandbox", f"{memory:,} KiB")

    def _measure_bridge(self) -> None:
        """Measures a container in the engine's bridge network, with a server at the engine's end; without names and
        rules."""
        engine = DockerEngine("172.30.99.1/24")
        try:
            engine.start()
            engine.import_rootfs(ROOT / "build" / "test-state" / "images" / "base" / "rootfs", "bench")
            times = {}
            for kind in ("none", "bridge"):
                run = ("run", "--rm", "--network", kind, "bench", "true")
                engine.docker(*run)
                times[kind] = statistics.median(_timed(lambda run=run: engine.docker(*run)) for _ in range(5))
            more = (times["bridge"] - times["none"]) * 1000
            self.table.add("Docker's bridge network, more for each container", f"{more:.0f} ms")
            inside_engine = ("nsenter", f"--net=/proc/{engine.pid}/ns/net")
            code = _SERVERS.replace(SERVER, "172.30.99.1")
            with subprocess.Popen([*inside_engine, sys.executable, "-c", code], stdout=subprocess.PIPE) as servers:
                assert servers.stdout is not None
                servers.stdout.readline()
                run = ("run", "--rm", "--network", "bridge", "bench", "python3", "-c", _CLIENT, "172.30.99.1")
                connect, down = (float(engine.docker(*run, what).stdout) for what in ("connect", "down"))
                servers.kill()
            self.table.add("  connect, send a byte, get one, p50", f"{connect:.2f} ms")
            self.table.add("  receive 1 GiB", f"{down:,.0f} MiB/s")
        finally:
            engine.close()

    async def destroy_all(self) -> None:
        for sandbox_id in await self.provider.list_ids():
            await self.provider.destroy(sandbox_id)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


async def _at_once(workers: int, count: int, work: Callable[[], Awaitable[None]]) -> None:
    left = iter(range(count))

    async def go_on() -> None:
        for _ in left:
            await work()

    await asyncio.gather(*(go_on() for _ in range(workers)))


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="sandboxes for the memory")
    parser.add_argument("parts", nargs="*", default=["switching", "carrying", "memory", "creating", "rivals"])
    arguments = parser.parse_args()
    this_run.join()
    table = Table()
    state = this_run.new_state_dir(ROOT / "build" / "test-state")
    with tempfile.TemporaryDirectory() as folder, NetworkWorld(Path(folder)) as world:
        world.names["bench.example"] = [SERVER]
        servers = world.run_outside(sys.executable, "-c", _SERVERS, stdout=subprocess.PIPE)
        egress = Egress(EgressPolicy(), within=world.within)
        provider = OciProvider(state, ImageStore(state), ROOT / "src" / "warren" / "bin", egress=egress)
        bench = Bench(world, provider, egress, table)
        try:
            assert servers.stdout is not None
            servers.stdout.readline()
            for part in arguments.parts:
                print(part, flush=True)
                done = getattr(bench, part)(*([arguments.count] if part == "memory" else []))
                if done is not None:
                    await done
        finally:
            await bench.destroy_all()
            await provider.close()
            servers.kill()
            servers.wait()
            shutil.rmtree(state, ignore_errors=True)
    this_run.end()
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
