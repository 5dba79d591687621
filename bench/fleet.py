"""Measures a fleet: many real worker processes, three coordinators and a real Redis on this machine.

    sudo .venv/bin/python bench/fleet.py                  10, 30 and 100 workers; 20,000 sessions on the last
    sudo .venv/bin/python bench/fleet.py --workers 10 --sessions 500

The workers have the provider `fake`, whose sandboxes are in their memory: what is measured is the cluster. `quiet` is
what heartbeats and rosters cost while nobody asks for anything, of one core; `exec` and `create` what one request
costs: how many commands it runs in Redis, and the processor time of the coordinators. None of it may grow with the
number of workers, apart from what each worker costs by itself. Then, with as many sessions as were asked for, a worker
is killed, and all coordinators and workers are restarted, five workers at a time, while others work. A worker that is
restarted has lost its sandboxes of this kind: what counts is that each session that was acknowledged is known, as
running or as lost.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import uvloop
from service_server import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from cluster_processes import Cluster
from redis_server import RedisServer
from server_process import ServerProcess

from warren.measure.http_client import Client, RequestFailed, connect, message

_COORDINATORS, _AT_ONCE, _RESTARTED_AT_ONCE, _QUIET_S, _PATIENCE_S = 3, 60, 5, 10.0, 60.0
_AGAIN = frozenset({502, 503})
_HEAD = (
    f"{'workers':>7}  {'up':>5}  {'quiet: Redis':>14}  {'Redis':>6}  {'coordinators':>12}  {'a worker':>8}  "
    f"{'exec: Redis':>11}  {'time':>7}  {'create: Redis':>13}  {'time':>7}"
)


class Fleet:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.redis = cluster.redis

    def commands(self) -> int:
        """How many commands Redis has run; those in scripts do not count."""
        return int(self.redis.ask("INFO", "stats")["total_commands_processed"])

    def memory_mb(self) -> float:
        return float(self.redis.ask("INFO", "memory")["used_memory"]) / 1e6

    def spent(self) -> dict[str, float]:
        of = {"coordinators": self.cluster.coordinators, "workers": [*self.cluster.workers.values()]}
        found = {name: sum(_processor_s(process.pid) for process in processes) for name, processes in of.items()}
        return {**found, "redis": _processor_s(self.redis.pid)}

    async def clients(self, count: int) -> list[Client]:
        nodes = self.cluster.coordinators
        return [client for node in nodes for client in await connect(node.port, max(1, count // len(nodes)))]


def _processor_s(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)


@contextlib.contextmanager
def running(workers: int) -> Iterator[Fleet]:
    root = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    states = [root / f"node-{number}" for number in range(workers + _COORDINATORS)]
    for state in states:
        state.mkdir()
    redis = RedisServer(root / "redis", "--appendonly", "yes", "--maxclients", "20000")
    environ = {"WARREN_LOG_LEVEL": "warning", "WARREN_STOP_GRACE_S": "1", "WARREN_MAX_SANDBOXES": "4000"}
    environ |= {"WARREN_IDLE_TIMEOUT_S": "1h", "POOL_SIZE": "1"}
    cluster = Cluster(redis, states[:workers], states[workers:], provider="fake", **environ)
    redis.start()
    try:
        cluster.start()
        yield Fleet(cluster)
    finally:
        cluster.kill()
        redis.kill()
        shutil.rmtree(root, ignore_errors=True)


async def cost(
    fleet: Fleet, clients: list[Client], requests: Callable[[int], bytes], count: int, quiet: float
) -> tuple[float, float]:
    """The commands in Redis, without `quiet` in a second, and the processor time of coordinators for one request."""
    left, before, commands, began = iter(range(count)), fleet.spent(), fleet.commands(), time.monotonic()

    async def loop(client: Client) -> None:
        for number in left:
            (await client.send(requests(number))).json()

    await asyncio.gather(*map(loop, clients))
    after, took = fleet.spent(), time.monotonic() - began
    return (fleet.commands() - commands - quiet * took) / count, (
        after["coordinators"] - before["coordinators"]
    ) / count * 1000


async def grow(fleet: Fleet, up_s: float) -> str:
    workers = len(fleet.cluster.workers)
    await asyncio.sleep(5)
    before, commands = fleet.spent(), fleet.commands()
    await asyncio.sleep(_QUIET_S)
    quiet = {name: (spent - before[name]) / _QUIET_S * 100 for name, spent in fleet.spent().items()}
    rate = (fleet.commands() - commands) / _QUIET_S
    clients = await fleet.clients(12)
    made = [json.loads((await clients[0].send(message("POST", "/api/sessions", {}))).body) for _ in range(12)]
    paths = [f"/api/sessions/{each['session_id']}/exec" for each in made]
    true = [message("POST", path, {"command": "true"}) for path in paths]
    ran = await cost(fleet, clients, lambda number: true[number % len(true)], 2000, rate)
    # Each coordinator is to have a connection to each worker: making these is no part of a create.
    await cost(fleet, clients, lambda _: message("POST", "/api/sessions", {}), 15 * workers, rate)
    created = await cost(fleet, clients, lambda _: message("POST", "/api/sessions", {}), 600, rate)
    for client in clients:
        client.close()
    return (
        f"{workers:>7}  {up_s:>3.0f} s  {rate:>8.0f} cmd/s  {quiet['redis']:>4.1f} %  {quiet['coordinators']:>10.1f} %"
        f"  {quiet['workers'] / workers:>6.2f} %  {ran[0]:>11.2f}  {ran[1]:>4.2f} ms  {created[0]:>13.2f}  "
        f"{created[1]:>4.2f} ms"
    )


# -- the life of a fleet


async def ask(client: Client, method: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
    """Asks again, as clients do, while the answer says so."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        response = await client.send(message(method, path, body))
        if response.status not in _AGAIN or time.monotonic() > until:
            return response.status, json.loads(response.body or b"{}")
        await asyncio.sleep(0.5)


