"""A child process, in a mount namespace of its own, whose audit record runs out of space and gets some again."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

from contract.audit_contract import EVERYTHING, a_deed, all_of

from warren.governance.audit.files import FileAudit
from warren.model.audit import DROPPED

MANY = 400


async def main(directory: Path) -> None:
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(300_000))
    log = await FileAudit.open(directory / "audit")
    for number in range(MANY):
        log.record(a_deed(float(number), detail={"path": "x" * 1000}))
    before = await all_of(log, EVERYTHING)
    assert 0 < len(before) == MANY - log.dropped, repr(log)
    assert [entry.at for entry in before] == [float(number) for number in range(len(before) - 1, -1, -1)]
    for number in range(MANY, MANY + 3):
        log.record(a_deed(float(number), detail={"path": "x" * 2000}))
        assert (await all_of(log, EVERYTHING)) == before
    lost = log.dropped
    ballast.unlink()
    log.record(a_deed(9999.0))
    newest, note, *rest = await all_of(log, EVERYTHING)
    assert (newest, rest) == (a_deed(9999.0), before)
    assert (note.action, note.tenant, note.at) == (DROPPED, "acme", float(MANY + 2))
    assert note.detail == {"count": lost, "first_at": float(len(before)), "last_at": float(MANY + 2)}
    await log.close()
    again = await FileAudit.open(directory / "audit")
    assert len(await all_of(again, EVERYTHING)) == len(before) + 2
    await again.close()
    print("full, counted, works again")


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", sys.argv[1]], check=True)
    asyncio.run(main(Path(sys.argv[1])))
