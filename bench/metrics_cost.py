"""Measures what metrics cost: commands with /metrics on and off, in one run, in turns.

    sudo .venv/bin/python bench/metrics_cost.py
    sudo .venv/bin/python bench/metrics_cost.py --quick       a few rounds, to see whether it works

Two servers run at once, and one round of a second is measured on each in turn, so that a slow moment of the machine
affects both. In every fifteenth round of the server with metrics somebody reads them, as Prometheus does by default.
Absolute times depend on the machine; compare the ratios, which are medians over the rounds. CPU time is that of the
server's process, from /proc/PID/stat; a busy machine moves it less than it moves the rest.
"""

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop
from service_client import Client, RequestFailed, create, exec_message, message
from service_server import Server, percentile, serving
from table import Table

_ROUND_S = 1.0
_PARALLEL = 8
_SCRAPED_EVERY = 15  # rounds
_MOST = 1.02
_PAGE = message("GET", "/metrics")


@dataclass
class Side:
    """One of the two servers, with a session for each client."""

    server: Server
    clients: Sequence[Client]
    lines: Sequence[bytes]
    scraper: Client | None
    pages: list[float] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)

    async def round(self, clients: int) -> None:
        """Runs commands for a second by so many clients at once."""
        cpu, end, taken = self.server.cpu_s(), time.perf_counter() + _ROUND_S, list[float]()
        runners = zip(self.clients[:clients], self.lines[:clients], strict=True)
        work = [self._run(client, line, end, taken) for client, line in runners]
        if self.scraper is not None and len(self.figures.get("one: p50 ms", ())) % _SCRAPED_EVERY == 0:
            work.append(self._read_metrics(self.scraper))
        await asyncio.gather(*work)
        kind = "one" if clients == 1 else "many"
        self._add(f"{kind}: p50 ms", percentile(taken, 50) * 1000)
        self._add(f"{kind}: p95 ms", percentile(taken, 95) * 1000)
        self._add(f"{kind}: commands/s", len(taken) / _ROUND_S)
        self._add(f"{kind}: CPU ms", (self.server.cpu_s() - cpu) / len(taken) * 1000)

    async def _run(self, client: Client, line: bytes, end: float, taken: list[float]) -> None:
        while (start := time.perf_counter()) < end:
            if (response := await client.send(line)).status != 200:
                raise RequestFailed(response.body.decode(errors="replace"))
            taken.append(time.perf_counter() - start)

    async def _read_metrics(self, client: Client) -> None:
        start = time.perf_counter()
        if (response := await client.send(_PAGE)).status != 200:
            raise RequestFailed(response.body.decode(errors="replace"))
        self.pages.append(time.perf_counter() - start)

    def _add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)


async def prepared(server: Server, clients: Sequence[Client], *, scraped: bool) -> Side:
    runners = clients[:_PARALLEL]
    lines = [exec_message(await create(client), ["true"]) for client in runners]
    return Side(server, runners, lines, clients[_PARALLEL] if scraped else None)


def show(table: Table, on: Side, off: Side) -> None:
    for name, values in on.figures.items():
        others = off.figures[name]
        # Of each pair of neighbouring rounds: how much more with metrics.
        pairs = [theirs / ours if "/s" in name else ours / theirs for ours, theirs in zip(values, others, strict=True)]
        ratio = statistics.median(pairs)
        table.add(f"{name}, without metrics", f"{statistics.median(others):.3f}")
        judged = "p95" not in name
        target, met = (f"<= {_MOST - 1:.0%} more", ratio <= _MOST) if judged else ("", None)
        table.add(f"{name}, with metrics", f"{statistics.median(values):.3f} ({ratio - 1:+.1%})", target, met)


async def main(words: Sequence[str]) -> int:
    rounds = 3 if "--quick" in words else 30
    table = Table()
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for flag in ("--metrics", "--no-metrics"):
            server = stack.enter_context(serving(flag, "--pool-size", str(_PARALLEL)))
            clients = await stack.enter_async_context(server.clients(_PARALLEL + 1))
            sides.append(await prepared(server, clients, scraped=flag == "--metrics"))
        for number in range(-1, rounds):
            for side in sides if number % 2 else reversed(sides):
                for clients_at_once in (1, _PARALLEL):
                    await side.round(clients_at_once)
            if number < 0:  # to warm up
                for side in sides:
                    side.figures.clear()
        show(table, *sides)
        table.add("reading the metrics meanwhile, p50 ms", f"{percentile(sides[0].pages, 50) * 1000:.1f}")
    return 0


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main(sys.argv[1:])))