class Life:
    """`made` are the acknowledged sessions, each with its worker; `wrong` what must not be."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.made: dict[str, str] = {}
        self.wrong: list[str] = []

    async def fill(self, count: int) -> None:
        clients, left, began = await self._fleet.clients(_AT_ONCE), iter(range(count)), time.monotonic()
        failed = Counter[int]()

        async def create(client: Client) -> None:
            for _ in left:
                status, found = await ask(client, "POST", "/api/sessions", {})
                if status == 201:
                    self.made[str(found["session_id"])] = str(found["worker"])
                else:
                    failed[status] += 1

        await asyncio.gather(*map(create, clients))
        took = time.monotonic() - began
        for client in clients:
            client.close()
        shares, even = Counter(self.made.values()), len(self.made) / len(self._fleet.cluster.workers)
        furthest = max(abs(shares[name] - even) / even for name in self._fleet.cluster.workers)
        rate = len(self.made) / took
        print(f"  {len(self.made)} of {count} sessions made, {rate:.0f} a second; refused: {dict(failed)}")
        print(f"  the worker furthest from an even share: {furthest:.0%}; Redis has {self._fleet.memory_mb():.0f} MB")

    async def death(self) -> None:
        name = random.choice([*self._fleet.cluster.workers])
        its = [session for session, worker in self.made.items() if worker == name]
        [client] = (await self._fleet.clients(1))[:1]
        self._fleet.cluster.workers[name].kill()
        began, left = time.monotonic(), set(its)
        while left and time.monotonic() - began < 120:
            for session in [*left]:
                _, found = await ask(client, "GET", f"/api/sessions/{session}")
                if found.get("state") == "lost":
                    left.discard(session)
            await asyncio.sleep(0.1)
        print(f"  a worker with {len(its)} sessions dies: all told as lost after {time.monotonic() - began:.1f} s")
        if left:
            self.wrong.append(f"{len(left)} sessions of a dead worker are not told as lost")
        process = self._fleet.cluster.workers[name]
        process.start()

    async def restart_all(self) -> None:
        """Restarts every process while clients work; each of them says what it was told."""
        is_over, done = asyncio.Event(), Counter[str]()
        works = [asyncio.create_task(self._work(is_over, done, number)) for number in range(12)]
        began, left = time.monotonic(), iter(self._fleet.cluster.workers.values())
        while some := list(islice(left, _RESTARTED_AT_ONCE)):
            await asyncio.gather(*(asyncio.to_thread(_restart, process) for process in some))
        for process in self._fleet.cluster.coordinators:
            await asyncio.to_thread(_restart, process)
        is_over.set()
        await asyncio.gather(*works)
        print(f"  all restarted in {time.monotonic() - began:.0f} s; meanwhile: {dict(done)}")

    async def _work(self, is_over: asyncio.Event, done: Counter[str], number: int) -> None:
        nodes = self._fleet.cluster.coordinators
        client: Client | None = None
        while not is_over.is_set():
            try:
                if client is None:
                    [client] = await connect(nodes[(number := number + 1) % len(nodes)].port, 1)
                status, found = await ask(client, "POST", "/api/sessions", {})
                if status != 201:
                    done[f"create {status}"] += 1
                    continue
                session = str(found["session_id"])
                self.made[session] = str(found["worker"])
                status, found = await ask(client, "POST", f"/api/sessions/{session}/exec", {"command": "true"})
                done["work done" if status == 200 else f"exec {status}: {found.get('code')}"] += 1
                if status == 404:
                    self.wrong.append(f"an acknowledged session is not known: {session}")
                await asyncio.sleep(0.05)
            except (RequestFailed, OSError):  # its coordinator has gone: another one goes on
                client = None
                await asyncio.sleep(0.05)

    async def look(self) -> None:
        states, [client] = Counter[str](), (await self._fleet.clients(1))[:1]
        for session in self.made:
            status, found = await ask(client, "GET", f"/api/sessions/{session}")
            states[str(found.get("state") if status == 200 else status)] += 1
        print(f"  what the {len(self.made)} acknowledged sessions are: {dict(states)}")
        self.wrong += [
            f"{states[each]} sessions: {each}" for each in states if each not in ("running", "lost", "ended")
        ]


def _restart(process: ServerProcess) -> None:
    process.send(signal.SIGTERM)
    process.wait_for_end()
    process.start()


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="10,30,100", help="the rows of the table")
    parser.add_argument("--sessions", type=int, default=20_000, help="how many the last of them get; 0: none")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    print(_HEAD)
    wrong = list[str]()
    sizes = [int(each) for each in options.workers.split(",")]
    for workers in sizes:
        began = time.monotonic()
        with running(workers) as fleet:
            print(await grow(fleet, time.monotonic() - began), flush=True)
            if workers == sizes[-1] and options.sessions:
                life = Life(fleet)
                await life.fill(options.sessions)
                await life.death()
                await life.restart_all()
                await life.look()
                wrong = life.wrong
    for each in wrong:
        print(f"  WRONG: {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main()))
