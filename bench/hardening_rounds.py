"""Measures one checkout for hardening_cost.py: runs a round for each line on stdin, and prints its figures as JSON.

It also runs with the sources of other checkouts, so it uses only interfaces that have existed for long.
"""

import asyncio
import json
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from warren.model.operations import Command
from warren.model.spec import Limits, SandboxSpec
from warren.sandboxes.providers.oci import OciProvider

try:
    from warren.images.store.store import ImageStore
except ImportError:
    from warren.images import ImageStore  # type: ignore[attr-defined, no-redef]

MIB = 1024 * 1024
TRUE = Command(argv=("true",))
STREAM = Command(shell="head -c 256M /dev/zero")
COMMANDS_PER_CREATE = 10

Figures = dict[str, list[float]]


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def measure_creates(provider: OciProvider, count: int) -> Figures:
    creates, destroys = [], []
    own, children, unmaking = time.process_time(), children_s(), 0.0
    for _ in range(count):
        start = time.perf_counter()
        box = await provider.create(SandboxSpec())
        creates.append((time.perf_counter() - start) * 1000)
        start, before = time.perf_counter(), time.process_time()
        await provider.destroy(box.id)
        destroys.append((time.perf_counter() - start) * 1000)
        unmaking += time.process_time() - before
    own = time.process_time() - own
    return {
        "cold create, p50, ms": creates,
        "CPU of the worker per create, ms": [(own - unmaking) / count * 1000],
        "CPU of launcher and runtime, ms": [(children_s() - children) / count * 1000],
        "destroy, p50, ms": destroys,
        "CPU of the worker per destroy, ms": [unmaking / count * 1000],
    }


async def measure(provider: OciProvider, box: Any, count: int) -> Figures:
    commands = []
    for _ in range(count * COMMANDS_PER_CREATE):
        start = time.perf_counter()
        await box.exec(TRUE)
        commands.append((time.perf_counter() - start) * 1000)
    start, total = time.perf_counter(), 0
    process = await box.start(STREAM)
    async for chunk in process.output():
        total += len(chunk.data)
    rate = total / MIB / (time.perf_counter() - start)
    return {"exec of true, p50, ms": commands, **await measure_creates(provider, count), "stdout, MiB/s": [rate]}


async def main(bin_dir: Path, images: Path) -> None:
    state = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    (state / "images").symlink_to(images)
    provider = OciProvider(state, ImageStore(state), bin_dir)
    try:
        box = await provider.create(SandboxSpec(limits=Limits(cpus=2)))
        while line := await asyncio.to_thread(sys.stdin.readline):
            figures = await measure(provider, box, json.loads(line)["count"])
            print(json.dumps(figures), flush=True)
    finally:
        for sandbox_id in await provider.list_ids():
            await provider.destroy(sandbox_id)
        await provider.close()
        shutil.rmtree(state, ignore_errors=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
