"""A child process that writes sessions until it is killed, and says after each write what was acknowledged."""

import asyncio
import sys
from pathlib import Path

from contract.store_values import S, a_session

from warren.stores.sqlite import SqliteStore


async def main() -> None:
    store = await SqliteStore.open(Path(sys.argv[1]))
    print("started", flush=True)
    for number in range(1_000_000):
        session, _ = await store.add(a_session(thread_id=f"t{number}", created_at=float(number)))
        print(session.id, session.version, flush=True)
        for state in (S.RUNNING, S.STOPPING, S.ENDED)[: number % 4]:
            session = session.moved_to(state)
            assert await store.swap(session)
            print(session.id, session.version, flush=True)
        if number % 50 == 49:
            await store.checkpoint()


if __name__ == "__main__":
    asyncio.run(main())
