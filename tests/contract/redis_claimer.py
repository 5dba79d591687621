"""A child process with several stores that all want the same thread at once, and says what they got."""

import asyncio
import sys

from contract.store_values import a_session

from warren.stores.redis_store import RedisStore


async def main(url: str, number: int) -> None:
    stores = [await RedisStore.open(url, timeout_s=60.0) for _ in range(number)]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for session, which in await asyncio.gather(*(store.add(a_session(thread_id="t")) for store in stores)):
        print(session.id, which, flush=True)
    for store in stores:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
