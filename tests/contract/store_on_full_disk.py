"""A child process, in a mount namespace of its own, whose session store runs out of space and gets some again."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from contract.store_values import EPOCH, S, a_key, a_session

from warren.interfaces.store import Added, KeyRecord
from warren.model.errors import NoSpace
from warren.model.session import Session
from warren.stores.sqlite import SqliteStore


async def main(directory: Path) -> None:
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(200_000))
    store = await SqliteStore.open(directory / "sessions.db")
    kept = await filled(store)
    for _ in range(3):
        await refuses(store, kept[0])
    assert {one.id: one for one in await store.active()} == {one.id: one for one in kept}
    ballast.unlink()
    await works(store, kept[0])
    await store.close()
    again = await SqliteStore.open(directory / "sessions.db")
    assert len(await again.active()) == len(kept) + 1
    await again.close()
    print("full, nothing half-written, works again")


async def filled(store: SqliteStore) -> list[Session]:
    kept: list[Session] = []
    for number in range(10_000):
        session = a_session(thread_id=f"t{number}", env={"FILL": "x" * 3000})
        try:
            await store.add(session, a_key(f"k{number}"))
        except NoSpace:
            return kept
        kept.append(session)
    raise AssertionError("the disk did not become full")


async def refuses(store: SqliteStore, session: Session) -> None:
    """Every way of writing raises NoSpace, and what was to be written is not there."""
    late = a_session(thread_id="late", env={"FILL": "x" * 10_000})
    larger = session.moved_to(S.RUNNING, env={"FILL": "y" * 10_000})
    for write in (
        lambda: store.add(late),
        lambda: store.add(late, a_key("late")),
        lambda: store.swap(larger),
        lambda: store.claim_key(a_key("x" * 9000), EPOCH, 1.0),
        lambda: store.answer_key(a_key("k0"), "x" * 10_000),
    ):
        with pytest.raises(NoSpace, match=r"sessions\.db \(free space"):
            await write()
    assert await store.of_thread("acme", "late") is None
    assert await store.get("acme", session.id) == session
    assert await store.claim_key(a_key("k0"), EPOCH, 1.0) == KeyRecord("one")


async def works(store: SqliteStore, session: Session) -> None:
    assert (await store.add(a_session(thread_id="late"), a_key("late")))[1] is Added.NEW
    assert await store.swap(session.moved_to(S.RUNNING))
    await store.checkpoint()


if __name__ == "__main__":
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", sys.argv[1]], check=True)
    asyncio.run(main(Path(sys.argv[1])))
