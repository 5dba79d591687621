"""A thousand short rollouts, each in a sandbox of its own: programs that a model could have written are judged.

warren serve --max-sandboxes 200 &
python examples/rollouts.py 1000 100
"""

import asyncio
import sys
import time
from collections import Counter

from example_run import run_example

from warren import AsyncSandboxClient, batch

CANDIDATES = (
    "def square(x): return x * x",
    "def square(x): return x + x",
    "def square(x): return x ** 2",
    "def square(x): raise NotImplementedError",
    "def square(x):\n    while True: pass",
)
TEST = "from answer import square\nassert [square(x) for x in range(5)] == [0, 1, 4, 9, 16]"


async def judge(sandbox: AsyncSandboxClient, program: str) -> str:
    await sandbox.write_file("answer.py", program)
    result = await sandbox.execute(["python3", "-c", TEST], timeout=2)
    return "right" if result.ok else "too slow" if result.reason == "timeout" else "wrong"


async def main(count: int, parallel: int) -> None:
    programs = [CANDIDATES[number % len(CANDIDATES)] for number in range(count)]
    began, verdicts = time.monotonic(), Counter[str]()
    async for done in batch.run_async(judge, programs, parallel=parallel, progress=sys.stderr.isatty()):
        verdicts[done.get()] += 1
    print(f"{count} rollouts, {parallel} at once, in {time.monotonic() - began:.1f} s: {sorted(verdicts.items())}")


if __name__ == "__main__":
    count, parallel = map(int, sys.argv[1:3] or ("20", "4"))
    run_example(lambda: asyncio.run(main(count, parallel)))
