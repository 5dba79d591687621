"""Measures how creates grow with the number of processes that make sandboxes.

    sudo .venv/bin/python bench/scaling.py                     0, 1, 2, 4, 8 and 16 makers
    sudo .venv/bin/python bench/scaling.py --makers 0,4 --count 200

In each row a provider of its own makes COUNT sandboxes, 64 asked for at once; all its makers run before. `exec p99` is
of the command `true` in another sandbox, quiet and meanwhile; `server` is the processor time of the process that asks,
for one create. Absolute figures depend on the machine: compare the rows.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from service_server import IMAGES, ROOT

_MAKERS = (0, 1, 2, 4, 8, 16)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--makers", default=",".join(map(str, _MAKERS)), help="the rows of the table")
    parser.add_argument("--count", type=int, default=400, help="sandboxes of a row")
    options = parser.parse_args()
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
