"""The main figures of a machine, as `warren bench` prints them: what a caller of a server waits for, and how many it
can serve.

Everything is measured over HTTP, with a key and the audit record on, by a client that shares the machine's cores with
the server. Medians of some tens of requests, unless the figure is a rate.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.measure.http_client import Client, RequestFailed, cleanup, create, exec_message
from warren.measure.requests import cleanups, commands, create_cold, creates, first_output, time_requests
from warren.measure.server import MeasuredServer

POOL: Final = 5
_QUIET_S: Final = 0.2
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Figure:
    """`unit` is ms, /s or MiB. `of` is warren, or the name of another program that does the same."""

    what: str
    value: float
    unit: str
    of: str = "warren"


@dataclass(frozen=True, slots=True)
class Effort:
    """How often each thing is done."""

    requests: int = 40
    quiet: int = 12
    creates: int = 80
    sessions: int = 50
    seconds: float = 4.0
    idle: int = 200
    rival: int = 10


FULL: Final = Effort()
QUICK: Final = Effort(requests=8, quiet=4, creates=16, sessions=10, seconds=1.0, idle=60, rival=3)

Note = Callable[[Figure], None]


async def measure(server: MeasuredServer, effort: Effort, note: Note) -> list[str]:
    """Notes the figures as they are found; returns why others cannot be had. Raises RequestFailed."""
    async with server.clients(effort.sessions) as clients:
        await server.wait_for_pool(clients[0], POOL)
        await _measure_cold(clients, effort, note)
        await _measure_pool(server, clients[0], effort, note)
        await _measure_commands(clients, effort, note)
        return await _measure_memory(server, clients, effort, note)


async def _measure_cold(clients: list[Client], effort: Effort, note: Note) -> None:
    client, ended = clients[0], list[float]()
    await _time_cold(client, 2, 0.0)
    created, gone = await _time_cold(client, effort.requests, 0.0)
    note(Figure("create without a pool, to the end of a first command", _ms(created), "ms"))
    quiet, more = await _time_cold(client, effort.quiet, _QUIET_S)
    note(Figure("the same after a quiet moment", _ms(quiet), "ms"))
    ended += gone + more
    outcome, made = await creates(clients[:_AT_ONCE], effort.creates, create_cold)
    _check(outcome.failed)
    note(Figure(f"creates without a pool, {_AT_ONCE} at once", outcome.rate, "/s"))
    note(Figure("end of a session, until its sandbox is gone", _ms(ended), "ms"))
    outcome = await cleanups(clients[:_AT_ONCE], made)
    _check(outcome.failed)
    note(Figure(f"ends of sessions, {_AT_ONCE} at once", outcome.rate, "/s"))


async def _time_cold(client: Client, times: int, pause_s: float) -> tuple[list[float], list[float]]:
    """Returns how long creates with a first command took, and how long the ends."""
    created, ended = [], []
    for _ in range(times):
        await asyncio.sleep(pause_s)
        start = time.perf_counter()
        session_id = await create_cold(client)
        (await client.send(exec_message(session_id, ["true"]))).json()
        created.append(time.perf_counter() - start)
        start = time.perf_counter()
        await cleanup(client, session_id)
        ended.append(time.perf_counter() - start)
    return created, ended


async def _measure_pool(server: MeasuredServer, client: Client, effort: Effort, note: Note) -> None:
    created, first = list[float](), list[float]()
    for _ in range(effort.requests):
        await server.wait_for_pool(client, POOL)
        start = time.perf_counter()
        session_id = await create(client)
        created.append(time.perf_counter() - start)
        await cleanup(client, session_id)
    for _ in range(effort.requests):
        await server.wait_for_pool(client, POOL)
        seconds, session_id = await first_output(client)
        if seconds is None:
            raise RequestFailed("a first command did not print what it should")
        first.append(seconds)
        await cleanup(client, session_id)
    note(Figure("create from the pool", _ms(created), "ms"))
    note(Figure("create from the pool, to the first output of a shell line", _ms(first), "ms"))


async def _measure_commands(clients: list[Client], effort: Effort, note: Note) -> None:
    made = await asyncio.gather(*(create(client) for client in clients))
    argv, shell = exec_message(made[0], ["true"]), exec_message(made[0], "true")
    await time_requests(clients[0], argv, 20)
    note(Figure("a command (true)", _ms(await time_requests(clients[0], argv, 5 * effort.requests)), "ms"))
    note(Figure("a shell line (true)", _ms(await time_requests(clients[0], shell, 5 * effort.requests)), "ms"))
    rate, _ = await commands(clients, made, effort.seconds)
    note(Figure(f"commands over {len(made)} sessions at once", rate, "/s"))
    _check((await cleanups(clients, made)).failed)


async def _measure_memory(server: MeasuredServer, clients: list[Client], effort: Effort, note: Note) -> list[str]:
    await server.wait_for_pool(clients[0], POOL)
    before = _available_mb()
    outcome, made = await creates(clients[:_AT_ONCE], effort.idle)
    _check(outcome.failed)
    await server.wait_for_pool(clients[0], POOL)
    fall = before - _available_mb()
    _check((await cleanups(clients[:_AT_ONCE], made)).failed)
    if fall <= 0:
        return ["memory of an idle session: other programs gave up more memory than these sessions took"]
    note(Figure(f"memory of an idle session, mean of {len(made)}", fall / len(made), "MiB"))
    return []


def _ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1000


def _check(failed: list[str]) -> None:
    if failed:
        raise RequestFailed(f"{len(failed)} requests failed: {failed[0][:300]}")


def _available_mb() -> float:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) / 1024
