"""A child process that records entries until it is killed, and says which ones are in the file for certain."""

import asyncio
import sys
from pathlib import Path

from contract.audit_contract import a_deed

from warren.governance.audit.files import FileAudit
from warren.interfaces.audit import Query


async def main(directory: Path) -> None:
    log = await FileAudit.open(directory, max_bytes=20_000, keep_files=1000)
    print("started", flush=True)
    for number in range(1_000_000):
        for part in range(20):
            log.record(a_deed(float(number), detail={"path": "x" * 50 * part}))
        await log.find(Query("acme", limit=1))
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
