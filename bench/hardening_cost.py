"""Measures what a change of the sandboxes costs: exec, create, destroy and output, beside another checkout, in turns.

    sudo .venv/bin/python bench/hardening_cost.py --against DIRECTORY

DIRECTORY is a checkout of Warren in which `make -C agent` and `make -C launcher` have run. Each checkout has a process
of its own (hardening_rounds.py), which waits while the other one measures, so that a slow moment of the machine affects
both. A create is a cold one, without a pool. CPU time is per create: that of the worker with all its threads, and that
of the launcher and the runtime. Everything must cost at most 5 % more than in the other checkout.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "build" / "test-state" / "images"
MAX_COST = 1.05
HIGHER_IS_BETTER = frozenset({"stdout, MiB/s"})


class Side:
    """The process that measures one checkout."""

    def __init__(self, checkout: Path) -> None:
        source = checkout.absolute() / "src"
        self.figures: dict[str, list[float]] = {}
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "bench" / "hardening_rounds.py"), str(source / "warren" / "bin"), str(IMAGES)],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, count: int) -> None:
        for name, values in self._ask({"count": count}).items():
            self.figures.setdefault(name, []).extend(values)

    def end(self) -> None:
        """Ends the process, after it has removed what it made."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _ask(self, request: dict[str, Any]) -> dict[str, list[float]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("a process that measures has ended")
        found: dict[str, list[float]] = json.loads(answer)
        return found


def print_table(this: Side, that: Side) -> None:
    print(f"{'':36} {'this':>9} {'that':>9} {'ratio':>7}")
    for name, values in this.figures.items():
        here, there = statistics.median(values), statistics.median(that.figures[name])
        ratio = here / there
        cost = 1 / ratio if name in HIGHER_IS_BETTER else ratio
        print(f"{name:36} {here:9.2f} {there:9.2f}   x{ratio:.2f}{'' if cost <= MAX_COST else '   above 5 %'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--count", type=int, default=10, help="creates in a round")
    given = parser.parse_args()
    if not (given.against / "src" / "warren" / "bin" / "warren-launch").exists():
        parser.error(f"{given.against} has no warren-launch: run make -C agent and make -C launcher in it")
    this, that = Side(ROOT), Side(given.against)
    try:
        for side in (this, that):
            side.measure(2)
            side.figures.clear()
        for number in range(given.rounds):
            for side in (this, that) if number % 2 else (that, this):
                side.measure(given.count)
        load = " ".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"{os.cpu_count()} cores, {os.uname().machine}, Linux {os.uname().release}, load {load}")
        print_table(this, that)
    finally:
        this.end()
        that.end()


if __name__ == "__main__":
    main()
