"""Several who keep usage and keys in one real Redis: nothing is lost between them, nor while Redis is away."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import anyio
import pytest
from redis_server import PATIENCE_S, RedisServer, running_redis

from warren.access.keys import Keys
from warren.governance.usage import FLUSH_S, UsageBook
from warren.model.access import ALL_SCOPES
from warren.model.errors import Unauthorized, Unavailable
from warren.model.usage import Usage
from warren.stores.redis_link import RedisLink, connect
from warren.stores.redis_records import RedisRecords
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 3, 31, 12, tzinfo=UTC).timestamp()
TODAY = date(2026, 3, 31)
LASTING = ("--appendonly", "yes", "--appendfsync", "always")
NODES = 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path / "redis", *LASTING) as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=NOON)


@asynccontextmanager
async def links(server: RedisServer, count: int = NODES) -> AsyncIterator[list[RedisLink]]:
    some = [connect(server.url, timeout_s=PATIENCE_S) for _ in range(count)]
    try:
        yield some
    finally:
        for link in some:
            await link.close()


async def test_usage_of_many_nodes_adds_up(server: RedisServer, clock: ManualClock) -> None:
    async with links(server) as some:
        books = [UsageBook(RedisRecords(link), clock) for link in some]
        for _ in range(10):
            for book in books:
                book.add("acme", Usage(commands=1, exec_s=0.5))
                book.add("other", Usage(sessions=1))
            await asyncio.gather(*(book.flush() for book in books))
        rows = await books[0].between(None, TODAY, TODAY)
        assert [(row.tenant, row.usage.commands, row.usage.exec_s, row.usage.sessions) for row in rows] == [
            ("acme", 10 * NODES, 5.0 * NODES, 0),
            ("other", 0, 0.0, 10 * NODES),
        ]


async def test_usage_waits_while_redis_is_away(server: RedisServer, clock: ManualClock) -> None:
    async with links(server, 2) as some:
        books = [UsageBook(RedisRecords(link), clock) for link in some]
        for book in books:
            book.add("acme", Usage(commands=1))
            await book.flush()
        server.kill()
        for _ in range(30):
            await clock.advance(FLUSH_S)
            for book in books:
                book.add("acme", Usage(commands=1))
                book.add("other", Usage(commands=1))
                with pytest.raises(Unavailable):
                    await book.flush()
        server.start()
        await asyncio.gather(*(book.flush() for book in books))
        rows = await books[0].between(None, TODAY, TODAY)
        assert [(row.tenant, row.usage.commands) for row in rows] == [("acme", 62), ("other", 60)]


async def test_of_many_who_start_at_once_one_makes_the_first_key(server: RedisServer, clock: ManualClock) -> None:
    async with links(server) as some:
        nodes = [Keys(RedisRecords(link), clock) for link in some]
        made = await asyncio.gather(*(keys.create_first("first", "default", ALL_SCOPES) for keys in nodes))
        ((key, text),) = [one for one in made if one is not None]
        for keys in nodes:
            assert (await keys.recognise(text)).key_id == key.id
            assert len(await keys.list()) == 1


async def test_a_key_that_was_proven_is_known_while_redis_is_away(server: RedisServer, clock: ManualClock) -> None:
    async with links(server, 1) as (link,):
        keys = Keys(RedisRecords(link), clock)
        key, text = await keys.create("ci", "acme")
        _, unseen = await keys.create("unseen", "acme")
        await keys.recognise(text)
        server.kill()
        await clock.advance(60)
        assert (await keys.recognise(text)).key_id == key.id
        with pytest.raises(Unavailable):
            await keys.recognise(unseen)
        server.start()
        await keys.recognise(unseen)
        await keys.revoke(key.id)
        with anyio.fail_after(PATIENCE_S), pytest.raises(Unauthorized):
            await keys.recognise(text)
