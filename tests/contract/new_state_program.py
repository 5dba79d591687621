"""Uses every store with a state, DORMANT, that test_new_state.py has added to a copy of the package.

Arguments: a directory, the URL of a Redis, and the SQLite file that the package without the state has written.
"""

import asyncio
import sys
from pathlib import Path

from contract.store_values import ALL, EPOCH, a_key, a_session, added, ended, swapped

from warren.interfaces.store import Added, Caps, Page, SessionStore
from warren.model.errors import QuotaExceeded
from warren.model.session import SessionState
from warren.stores.memory import MemoryStore
from warren.stores.redis_store import RedisStore
from warren.stores.sqlite import SqliteStore

DORMANT = SessionState("dormant")
ARCHIVED = SessionState("archived")


async def check_dormant(store: SessionStore) -> None:
    """An active state: it keeps its thread, its place in the quota and its deadline, and cannot run commands."""
    running = await swapped(store, await added(store, thread_id="t", disk_mb=5), SessionState.RUNNING)
    dormant = await swapped(store, running, DORMANT)
    assert not dormant.state.can_run
    assert await store.of_thread("acme", "t") == dormant
    assert dormant in await store.active()
    assert dormant in await store.list("acme", Page())
    assert list(await store.list("acme", Page(states=frozenset({DORMANT})))) == [dormant]
    assert (await store.count())[DORMANT] == 1
    assert list(await store.due(dormant.deadline, 10)) == [dormant]
    assert not await store.purge("another boot", 1e9)
    assert await store.add(a_session(thread_id="t"), a_key("for the dormant")) == (dormant, Added.THREAD)
    assert await store.add(a_session(), a_key("for the dormant")) == (dormant, Added.KEY)
    try:
        await store.add(a_session(disk_mb=1), caps=Caps(disk_mb=5))
        raise AssertionError("what is dormant counts for quotas")
    except QuotaExceeded:
        pass
    await ended(store, await swapped(store, dormant, SessionState.RUNNING))
    assert (await store.count())[DORMANT] == 0


async def check_archived(store: SessionStore) -> None:
    """A state that is not active: the thread is free, and the session is purged."""
    running = await swapped(store, await added(store, thread_id="u"), SessionState.RUNNING)
    archived = await swapped(store, running, ARCHIVED, ended=300.0)
    assert await store.of_thread("acme", "u") == archived
    assert archived not in await store.active()
    assert archived not in await store.list("acme", Page())
    assert archived in await store.list("acme", Page(states=ALL))
    assert (await store.count())[ARCHIVED] == 1
    assert not await store.due(1e9, 10)
    await ended(store, await added(store, thread_id="u"))
    assert await store.purge(EPOCH, 250.0) == 2  # those that ended, at 200
    assert await store.purge(EPOCH, 350.0) == 1
    assert await store.get("acme", archived.id) is None


async def main(directory: Path, redis_url: str, earlier: Path) -> None:
    stores: list[SessionStore] = [
        MemoryStore(),
        await SqliteStore.open(directory / "new.db"),
        await SqliteStore.open(earlier),
        await RedisStore.open(redis_url, timeout_s=60.0, namespace="new-state"),
    ]
    for store in stores:
        print(repr(store), flush=True)
        await check_dormant(store)
        await check_archived(store)
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
