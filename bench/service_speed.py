"""Parts of bench/service.py about single requests: create, exec, first output, and how many of them per second."""

import asyncio
import time

from bursts import burst, gather_and_clean_up
from sandboxes import Count, Table
from service_rivals import Rival, rivals
from service_server import Server, serving
from table import percentile

from warren.measure.http_client import Client, cleanup, create, exec_message
from warren.measure.requests import commands, first_output, time_requests

_THINK_S = 0.15  # pause between two creates, in which a pool of five refills
_STAGGER_S = 0.2


def in_ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.02 else f"{seconds * 1000:.0f} ms"


# -- create


async def create_part(table: Table, count: Count) -> None:
    with serving() as server:
        async with server.clients(1) as [client]:
            await server.wait_for_pool(client, 5)
            taken: list[float] = []
            ended: list[float] = []
            for _ in range(count(200, 20)):
                start = time.perf_counter()
                session_id = await create(client)
                taken.append(time.perf_counter() - start)
                start = time.perf_counter()
                await cleanup(client, session_id)
                ended.append(time.perf_counter() - start)
                await asyncio.sleep(_THINK_S)
            pools = (await client.call("GET", "/api/stats"))["workers"]["local"]["pools"]["base"]
    p50 = percentile(taken, 50)
    table.add("create from the pool over HTTP, p50", in_ms(p50), "<= 5 ms", p50 <= 0.005)
    table.add("create from the pool over HTTP, p95", in_ms(percentile(taken, 95)))
    table.add("hit rate of the pool (size 5)", f"{pools['hit_rate']:.0%}")
    table.add("cleanup, waits until the sandbox is gone, p50", in_ms(percentile(ended, 50)))


# -- exec


async def exec_part(table: Table, count: Count) -> None:
    with serving() as server, rivals() as others:
        async with server.clients(1) as [client]:
            session_id = await create(client)
            argv, shell = exec_message(session_id, ["true"]), exec_message(session_id, "true")
            await time_requests(client, argv, 50)
            ours: list[float] = []
            lines: list[float] = []
            theirs: dict[str, list[float]] = {rival.name: [] for rival in others}
            for _ in range(count(10, 2)):  # in turns, so that a slow moment of the machine affects all
                ours += await time_requests(client, argv, 30)
                lines += await time_requests(client, shell, 30)
                for rival in others:
                    theirs[rival.name] += rival.batch(5)
    p50 = percentile(ours, 50)
    table.add("exec of true (argv) over HTTP, kept alive, p50", in_ms(p50), "<= 2.5 ms", p50 <= 0.0025)
    table.add("exec of true (argv), p95", in_ms(percentile(ours, 95)))
    table.add("exec of true (bash line, state carried), p50", in_ms(percentile(lines, 50)))
    table.add("exec of true (bash line, state carried), p95", in_ms(percentile(lines, 95)))
    for rival in others:
        show_rival(table, rival, theirs[rival.name], p50 if rival.bare else percentile(lines, 50))


def show_rival(table: Table, rival: Rival, times: list[float], ours: float) -> None:
    if rival.problem:
        table.add(f"{rival.name}: cannot run here", "-")
        print(f"      {rival.problem}")
        return
    p50 = percentile(times, 50)
    table.add(f"{rival.name}, p50", in_ms(p50))
    table.add(f"{rival.name}, p95", in_ms(percentile(times, 95)))
    table.add(f"times faster than {rival.name}", f"{p50 / ours:.1f} x")


# -- from create to first output


async def first_part(table: Table, count: Count) -> None:
    with serving() as server:
        async with server.clients(count(100, 30)) as clients:
            await server.wait_for_pool(clients[0], 5)
            await show_first(table, "one after another (pool 5)", await in_sequence(clients[0], count(100, 10)), 0.020)
            await server.wait_for_pool(clients[0], 5)
            await show_first(table, "one every 200 ms (pool 5)", await staggered(clients), None)
            for _ in range(3):  # each burst raises the pool's target, up to its maximum
                ready = await wait_until_stable(server, clients[0])
                times = await burst(clients)
                await show_first(table, f"{len(clients)} at once (pool max 20, {ready} ready)", times, 0.351)
    size = str(count(100, 30))
    with serving("--pool-size", size, "--pool-max", size) as server:
        async with server.clients(int(size)) as clients:
            ready = await server.wait_for_pool(clients[0], int(size))
            await show_first(table, f"{size} at once (pool {size}, {ready} ready)", await burst(clients), 0.351)


async def wait_until_stable(server: Server, client: Client) -> int:
    """Waits until the pool stops growing, and returns how many sandboxes are ready."""
    ready = -1
    while (now := await server.pool(client)) > ready:
        ready = now
        await asyncio.sleep(1.0)
    return now


async def in_sequence(client: Client, times: int) -> list[float | None]:
    taken = []
    for _ in range(times):
        seconds, session_id = await first_output(client)
        taken.append(seconds)
        await cleanup(client, session_id)
        await asyncio.sleep(_THINK_S)
    return taken


async def staggered(clients: list[Client]) -> list[float | None]:
    async def after(delay_s: float, client: Client) -> tuple[float | None, str]:
        await asyncio.sleep(delay_s)
        return await first_output(client)

    return await gather_and_clean_up(clients, [after(i * _STAGGER_S, client) for i, client in enumerate(clients)])


async def show_first(table: Table, how: str, taken: list[float | None], target_s: float | None) -> None:
    good = [seconds for seconds in taken if seconds is not None]
    p50, p95, p99 = (percentile(good, percent) for percent in (50, 95, 99))
    target = "" if target_s is None else f"<= {target_s * 1000:.0f} ms"
    table.add(f"create to first output, {how}, p50", in_ms(p50), target, None if target_s is None else p50 <= target_s)
    table.add("    p95 / p99", f"{p95 * 1000:.0f} / {p99 * 1000:.0f} ms")
    table.add("    success", f"{len(good) / len(taken):.0%}", "100 %", len(good) == len(taken))


# -- commands per second


async def rate_part(table: Table, count: Count) -> None:
    sessions, seconds = 50, count(8, 2)
    with serving("--pool-size", "20") as server:
        async with server.clients(sessions) as clients:
            await server.wait_for_pool(clients[0], 20)
            made = await asyncio.gather(*(create(client) for client in clients))
            rate, taken = await commands(clients, made, seconds)
            await asyncio.gather(*(cleanup(*pair) for pair in zip(clients, made, strict=True)))
    table.add(f"exec of true per second, {sessions} sessions at once", f"{rate:.0f}/s", ">= 1000/s", rate >= 1000)
    table.add("    p50 / p95 of each", f"{percentile(taken, 50) * 1000:.0f} / {percentile(taken, 95) * 1000:.0f} ms")
