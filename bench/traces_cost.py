"""Measures what traces cost: the server's CPU time for a command, its latency, and commands per second.

    sudo .venv/bin/python bench/traces_cost.py                       off, on, and on with one trace in a hundred
    sudo .venv/bin/python bench/traces_cost.py --against DIRECTORY   another checkout of Warren as well

It first measures the calls of kernel/tracing alone, then servers, which run side by side and get requests in turns, so
that other work on the machine affects all alike. The collector is in a process of its own, and decodes every span. CPU
time is that of the server's process, its threads included.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Empty
from typing import Any

import uvloop
from service_server import ROOT, Server, serving
from service_tenants import ADMIN, QUOTA, Tenant, new_tenant
from span_collector import collecting
from table import Table

from warren.kernel.tracing import OFF, Span, Tracing, traced
from warren.measure.http_client import Client, exec_message

ROUNDS = 40
COUNT = 50
SESSIONS = 20
CALLS = 50_000


@dataclass
class Measured:
    server: Server
    clients: list[Client]
    tenant: Tenant
    line: bytes
    cpu_ms: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    async def one_by_one(self) -> None:
        before, taken = self.server.cpu_s(), []
        for _ in range(COUNT):
            began = time.perf_counter()
            await self.tenant.send(self.line)
            taken.append((time.perf_counter() - began) * 1000)
        self.latency_ms.append(statistics.median(taken))
        self.cpu_ms.append((self.server.cpu_s() - before) / COUNT * 1000)

    async def all_at_once(self) -> None:
        done, end = 0, time.perf_counter() + 0.5

        async def run(client: Client) -> None:
            nonlocal done
            tenant = Tenant(client, self.tenant.key)
            while time.perf_counter() < end:
                await tenant.send(self.line)
                done += 1

        await asyncio.gather(*map(run, self.clients))
        self.rates.append(done / 0.5)


def collect(urls: "multiprocessing.Queue[str]", counts: "multiprocessing.Queue[int]", over: Event) -> None:
    with collecting() as collector:
        urls.put(collector.url)
        over.wait()
        counts.put(len(collector.spans))


@contextlib.contextmanager
def collector_process() -> Iterator[tuple[str, Any]]:
    """Yields the collector's address, and a function that ends it and returns how many spans it got."""
    context = multiprocessing.get_context("spawn")
    urls, counts, over = context.Queue(), context.Queue(), context.Event()
    process = context.Process(target=collect, args=(urls, counts, over), daemon=True)
    process.start()

    def end() -> int:
        over.set()
        with contextlib.suppress(Empty):
            return int(counts.get(timeout=10))
        return 0

    try:
        yield urls.get(timeout=30), end
    finally:
        over.set()
        process.join(10)
        if process.is_alive():
            process.kill()


class Dropped:
    def record(self, span: Span) -> None:
        pass


def measure_calls(table: Table) -> None:
    headers = [(b"host", b"localhost"), (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    on = Tracing(Dropped())

    def spans(tracing: Tracing, headers: list[tuple[bytes, bytes]]) -> Callable[[], None]:
        known = dict(headers)

        def run() -> None:
            with tracing.request(headers, known) as span, traced("exec", session="s", environment="e"):
                span.note(session="s", environment="e")

        return run

    for what, call in (
        ("off: request, command and a note", spans(OFF, headers[:1])),
        ("off, with the caller's trace", spans(OFF, headers)),
        ("on: two spans", spans(on, headers[:1])),
        ("on, with the caller's trace: two spans", spans(on, headers)),
    ):
        table.add(
            what, f"{min(timeit.repeat(call, timer=time.process_time, number=CALLS, repeat=5)) / CALLS * 1e6:.2f} µs"
        )


async def run(against: Path | None) -> None:
    table = Table()
    measure_calls(table)
    with collector_process() as (url, end_collector):
        kinds: dict[str, dict[str, str]] = {
            "off": {},
            "on": {"WARREN_OTLP_ENDPOINT": url},
            "1 in 100": {"WARREN_OTLP_ENDPOINT": url, "WARREN_TRACE_SAMPLE": "0.01"},
        }
        if against is not None:
            kinds["that"] = {"PYTHONPATH": str(against / "src")}
        async with contextlib.AsyncExitStack() as stack:
            measured = {}
            for name, environ in kinds.items():
                environ = {"PYTHONPATH": str(ROOT / "src"), "WARREN_API_KEY": ADMIN, **environ}
                server = stack.enter_context(serving("--pool-size", "2", "--pool-min", "0", **environ))
                clients = await stack.enter_async_context(server.clients(SESSIONS))
                tenant = await new_tenant(clients[0], f"t{time.monotonic_ns()}", quota=QUOTA)
                measured[name] = Measured(server, clients, tenant, exec_message(await tenant.create(), ["true"]))
            for number in range(ROUNDS + 1):
                for each in measured.values():
                    await each.one_by_one()
                    await each.all_at_once()
                    if number == 0:  # the first round only warms up
                        for figures in (each.cpu_ms, each.latency_ms, each.rates):
                            figures.clear()
        spans = end_collector()
    base = measured["off"]
    for name, each in measured.items():
        for what, unit, attribute in (
            ("CPU time of an exec of true", "ms", "cpu_ms"),
            ("latency of it (median of medians)", "ms", "latency_ms"),
            (f"commands/s over {SESSIONS} connections", "/s", "rates"),
        ):
            figure = statistics.median(getattr(each, attribute))
            ratio = figure / statistics.median(getattr(base, attribute))
            table.add(f"{name}: {what}", f"{figure:.3f} {unit}", f"x{ratio:.3f} of off")
    table.add("spans that the collector has got", str(spans))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(given.against))
