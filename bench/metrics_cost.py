"""Measures what metrics cost: commands with /metrics on and off, in one run, in turns.

    sudo .venv/bin/python bench/metrics_cost.py
    sudo .venv/bin/python bench/metrics_cost.py --quick       a few rounds, to see whether it works

Two servers run at once, and rounds of half a second are measured on each in turn (A B B A), so that a slow moment of
the machine affects both; that is done with several pairs of servers. Every 15 s of its rounds somebody reads the
metrics, as Prometheus does by default. Absolute times depend on the machine; compare the two. CPU time is that of the
server's process, from /proc/PID/stat: a machine that does other work moves it less than it moves the rest.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop
from service_server import Server, serving
from table import Table, percentile

from warren.measure.http_client import Client, RequestFailed, create, exec_message, message

_ROUND_S = 0.5
_SCRAPED_EVERY = 30  # rounds
_PARALLEL = 8
_MOST = 0.02
_PAGE = message("GET", "/metrics")
_FLAGS = _ON, _OFF = "--metrics", "--no-metrics"


@dataclass
class Measured:
    rounds: int = 0
    cpu_s: float = 0.0
    taken: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Returns the figures; for all of them lower is better."""
        return {
            "p50 ms": percentile(self.taken, 50) * 1000,
            "p95 ms": percentile(self.taken, 95) * 1000,
            "ms per command": self.rounds * _ROUND_S / len(self.taken) * 1000,
            "CPU ms per command": self.cpu_s / len(self.taken) * 1000,
        }


Measures = dict[int, Measured]
"""By number of concurrent clients."""


class Side:
    """One of the two servers, with a session for each client."""

    def __init__(
        self, server: Server, clients: Sequence[Client], lines: Sequence[bytes], pages: list[float] | None
    ) -> None:
        self._server, self._clients, self._lines, self._pages = server, clients, lines, pages

    async def round(self, at_once: int, measured: Measured) -> None:
        """Runs commands with `at_once` clients for the length of a round."""
        cpu, end = self._server.cpu_s(), time.perf_counter() + _ROUND_S
        runners = zip(self._clients[:at_once], self._lines, strict=False)
        work = [self._run(client, line, end, measured.taken) for client, line in runners]
        if self._pages is not None and measured.rounds % _SCRAPED_EVERY == 0:
            work.append(self._read_metrics(self._clients[-1], self._pages))
        await asyncio.gather(*work)
        measured.cpu_s += self._server.cpu_s() - cpu
        measured.rounds += 1

    async def _run(self, client: Client, line: bytes, end: float, taken: list[float]) -> None:
        while (start := time.perf_counter()) < end:
            await _ask(client, line)
            taken.append(time.perf_counter() - start)

    async def _read_metrics(self, client: Client, pages: list[float]) -> None:
        start = time.perf_counter()
        await _ask(client, _PAGE)
        pages.append(time.perf_counter() - start)


async def _ask(client: Client, line: bytes) -> None:
    if (response := await client.send(line)).status != 200:
        raise RequestFailed(response.body.decode(errors="replace"))


def show(table: Table, measured: dict[str, Measures], pages: Sequence[float]) -> None:
    for at_once, on in measured[_ON].items():
        without = measured[_OFF][at_once].figures()
        for name, value in on.figures().items():
            more = value / without[name] - 1
            target, met = ("", None) if name.startswith("p95") else (f"<= {_MOST:+.0%}", more <= _MOST)
            figure = f"{value:.3f}, {without[name]:.3f} ({more:+.1%})"
            table.add(f"{at_once} at once: {name} with metrics, and without", figure, target, met)
    table.add("reading the metrics meanwhile, p50 ms", f"{percentile(pages, 50) * 1000:.1f}")


async def main(words: Sequence[str]) -> int:
    pairs, rounds = (1, 4) if "--quick" in words else (6, 30)
    measured: dict[str, Measures] = {flag: {} for flag in _FLAGS}
    pages: list[float] = []
    for number in range(pairs):
        await measure(rounds, measured, pages, _FLAGS if number % 2 else _FLAGS[::-1])
    show(Table(), measured, pages)
    return 0


async def measure(rounds: int, measured: dict[str, Measures], pages: list[float], flags: Sequence[str]) -> None:
    """Measures rounds on a pair of servers. Even two processes of the same program differ by some percent."""
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for flag in flags:
            server = stack.enter_context(serving(flag, "--pool-size", str(_PARALLEL)))
            clients = await stack.enter_async_context(server.clients(_PARALLEL + 1))
            lines = [exec_message(await create(client), ["true"]) for client in clients[:_PARALLEL]]
            sides.append(Side(server, clients, lines, pages if flag == _ON else None))
        for side in sides:
            await side.round(_PARALLEL, Measured())  # warms the server up
        for number in range(rounds):
            for flag, side in [*zip(flags, sides, strict=True)][:: 1 if number % 2 else -1]:
                for at_once in (1, _PARALLEL):
                    await side.round(at_once, measured[flag].setdefault(at_once, Measured()))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main(sys.argv[1:])))
