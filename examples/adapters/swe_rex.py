"""SWE-ReX in a sandbox of Warren: a bug is found and mended in a bash session, with the tests as the judge.

warren serve &
python examples/adapters/swe_rex.py
"""

import asyncio

from swerex.runtime.abstract import BashAction, CreateBashSessionRequest, WriteFileRequest

from warren.integrations.swe_rex import WarrenDeployment

CODE = "def mean(numbers):\n    return sum(numbers) / len(numbers) + 1\n"
TEST = "from numbers_of import mean\nassert mean([1, 2, 3]) == 2, mean([1, 2, 3])\nprint('passed')\n"
STEPS = [
    "cd /workspace; run() { python3 test_mean.py 2>&1 | tail -n 1; }",
    "run",
    "sed -i 's/ + 1$//' numbers_of.py",
    "run",
]


async def main() -> None:
    deployment = WarrenDeployment()
    try:
        await deployment.start()
        runtime = deployment.runtime
        await runtime.write_file(WriteFileRequest(path="numbers_of.py", content=CODE))
        await runtime.write_file(WriteFileRequest(path="test_mean.py", content=TEST))
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
        for command in STEPS:
            seen = await runtime.run_in_session(BashAction(command=command, timeout=30))
            print(f"$ {command}\n{seen.output}", end="")
    finally:
        await deployment.stop()


if __name__ == "__main__":
    asyncio.run(main())
