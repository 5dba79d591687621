"""Measures the CPU time that the server spends on a request, and how many commands it runs per second.

    sudo .venv/bin/python bench/server_cpu.py                        this checkout
    sudo .venv/bin/python bench/server_cpu.py --against DIRECTORY    beside another checkout of Warren, in turns

The server has keys, audit, quotas and its request log on. CPU time is that of the server's process alone, from
/proc/PID/stat: neither the sandboxes' nor the client's. A machine that does other work moves it less than it moves
wall time, but not by nothing: compare the columns.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import uvloop
from service_server import ROOT, Server, serving
from service_tenants import ADMIN, QUOTA, Tenant, new_tenant

from warren.measure.http_client import Client, exec_message, message

ROUNDS = 2
SESSIONS = 50


async def cpu_ms(server: Server, tenant: Tenant, line: bytes, count: int) -> float:
    """Returns the server's CPU time per request, over `count` requests."""
    before = server.cpu_s()
    for _ in range(count):
        await tenant.send(line)
    return (server.cpu_s() - before) / count * 1000


async def commands_per_s(tenants: list[Tenant], lines: list[bytes], seconds: float) -> float:
    done = 0
    end = time.perf_counter() + seconds

    async def run(tenant: Tenant, line: bytes) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await tenant.send(line)
            done += 1

    await asyncio.gather(*(run(tenant, line) for tenant, line in zip(tenants, lines, strict=True)))
    return done / seconds


async def measure(server: Server, clients: list[Client], figures: dict[str, list[float]], count: int) -> None:
    tenant = await new_tenant(clients[0], f"t{time.monotonic_ns()}", quota=QUOTA)
    session = await tenant.create()
    plain = {
        "GET /version, CPU ms": message("GET", "/version"),
        "exec of true, argv, CPU ms": exec_message(session, ["true"]),
        "flat /execute of true, CPU ms": message("POST", "/execute", {"session_id": session, "command": "true"}),
        "stat of a file, CPU ms": message("GET", f"/api/sessions/{session}/files/stat?path=/workspace"),
    }
    for name, line in plain.items():
        await cpu_ms(server, tenant, line, 20)
        figures.setdefault(name, []).append(await cpu_ms(server, tenant, line, count))
    before = server.cpu_s()
    for _ in range(count // 10):
        await tenant.delete(await tenant.create())
    figures.setdefault("create and delete, CPU ms", []).append((server.cpu_s() - before) / (count // 10) * 1000)
    tenants = [Tenant(client, tenant.key) for client in clients]
    lines = [exec_message(await each.create(), ["true"]) for each in tenants]
    await commands_per_s(tenants, lines, 0.5)
    rate = await commands_per_s(tenants, lines, 3.0)
    figures.setdefault(f"commands/s over {SESSIONS} sessions", []).append(rate)
    for line in lines:
        await tenant.delete(line.split(b"/")[3].decode())
    await tenant.delete(session)


async def run(against: Path | None, count: int) -> None:
    sources = {"this": ROOT / "src", **({"that": against / "src"} if against else {})}
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in sources}
    for _ in range(ROUNDS):
        for name, source in sources.items():
            flags = ("--pool-size", "5", "--log-level", "info")
            with serving(*flags, WARREN_API_KEY=ADMIN, PYTHONPATH=str(source)) as server:
                async with server.clients(SESSIONS) as clients:
                    await server.wait_for_pool(clients[0], 5)
                    await measure(server, clients, figures[name], count)
    for what in figures["this"]:
        columns = [f"{name} {statistics.median(figures[name][what]):8.2f}" for name in sources]
        if against:
            ratio = statistics.median(figures["this"][what]) / statistics.median(figures["that"][what])
            columns.append(f"x{ratio:.2f}")
        print(f"{what:36} {'   '.join(columns)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--count", type=int, default=400)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(given.against, given.count))
