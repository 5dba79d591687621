"""Measures what a sandbox of an image costs.

    sudo .venv/bin/python bench/images.py                 everything
    sudo .venv/bin/python bench/images.py root            one part: root, build or large

Absolute times depend on the machine; compare the ratios.
"""

import argparse
import asyncio
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import this_run  # noqa: E402
from build_world import BuildWorld, run  # noqa: E402
from table import Table  # noqa: E402

from warren.images.store.store import ImageStore  # noqa: E402
from warren.images.trees.layers import flatten  # noqa: E402
from warren.model.image import Stage  # noqa: E402
from warren.model.spec import Limits, SandboxSpec  # noqa: E402
from warren.sandboxes.providers.oci import OciProvider  # noqa: E402

SPEC = SandboxSpec(limits=Limits(cpus=2))
_MAX_MORE_MS = 2.0
_MAX_WARM_S = 1.0
_MAX_RATIO = 1.1
_LEAST_FLATTENED = 20_000
_LARGE_MB = 2048


class Bench:
    def __init__(self, provider: OciProvider, table: Table) -> None:
        self.provider, self.table = provider, table

    async def root(self, count: int) -> None:
        """Creates sandboxes of both kinds by turns, so that both meet the same load of the machine."""
        created: dict[bool, list[float]] = {False: [], True: []}
        destroyed: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(2 * (count + 2)):
            writable = bool(turn % 2)
            start = time.perf_counter()
            box = await self.provider.create(SandboxSpec(limits=SPEC.limits, writable_root=writable))
            made = time.perf_counter()
            await self.provider.destroy(box.id)
            if turn >= 4:
                created[writable].append((made - start) * 1000)
                destroyed[writable].append((time.perf_counter() - made) * 1000)
        plain, writable_ms = (statistics.median(created[kind]) for kind in (False, True))
        more = writable_ms - plain
        self.table.add("create from base, read-only root, p50", f"{plain:.2f} ms")
        self.table.add("create from base, writable root, p50", f"{writable_ms:.2f} ms")
        self.table.add("  more for the writable root", f"{more:.2f} ms", "<= 2 ms", more <= _MAX_MORE_MS)
        plain, writable_ms = (statistics.median(destroyed[kind]) for kind in (False, True))
        self.table.add("destroy, read-only root, p50", f"{plain:.2f} ms")
        self.table.add("destroy, writable root, p50", f"{writable_ms:.2f} ms")

    async def build(self, count: int) -> None:
        """Measures a fully cached build, as a process of its own, and what its layers cost when they are not cached."""
        world = await asyncio.to_thread(_new_world)
        try:
            lines = [f"echo {number} > /opt/{number}" for number in range(8)]
            command = [sys.executable, "-m", "build_world", str(world.state), "warm", *lines]
            for what in ("build, 8 steps, no cache", "build, warm cache"):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                start = time.perf_counter()
                await asyncio.to_thread(subprocess.run, command, check=True, env=_ENV, stdout=subprocess.DEVNULL)
                took = time.perf_counter() - start
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                is_warm = what.endswith("warm cache")
                target, met = ("<= 1 s CPU", used <= _MAX_WARM_S) if is_warm else ("", None)
                self.table.add(what, f"{took:.2f} s, {used:.2f} CPU", target, met)
            base = world.root("base")
            files = sum(len(directories) + len(names) for _, directories, names in os.walk(base))
            start = time.process_time()
            await asyncio.to_thread(flatten, base, [], world.state / "flat")
            rate = files / (time.process_time() - start)
            target, met = f">= {_LEAST_FLATTENED:,}", rate >= _LEAST_FLATTENED
            self.table.add(f"flatten base ({files} files), files per second of CPU", f"{rate:,.0f}", target, met)
        finally:
            await asyncio.to_thread(shutil.rmtree, world.state)

    async def large(self, count: int) -> None:
        """Creates sandboxes by turns from `base` and from a far larger image."""
        world = await asyncio.to_thread(_new_world)
        fill = f"for n in $(seq {_LARGE_MB // 64}); do head -c 64M /dev/zero | tr '\\0' x > /opt/$n; done"
        provider = OciProvider(world.state, world.images, ROOT / "src" / "warren" / "bin")
        try:
            await asyncio.to_thread(
                world.build, "large", Stage("base", (run(fill),)), image_build_disk_mb=2 * _LARGE_MB
            )
            created: dict[str, list[float]] = {"base": [], "large": []}
            for turn in range(2 * (count + 2)):
                image = "large" if turn % 2 else "base"
                start = time.perf_counter()
                box = await provider.create(SandboxSpec(image, limits=SPEC.limits))
                if turn >= 4:
                    created[image].append((time.perf_counter() - start) * 1000)
                await provider.destroy(box.id)
            base, large = (statistics.median(created[image]) for image in ("base", "large"))
            self.table.add("create from base, p50", f"{base:.2f} ms")
            self.table.add("create from a built image of 2 GB, p50", f"{large:.2f} ms")
            self.table.add("  ratio", f"{large / base:.2f}", "<= 1.1", large <= base * _MAX_RATIO)
        finally:
            for sandbox_id in await provider.list_ids():
                await provider.destroy(sandbox_id)
            await provider.close()
            await asyncio.to_thread(shutil.rmtree, world.state)


def _new_world() -> BuildWorld:
    return BuildWorld.new(this_run.new_state_dir(), ROOT / "build" / "test-state")


_ENV = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
PARTS = ("root", "build", "large")


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="sandboxes of each kind")
    parser.add_argument("parts", nargs="*", default=PARTS)
    arguments = parser.parse_args()
    this_run.join()
    table = Table()
    state = this_run.new_state_dir(ROOT / "build" / "test-state")
    provider = OciProvider(state, ImageStore(state), ROOT / "src" / "warren" / "bin")
    bench = Bench(provider, table)
    try:
        for part in arguments.parts:
            print(part, flush=True)
            await getattr(bench, part)(arguments.count)
    finally:
        for sandbox_id in await provider.list_ids():
            await provider.destroy(sandbox_id)
        await provider.close()
        shutil.rmtree(state, ignore_errors=True)
    this_run.end()
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
