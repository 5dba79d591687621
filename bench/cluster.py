"""Measures a cluster: the hop over a coordinator, commands per second, the spread of sessions, placement.

    sudo .venv/bin/python bench/cluster.py                everything, some minutes
    sudo .venv/bin/python bench/cluster.py hop spread     only these parts, of: hop rate spread placement
    sudo .venv/bin/python bench/cluster.py --quick        small counts, to see whether it works

Redis, coordinators, workers and the client share the cores of this machine, so more workers do not make it faster: the
benchmark measures what the parts cost. The hop is the difference between a command sent to the worker itself and the
same command, in the same sandbox, sent through a coordinator. Each row ends with its target and whether this run met
it; a missed target is not an error.
"""

import asyncio
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cluster_placement
import uvloop
from cluster_processes import SECRET, Cluster
from redis_server import RedisServer
from sandboxes import Count, Table, run_parts
from service_server import IMAGES
from table import percentile

from warren.measure.http_client import Client, connect, message

_CALLER = '{"tenant":"default","key_id":"","scopes":["admin"]}'
_BURST = 50


@contextlib.contextmanager
def run_cluster(workers: int, coordinators: int, **environ: str) -> Iterator[Cluster]:
    root = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    states = [root / f"node-{number}" for number in range(workers + coordinators)]
    for state in states:
        state.mkdir()
        (state / "images").symlink_to(IMAGES)
    redis = RedisServer(root / "redis", "--appendonly", "yes")
    provider = environ.pop("provider", "oci")
    quiet = {"WARREN_LOG_LEVEL": "warning", "WARREN_ON_STOP": "destroy", "WARREN_STOP_GRACE_S": "1", **environ}
    cluster = Cluster(redis, states[:workers], states[workers:], provider=provider, **quiet)
    redis.start()
    try:
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        cluster.kill()
        redis.kill()
        shutil.rmtree(root, ignore_errors=True)


def direct_request(session_id: str, command: str) -> bytes:
    """Returns the request for a command as a coordinator sends it to the worker."""
    plain = message("POST", f"/api/sessions/{session_id}/exec", {"command": command})
    ours = f"x-warren-cluster: {SECRET}\r\nx-warren-protocol: 1\r\nx-warren-caller: {_CALLER}\r\n"
    return plain.replace(b"\r\n", b"\r\n" + ours.encode(), 1)


async def create_session(client: Client, **options: object) -> tuple[str, str]:
    found = await client.call("POST", "/api/sessions", options)
    return str(found["session_id"]), str(found["worker"])


async def hop_part(table: Table, count: Count) -> None:
    with run_cluster(1, 1, POOL_SIZE="1") as cluster:
        [worker], [coordinator] = cluster.workers.values(), cluster.coordinators
        [front], [back] = await connect(coordinator.port, 1), await connect(worker.port, 1)
        session_id, _ = await create_session(front)
        requests = {"hop": message("POST", f"/api/sessions/{session_id}/exec", {"command": "true"}),
                 "direct": direct_request(session_id, "true")}  # fmt: skip
        times: dict[str, list[float]] = {"hop": [], "direct": []}
        for _ in range(count(3000, 100)):
            for way, client in (("direct", back), ("hop", front)):
                began = time.perf_counter()
                (await client.send(requests[way])).json()
                times[way].append((time.perf_counter() - began) * 1000)
        medians = {way: statistics.median(values) for way, values in times.items()}
        p95 = {way: percentile(values, 95) for way, values in times.items()}
        table.add("exec sent to the worker, p50", f"{medians['direct']:.2f} ms")
        table.add("exec through a coordinator, p50", f"{medians['hop']:.2f} ms")
        added = medians["hop"] - medians["direct"]
        table.add("added by the hop, p50", f"{added:.2f} ms", "<= 1.5 ms", added <= 1.5)
        table.add("added by the hop, p95", f"{p95['hop'] - p95['direct']:.2f} ms")
        for client in (front, back):
            client.close()


async def rate_part(table: Table, count: Count) -> None:
    for workers in (1, 2, 3):
        for coordinators in (1, 2):
            with run_cluster(workers, coordinators, POOL_SIZE="2") as cluster:
                rate = await _rate(cluster, count(2000, 60))
            table.add(f"commands with {workers} workers and {coordinators} coordinators", f"{rate:.0f}/s")


async def _rate(cluster: Cluster, total: int) -> float:
    clients = [client for node in cluster.coordinators for client in await connect(node.port, 16 // len(cluster.urls))]
    sessions = [(await create_session(clients[0]))[0] for _ in range(6)]
    left = iter(range(total))

    async def use(client: Client, number: int) -> None:
        request = message("POST", f"/api/sessions/{sessions[number % len(sessions)]}/exec", {"command": "true"})
        for _ in left:
            (await client.send(request)).json()

    began = time.perf_counter()
    await asyncio.gather(*(use(client, number) for number, client in enumerate(clients)))
    rate = total / (time.perf_counter() - began)
    for client in clients:
        client.close()
    return rate


async def spread_part(table: Table, count: Count) -> None:
    """Measures the spread of sessions with the fake provider: placement does not need a thousand real sandboxes."""
    total = count(1000, 60)
    with run_cluster(3, 2, provider="fake", WARREN_MAX_SANDBOXES="1000") as cluster:
        clients = [client for node in cluster.coordinators for client in await connect(node.port, _BURST // 2)]
        left = iter(range(total))
        counts: Counter[str] = Counter()

        async def create(client: Client) -> None:
            for _ in left:
                counts[(await create_session(client))[1]] += 1

        began = time.perf_counter()
        await asyncio.gather(*map(create, clients))
        took = time.perf_counter() - began
        for client in clients:
            client.close()
    even = total / 3
    off = max(abs(number - even) / even for number in (counts[f"worker-{one}"] for one in (1, 2, 3)))
    made = sum(counts.values())
    table.add(f"{total} creates, {_BURST} at once: made", f"{made}", f"{total}", made == total)
    table.add("  a second", f"{total / took:.0f}/s")
    table.add("  the worker furthest from an even share", f"{off:.0%}", "<= 20%", off <= 0.2)


async def placement_part(table: Table, count: Count) -> None:
    cluster_placement.trials(table, count(cluster_placement.WORKERS, cluster_placement.WORKERS // 10))


PARTS = {"hop": hop_part, "rate": rate_part, "spread": spread_part, "placement": placement_part}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(run_parts(PARTS, sys.argv[1:])))
