"""Measures images: what a sandbox of one costs.

    sudo .venv/bin/python bench/images.py                 everything
    sudo .venv/bin/python bench/images.py root            one part

Absolute times depend on the machine; compare the ratios.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import this_run  # noqa: E402

from warren.model.spec import Limits, SandboxSpec  # noqa: E402
from warren.worker.images.store import ImageStore  # noqa: E402
from warren.worker.providers.oci import OciProvider  # noqa: E402

SPEC = SandboxSpec(limits=Limits(cpus=2))
_MOST_MORE_MS = 2.0


class Table:
    def __init__(self) -> None:
        self.missed = 0

    def add(self, what: str, figure: str, target: str = "", met: bool | None = None) -> None:
        verdict = "" if met is None else "yes" if met else "NO"
        self.missed += verdict == "NO"
        print(f"  {what:<66} {figure:>16}  {target:<14} {verdict}", flush=True)


class Bench:
    def __init__(self, provider: OciProvider, table: Table) -> None:
        self.provider, self.table = provider, table

    async def root(self, count: int) -> None:
        """Creates by turns, so that both kinds meet the same load of the machine."""
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
        self.table.add("  more for the writable root", f"{more:.2f} ms", "<= 2 ms", more <= _MOST_MORE_MS)
        plain, writable_ms = (statistics.median(destroyed[kind]) for kind in (False, True))
        self.table.add("destroy, read-only root, p50", f"{plain:.2f} ms")
        self.table.add("destroy, writable root, p50", f"{writable_ms:.2f} ms")


PARTS = ("root",)


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
