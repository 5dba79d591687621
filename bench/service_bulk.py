"""Parts of bench/service.py about volume: large files, a thousand creates, five thousand idle sessions."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from sandboxes import Count, Table, meminfo, settle
from service_bare import bare_rate
from service_server import Server, serving
from service_speed import in_ms
from table import mean, percentile

from warren.measure.http_client import Client, RequestFailed, cleanup, create, exec_message
from warren.measure.requests import Outcome, cleanups, creates, repeat, time_requests

MIB = 1024 * 1024
_PARALLEL = 50


async def _make_and_end(client: Client) -> None:
    await cleanup(client, await create(client))


# -- files


async def files_part(table: Table, count: Count) -> None:
    size_mb = count(100, 20)
    with serving() as server, tempfile.NamedTemporaryFile(prefix="warren-bench-", dir="/dev/shm") as file:
        file.write(os.urandom(MIB) * size_mb)
        file.flush()
        async with server.clients(1) as [client]:
            for cpus, counts in ((2.0, True), (0.5, False)):
                made = await client.call("POST", "/api/sessions", {"limits": {"cpus": cpus}})
                name, data = str(made["session_id"]), Path(file.name)
                figures = [await asyncio.to_thread(measure_transfer, server, name, data) for _ in range(5)]
                plain = max([await asyncio.to_thread(measure_copy, data) for _ in range(5)])
                await cleanup(client, made["session_id"])
                show_files(table, size_mb, cpus, figures, counts)
                if counts:
                    show_copies(table, figures, plain)


class Transfer(NamedTuple):
    up: float
    down: float
    growth_mb: float


def measure_transfer(server: Server, session_id: str, data: Path) -> Transfer:
    """Returns MiB/s up and down, and the largest growth of the server's memory. The client is curl."""
    url = f"http://127.0.0.1:{server.port}/api/sessions/{session_id}/files/content?path=big"
    before, size_mb = server.memory_mb(), data.stat().st_size / MIB
    server.forget_peak()
    up = _curl(url, "--upload-file", str(data), "--header", "Expect:")
    down = _curl(url)
    growth = server.memory_mb("VmHWM") - before
    same = subprocess.run(["bash", "-c", 'curl -sS "$0" | cmp - "$1"', url, str(data)], capture_output=True, text=True)
    if same.returncode:
        raise RequestFailed(f"the download differs from the upload: {same.stdout}{same.stderr}")
    return Transfer(size_mb / up, size_mb / down, growth)


_COPY: Final = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    part = bytearray(1 << 18)
    with connection, open(sys.argv[1], "wb", buffering=0) as file:
        while size := connection.recv_into(part):
            file.write(memoryview(part)[:size])
        connection.sendall(b"x")
