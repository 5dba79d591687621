"""Measures how creates grow with the number of processes that make sandboxes, and commands with that of those that
serve.

    sudo .venv/bin/python bench/scaling.py                     0, 1, 2, 4, 8 and 16 makers
    sudo .venv/bin/python bench/scaling.py --makers 0,4 --count 200
    sudo .venv/bin/python bench/scaling.py --workers 1,2,4,8   `warren serve --workers N`

In each row of makers a provider of its own makes COUNT sandboxes, 64 asked for at once; all its makers run before.
`exec p99` is of the command `true` in another sandbox, quiet and meanwhile; `server` is the processor time of the
process that asks, for one create. In each row of workers a server has 200 sessions, each with a connection that runs
`true` again and again, from as many client processes as there are workers; `server` is the processor time of all its
processes for one command, without those of sandboxes; in rows with `direct` clients ask the workers themselves.
Absolute figures depend on the machine: compare the rows.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from service_server import IMAGES, ROOT, serving

from warren.measure.http_client import connect
from warren.measure.requests import commands

_MAKERS = (0, 1, 2, 4, 8, 16)
_SESSIONS, _SECONDS = 200, 5.0
_SERVED = f"{'workers':>9}  {'commands/s':>10}  {'p50':>8}  {'p99':>8}  {'server':>8}"
_HEAD = f"{'makers':>6}  {'creates/s':>9}  {'good':>6}  {'destroys/s':>10}  {'server':>8}  {'exec p99':>16}"


def measure(makers: int, count: int) -> dict[str, float]:
    state = Path(tempfile.mkdtemp(prefix="warren-bench-"))
    (state / "images").symlink_to(IMAGES)
    program = [sys.executable, str(ROOT / "bench" / "speed_sandboxes.py"), str(state), "wide", str(count)]
    try:
        done = subprocess.run(program, env={**os.environ, "MAKERS": str(makers)}, check=True, stdout=subprocess.PIPE)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures
    finally:
        shutil.rmtree(state, ignore_errors=True)


def serve(workers: int, *, direct: bool) -> str:
    """Runs a server and its clients, and returns the row."""
    program = [sys.executable, __file__, *(["--direct"] if direct else []), "--client"]
    flags = ("--workers", str(workers), "--pool-size", "0", "--environment", "host")
    with serving(*flags, WARREN_DIRECT_CLIENTS=str(direct).lower()) as server:
        clients = [
            subprocess.Popen([*program, str(server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(workers)
        ]
        share = _SESSIONS // workers
        for client in clients:
            print(share, file=client.stdin, flush=True)
        for client in clients:  # it has its sessions
            client.stdout.readline()
        before = _processor_s(server.process.pid)
        for client in clients:
            print("go", file=client.stdin, flush=True)
        found = [json.loads(client.communicate()[0]) for client in clients]
        spent = _processor_s(server.process.pid) - before
    taken = sorted(seconds for each in found for seconds in each)
    ms = [taken[len(taken) * percent // 100] * 1000 for percent in (50, 99)]
    rate, each = len(taken) / _SECONDS, spent / len(taken) * 1000
    row = f"{workers:>2} {'direct' if direct else '':>6}"
    return f"{row}  {rate:>10.0f}  {ms[0]:>5.1f} ms  {ms[1]:>5.1f} ms  {each:>5.2f} ms"


async def use(port: int, *, direct: bool) -> None:
    share = int(sys.stdin.readline())
    clients = await connect(port, share)
    sessions = await asyncio.gather(*(client.call("POST", "/api/sessions", {}) for client in clients))
    made = [str(session["session_id"]) for session in sessions]
    if direct:
        ports = [int(session["worker_url"].rpartition(":")[2]) for session in sessions]
        clients = [client for port in ports for client in await connect(port, 1)]
    print("ready", flush=True)
    sys.stdin.readline()
    _, taken = await commands(clients, made, _SECONDS)
    print(json.dumps(taken))


def _processor_s(pid: int) -> float:
    """What a process and its children that live have used, without those of sandboxes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(time.clock_gettime(~int(each) << 3 | 2) for each in (pid, *children) if _is_ours(int(each)))


def _is_ours(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):  # it ended meanwhile
        return any(word in Path(f"/proc/{pid}/cmdline").read_text() for word in ("warren.cli.main", "redis-server"))
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--makers", default=",".join(map(str, _MAKERS)), help="the rows of the table")
    parser.add_argument("--count", type=int, default=400, help="sandboxes of a row")
    parser.add_argument("--workers", help="the rows of a table of its own")
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--direct", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        uvloop.run(use(options.client, direct=options.direct))
        return
    if options.workers:
        print(_SERVED)
        for workers in map(int, options.workers.split(",")):
            for direct in (False, True) if workers > 1 else (False,):
                print(serve(workers, direct=direct), flush=True)
        return
    print(_HEAD)
    for makers in map(int, options.makers.split(",")):
        found = measure(makers, options.count)
        p99 = f"{found['exec p99']:.1f} / {found['exec p99 beside']:.1f} ms"
        print(
            f"{makers:>6}  {found['creates']:>9.0f}  {found['good']:>4.0f} %  {found['destroys']:>10.0f}  "
            f"{found['cpu']:>5.2f} ms  {p99:>16}",
            flush=True,
        )


if __name__ == "__main__":
    main()
