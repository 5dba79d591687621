"""Measures code contexts: how fast they start, what a cell costs over HTTP, and how much memory they use.

    sudo .venv/bin/python bench/contexts.py              about a minute
    sudo .venv/bin/python bench/contexts.py --quick      small counts, to see whether it works

For comparison it measures a Jupyter kernel (ipykernel, through jupyter_client) on the same machine, without any sandbox
or server in between; its packages are in build/code-venv, which is made if it is missing. Each row ends with its target
and whether this run met it; a missed target is not an error.
"""

import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from service_server import ROOT, Server, serving
from table import Table

_VENV = ROOT / "build" / "code-venv"
_CELL = "1+1"
_FIGURES = """
import base64
class Figure:
    def _repr_png_(self): return bytes(50_000)
for _ in range(50):
    display(Figure())
"""
_KERNEL = """
import json, statistics, sys, time
from jupyter_client.manager import start_new_kernel
began = time.perf_counter()
manager, client = start_new_kernel(kernel_name="python3")
started = time.perf_counter() - began
times = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    client.execute_interactive("1+1", output_hook=lambda message: None)
    times.append(time.perf_counter() - began)
status = open(f"/proc/{manager.provisioner.pid}/status").read()
memory = int(status.split("VmRSS:")[1].split()[0]) / 1024
client.stop_channels()
manager.shutdown_kernel(now=True)
print(json.dumps([started, times[0], statistics.median(times[1:]), memory]))
"""


class Http:
    """One connection. `ask` returns the response and how long it took."""

    def __init__(self, port: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[Any, float]:
        began = time.perf_counter()
        self._link.request(method, path, None if body is None else json.dumps(body))
        answer = self._link.getresponse()
        content = answer.read()
        took = time.perf_counter() - began
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return (json.loads(content) if content else None), took


def in_ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def main(words: list[str]) -> int:
    quick = "--quick" in words
    cells, starts, many = (30, 3, 10) if quick else (500, 10, 100)
    table = Table()
    print(f"\n{os.cpu_count()} cores, {os.uname().machine}, Linux {os.uname().release}")
    print("\ncode contexts over HTTP")
    flags = ("--pool-size", "2", "--cpus", "2", "--environment", "Python3", "--memory-limit", "4g")
    with serving(*flags, WARREN_MAX_CONTEXTS="256") as server:
        measure(table, server, cells, starts, many)
    print("\nipykernel through jupyter_client, without a sandbox")
    kernel(table, cells)
    print(f"\n{table.missed} targets missed")
    return 0


def measure(table: Table, server: Server, cells: int, starts: int, many: int) -> None:
    asking = Http(server.port)
    firsts = []
    for _ in range(starts):
        asyncio.run(_filled(server))
        session = asking.ask("POST", "/api/sessions", {})[0]["session_id"]
        firsts.append(asking.ask("POST", f"/api/sessions/{session}/code", {"code": _CELL})[1])
        asking.ask("DELETE", f"/api/sessions/{session}")
    first = statistics.median(firsts)
    table.add("first cell of a session from the pool, median", in_ms(first), "<= 10 ms", first <= 0.010)
    place = f"/api/sessions/{asking.ask('POST', '/api/sessions', {})[0]['session_id']}"

    def run(code: str, **more: Any) -> tuple[Any, float]:
        return asking.ask("POST", f"{place}/code", {"code": code, **more})

    run(_CELL)
    both: dict[str, list[float]] = {"cell": [], "exec": []}
    for _ in range(cells):  # in turns, so that a slow moment of the machine affects both
        both["cell"].append(run(_CELL)[1])
        both["exec"].append(asking.ask("POST", f"{place}/exec", {"command": ["true"]})[1])
    middle = statistics.median(both["cell"])
    table.add("cell 1+1, p50", in_ms(middle), "<= 3 ms", middle <= 0.003)
    table.add("cell 1+1, p95", in_ms(sorted(both["cell"])[int(cells * 0.95)]))
    table.add("beside it: exec true, p50", in_ms(statistics.median(both["exec"])))
    before = memory_of(asking, place)
    made = [asking.ask("POST", f"{place}/contexts", {}) for _ in range(many)]
    table.add("start of a context, median", in_ms(statistics.median(took for _, took in made)))
    grown = (memory_of(asking, place) - before) / many
    table.add(f"memory of a context, of {many}", f"{grown:.1f} MiB")
    for context, _ in made:
        asking.ask("DELETE", f"{place}/contexts/{context['id']}")
    text, took = run("print('x' * 10_000_000)")
    size = sum(map(len, text["logs"]["stdout"]))
    table.add("10 MB of text", in_ms(took), "complete", size == 10_000_001)
    figures, took = run(_FIGURES)
    table.add("50 figures of 50 kB", in_ms(took), "complete", len(figures["results"]) == 50)


async def _filled(server: Server) -> None:
    async with server.clients(1) as (client,):
        await server.wait_for_pool(client, 1)


def memory_of(asking: Http, place: str) -> float:
    """Returns the proportional memory of all processes of the sandbox's user, in MiB."""
    line = "cat /proc/[0-9]*/smaps_rollup 2>/dev/null | awk '/^Pss:/ {all += $2} END {print all / 1024}'"
    return float(asking.ask("POST", f"{place}/exec", {"command": line})[0]["stdout"])


def kernel(table: Table, cells: int) -> None:
    python = _VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(_VENV)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "ipykernel", "jupyter_client"], check=True)
    ran = subprocess.run([python, "-c", _KERNEL, str(cells)], capture_output=True, text=True, check=False)
    if ran.returncode:
        print(f"  it could not be measured: {ran.stderr.strip()[-300:]}")
        return
    started, first, middle, memory = json.loads(ran.stdout.splitlines()[-1])
    table.add("start of a kernel", in_ms(started))
    table.add("first cell", in_ms(first))
    table.add("cell 1+1, p50", in_ms(middle))
    table.add("memory of a kernel", f"{memory:.1f} MiB")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
