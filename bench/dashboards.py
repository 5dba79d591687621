"""Measures what open dashboards cost the server: the share of a core, beyond that of the same server without them.

    sudo .venv/bin/python bench/dashboards.py            100 dashboards, 20 sessions
    sudo .venv/bin/python bench/dashboards.py --quick    small counts, to see whether it works

A simulated dashboard does what the page does: it follows /api/events, asks every 10 s for the metrics of the sessions
that it shows, and lists the sessions again after events, at most every 5 s. "Quiet" means that nothing happens to
sessions; "busy" that one is created or ended each second. CPU time is that of the server's process alone.
"""

import argparse
import asyncio
import sys
import time

import uvloop
from service_server import Server, serving
from table import Table

from warren.measure.http_client import Client, connect, message

FIGURES_S = 10.0
RELOAD_S = 5.0
MAX_PERCENT = 5.0


class Dashboard:
    """One open page."""

    def __init__(self, port: int, client: Client, sessions: list[str]) -> None:
        self._port, self._client = port, client
        self._figures = message("GET", f"/api/metrics?session_ids={','.join(sessions)}")
        self._list = message("GET", "/api/sessions?limit=100")
        self._busy = asyncio.Lock()
        self.events = 0

    async def run(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._repeat(self._figures, FIGURES_S))
            tasks.create_task(self._reload())

    async def _ask(self, request: bytes) -> None:
        async with self._busy:
            await self._client.send(request)

    async def _repeat(self, request: bytes, every_s: float) -> None:
        while True:
            await self._ask(request)
            await asyncio.sleep(every_s)

    async def _reload(self) -> None:
        seen = 0
        while True:
            await asyncio.sleep(RELOAD_S)
            if self.events != seen:
                seen = self.events
                await self._ask(self._list)

    async def _follow(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async for line in reader:
                self.events += line.startswith(b"event: session.")
        finally:
            writer.close()


async def used_percent(server: Server, seconds: float, work: Client | None) -> float:
    """Returns the share of a core that the server used; with `work` a session is created or ended each second."""
    before, began, made = server.cpu_s(), time.perf_counter(), ""
    while (left := began + seconds - time.perf_counter()) > 0:
        if work is not None and made:
            await work.call("DELETE", f"/api/sessions/{made}")
            made = ""
        elif work is not None:
            made = (await work.call("POST", "/api/sessions", {}))["session_id"]
        await asyncio.sleep(min(1.0, left))
    percent = (server.cpu_s() - before) / (time.perf_counter() - began) * 100
    if work is not None and made:
        await work.call("DELETE", f"/api/sessions/{made}")
    return percent


async def measure(server: Server, count: int, sessions: int, seconds: float, table: Table) -> None:
    (work,) = await connect(server.port, 1)
    made = [(await work.call("POST", "/api/sessions", {}))["session_id"] for _ in range(sessions)]
    clients = await connect(server.port, count)
    alone = {name: await used_percent(server, seconds, who) for name, who in (("quiet", None), ("busy", work))}
    pages = [Dashboard(server.port, client, made) for client in clients]
    tasks = [asyncio.create_task(page.run(at * FIGURES_S / count)) for at, page in enumerate(pages)]
    await asyncio.sleep(FIGURES_S)
    for name, who in (("quiet", None), ("busy", work)):
        percent = await used_percent(server, seconds, who)
        more = percent - alone[name]
        what = f"{count} dashboards, {sessions} sessions, {name}: beyond {alone[name]:.1f} % without"
        table.add(what, f"{more:.1f} % of a core", f"<= {MAX_PERCENT:.0f} %", more <= MAX_PERCENT)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in (work, *clients):
        client.close()


async def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(arguments).quick
    table = Table()
    with serving("--pool-size", "2", WARREN_AUTH="false") as server:
        await measure(server, *((10, 3, 5.0) if quick else (100, 20, 30.0)), table)
    return 0


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main(sys.argv[1:])))