"""


def measure_copy(data: Path) -> float:
    """Returns MiB/s of a plain copy over the same loopback: one process sends the file, another one writes it."""
    with tempfile.NamedTemporaryFile(prefix="warren-bench-", dir="/var/tmp") as target:
        argv = [sys.executable, "-c", _COPY, target.name]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as receiver, data.open("rb") as source:
            assert receiver.stdout is not None
            port = int(receiver.stdout.readline())
            start = time.perf_counter()
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendfile(source)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
            took = time.perf_counter() - start
    return data.stat().st_size / MIB / took


def show_copies(table: Table, figures: list[Transfer], plain: float) -> None:
    table.add("    a plain copy over loopback", f"{plain:.0f} MiB/s")
    for what, best in (("up", max(one.up for one in figures)), ("down", max(one.down for one in figures))):
        table.add(f"    {what}, of a plain copy", f"{best / plain:.0%}", ">= 80 %", best / plain >= 0.8)


def _curl(url: str, *flags: str) -> float:
    """Returns how many seconds curl took."""
    argv = ["curl", "-sS", "--fail", "--output", "/dev/null", "--write-out", "%{time_total}", *flags, url]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def show_files(table: Table, size_mb: int, cpus: float, figures: list[Transfer], counts: bool) -> None:
    up, down = max(one.up for one in figures), max(one.down for one in figures)
    growth = max(one.growth_mb for one in figures)
    what, target = f"{size_mb} MiB file, sandbox with {cpus:g} cores", ">= 200" if counts else ""
    table.add(f"{what}, up", f"{up:.0f} MiB/s", target, up >= 200 if counts else None)
    table.add(f"{what}, down", f"{down:.0f} MiB/s", target, down >= 200 if counts else None)
    table.add("    growth of the server's memory at the most", f"{growth:.1f} MiB", "<= 20", growth <= 20)


# -- many


async def many_part(table: Table, count: Count) -> None:
    total = count(1000, 100)
    runtime, before = await bare_rate(_PARALLEL, total // _PARALLEL)
    with serving("--pool-size", "20") as server:
        async with server.clients(_PARALLEL) as clients:
            await server.wait_for_pool(clients[0], 20)
            both = await repeat(clients, total, _make_and_end)
            await server.wait_for_pool(clients[0], 20)
            alone, made = await creates(clients, total)
            ended = await cleanups(clients, made)
        left = await count_leftovers(server)
    _, after = await bare_rate(_PARALLEL, total // _PARALLEL)
    bare = (before + after) / 2  # measured before and after, because the machine may have slow moments
    table.add(
        f"bare {runtime} run, {_PARALLEL} loops at once (before {before:.0f}, after {after:.0f})", f"{bare:.0f}/s"
    )
    show_rate(table, f"{total} times create and cleanup, {_PARALLEL} at once, pool of 20", both, bare)
    show_rate(table, f"{total} creates, {_PARALLEL} at once, pool of 20", alone, bare)
    table.add("    cleanups", f"{ended.rate:.0f}/s", "all good", not ended.failed)
    table.add("    sandboxes left beside the pool", str(left), "0", left == 0)
    await prefilled_pool(table, total)


async def prefilled_pool(table: Table, total: int) -> None:
    with serving("--pool-size", str(total), "--pool-max", str(total)) as server:
        async with server.clients(_PARALLEL) as clients:
            start = time.perf_counter()
            await server.wait_for_pool(clients[0], total)
            table.add(f"making {total} ahead", f"{total / (time.perf_counter() - start):.0f}/s")
            outcome, made = await creates(clients, total)
            rate, took = outcome.rate, mean(outcome.taken)
            what = f"{total} creates, {_PARALLEL} at once, all made ahead"
            table.add(what, f"{rate:.0f}/s", ">= 500/s", rate >= 500)
            table.add("    mean", in_ms(took), "<= 100 ms", took <= 0.1)
            table.add("    p50 / p99", f"{_ms(outcome.taken, 50)} / {_ms(outcome.taken, 99)} ms")
            show_success(table, outcome)
            await show_cleanups(table, clients, made)


def show_rate(table: Table, what: str, outcome: Outcome, bare: float) -> None:
    part = outcome.rate / bare
    table.add(what, f"{outcome.rate:.0f}/s")
    table.add("    of the bare runtime's rate", f"{part:.0%}", ">= 60 %", part >= 0.6)
    table.add("    p50 / p99", f"{_ms(outcome.taken, 50)} / {_ms(outcome.taken, 99)} ms")
    show_success(table, outcome)


def show_success(table: Table, outcome: Outcome) -> None:
    share = len(outcome.taken) / (len(outcome.taken) + len(outcome.failed))
    table.add("    success", f"{share:.1%}", "100 %", not outcome.failed)
    for message in sorted(set(outcome.failed))[:3]:
        print(f"      failed: {message[:150]}")


def _ms(values: list[float], percent: float) -> str:
    return f"{percentile(values, percent) * 1000:.0f}"


async def show_cleanups(table: Table, clients: list[Client], made: list[str]) -> None:
    outcome = await cleanups(clients, made)
    table.add("    cleanups", f"{outcome.rate:.0f}/s", "all good", not outcome.failed)


async def count_leftovers(server: Server) -> int:
    """Counts sandboxes on disk that are neither in the pool nor on their way into or out of it."""
    async with server.clients(1) as [client]:
        for _ in range(100):
            worker = (await client.call("GET", "/api/stats"))["workers"]["local"]
            pool = worker["pools"]["base"]
            left = server.sandboxes() - int(pool["ready"] + pool["creating"] + worker["destroying"])
            if left == 0:
                break
            await asyncio.sleep(0.1)
        return left


# -- idle


async def _idle_load(server: Server, seconds: int) -> float:
    await asyncio.sleep(seconds)  # what was begun comes to its end
    before = server.cpu_s()
    await asyncio.sleep(seconds)
    return (server.cpu_s() - before) / seconds


async def idle_part(table: Table, count: Count) -> None:
    total, some = count(5000, 60), count(100, 20)
    # The disks of idle sandboxes are empty: as many as this are more than the machine's disk would be trusted with.
    many = ("--pool-size", "0", "--max-sandboxes", str(2 * total))
    with serving(*many, WARREN_DISK_OVERCOMMIT="1000") as server:
        async with server.clients(_PARALLEL) as clients:
            first = clients[0]
            message = exec_message(await create(first), ["true"])
            await time_requests(first, message, 50)
            alone = percentile(await time_requests(first, message, count(300, 50)), 50)
            settle()
            free, memory = meminfo("MemAvailable"), server.memory_mb()
            early, made = await creates(clients, some)
            outcome, more = await creates(clients, total - 2 * some)
            late, last = await creates(clients, some)
            made += more + last
            settle()
            fall, growth = free - meminfo("MemAvailable"), server.memory_mb() - memory
            among = percentile(await time_requests(first, message, count(300, 50)), 50)
            load = await _idle_load(server, count(30, 3))
            table.add(f"{total} idle sessions: fall of MemAvailable, each", f"{fall / total:.2f} MiB")
            table.add("    of it the server's own memory, each", f"{growth / total * 1024:.0f} KiB")
            table.add("    the server's memory, before / with them", f"{memory:.0f} / {memory + growth:.0f} MiB")
            table.add("    exec of true p50, alone / among them", f"{alone * 1000:.2f} / {among * 1000:.2f} ms")
            table.add("    the server's load, of a core", f"{load:.1%}", "<= 5 %", load <= 0.05)
            ratio = late.rate / early.rate
            table.add(f"    creates among them, of those among {some}", f"{ratio:.0%}", ">= 80 %", ratio >= 0.8)
            table.add("    creates a second, first / last", f"{early.rate:.0f} / {late.rate:.0f}")
            show_success(table, outcome)
            await show_cleanups(table, clients, made)
