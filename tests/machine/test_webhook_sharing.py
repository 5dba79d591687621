"""Who sends webhooks shares with others, and may end in between."""

import asyncio
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest
from machine.webhook_receiver import receiving
from machine.webhook_world import (
    NOW,
    PATIENCE_S,
    TAKES,
    FailingRecords,
    an_event,
    delivering,
    ids,
    one_after_the_other,
    silent,
    until_delivered,
    until_states,
    wait_until,
    webhooks,
    working,
)
from redis_server import running_redis

from warren.governance.webhooks.delivery_worker import LEASE_S, MAX_OF_TENANT, MAX_OF_WEBHOOK, MAX_SENDING
from warren.governance.webhooks.outbox import CACHED_S
from warren.interfaces.records import Record
from warren.interfaces.store import SessionStore
from warren.stores.memory import MemoryRecords
from warren.stores.redis_store import RedisStore
from warren.stores.sqlite import SqliteStore
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio
ALL = ["*"]
TESTS = Path(__file__).parents[1]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=NOW)


# -- who shares


async def test_a_slow_receiver_holds_up_neither_others_nor_itself_for_ever(clock: ManualClock) -> None:
    async with receiving(silent) as slow, receiving(TAKES) as quick, working(MemoryRecords(), clock) as made:
        held_up, _ = await made.create("acme", slow.url(), ALL)
        hook, _ = await made.create("acme", quick.url(), ALL)
        for _ in range(30):
            made.publish(an_event())
        await until_delivered(made, hook.id, quick.requests, 30)
        waiting = Counter(one["state"] for one in await made.deliveries("acme", held_up.id))
        assert waiting == {"sending": MAX_OF_WEBHOOK, "waiting": 30 - MAX_OF_WEBHOOK}
    assert slow.connections == MAX_OF_WEBHOOK


async def test_a_tenant_with_slow_receivers_holds_up_no_other_tenant(clock: ManualClock) -> None:
    async with receiving(silent) as slow, receiving(TAKES) as quick, working(MemoryRecords(), clock) as made:
        for _ in range(MAX_OF_TENANT):
            await made.create("acme", slow.url(), ALL)
        hook, _ = await made.create("other", quick.url(), ALL)
        for _ in range(MAX_SENDING):
            made.publish(an_event())
        await wait_until(lambda: slow.connections == MAX_OF_TENANT)
        for _ in range(30):
            made.publish(an_event("other"))
        await until_delivered(made, hook.id, quick.requests, 30, tenant="other")
        assert slow.connections == MAX_OF_TENANT


async def test_the_webhooks_of_a_tenant_take_turns(clock: ManualClock) -> None:
    async with receiving(TAKES) as receiver, webhooks(MemoryRecords(), clock) as made:
        places = [f"/{number}" for number in range(2 * MAX_OF_TENANT)]
        hooks = [(await made.create("acme", receiver.url(place), ALL))[0] for place in places]
        for _ in range(20):
            made.publish(an_event())
        await wait_until(lambda: repr(made).startswith("<Webhooks: 0 events"))
        async with delivering(made):
            for hook in hooks:
                await until_states(made, hook.id)
    came = [request.split()[1].decode() for request in receiver.requests]
    first_half = Counter(came[: len(came) // 2])
    assert set(first_half) == set(places)


async def test_no_more_than_so_many_are_sent_at_once_and_the_rest_follows(clock: ManualClock) -> None:
    go = asyncio.Event()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await TAKES(reader, writer)

    async with receiving(waits) as receiver, working(MemoryRecords(), clock) as made:
        tenants = [f"t{number}" for number in range(MAX_SENDING)]
        for tenant in tenants:
            await made.create(tenant, receiver.url(), ALL)
            for _ in range(3):
                made.publish(an_event(tenant))
        await wait_until(lambda: receiver.connections == MAX_SENDING)
        await wait_until(lambda: repr(made).startswith("<Webhooks: 0 events"))
        assert receiver.connections == MAX_SENDING
        go.set()
        await wait_until(lambda: len(receiver.requests) == 3 * MAX_SENDING)
    assert max(Counter(ids(receiver)).values()) == 1


async def test_a_tenant_has_so_many_waiting_and_more_are_dropped(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving(TAKES) as receiver, webhooks(MemoryRecords(), clock, max_waiting=5) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        other, _ = await made.create("other", receiver.url(), ALL)
        events = [an_event() for _ in range(8)]
        with caplog.at_level(logging.WARNING, "warren.webhooks"):
            for event in events:
                made.publish(event)
                await wait_until(lambda: repr(made).startswith("<Webhooks: 0 events"))
            made.publish(an_event("other"))
            await until_states(made, other.id, ("waiting", 0), tenant="other")
        kept = {one["message_id"] for one in await made.deliveries("acme", hook.id)}
        assert kept == {event.id for event in events[:5]}
        assert made.dropped == 3
        assert [(record.message, record.fields) for record in caplog.records] == [
            ("webhook_deliveries_dropped", {"tenant": "acme", "waiting": 5})
        ]
        async with delivering(made):
            await until_delivered(made, hook.id, receiver.requests, 6)
        await clock.advance(CACHED_S)
        made.publish(late := an_event())
        await until_states(made, hook.id, ("waiting", 0))
        assert (await made.deliveries("acme", hook.id))[0]["message_id"] == late.id


async def test_what_is_not_even_written_is_bounded_too(clock: ManualClock) -> None:
    records = FailingRecords()
    async with receiving(TAKES) as receiver, webhooks(records, clock, max_waiting=5) as made:
        await made.create("acme", receiver.url(), ALL)
        records.broken = True
        for _ in range(8):
            made.publish(an_event())
        assert repr(made).startswith("<Webhooks: 5 events to be written, 3 dropped")
        records.broken = False


@pytest.fixture(params=["sqlite", "redis"])
async def two_stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sequence[SessionStore]]:
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            stores: list[SessionStore] = [await SqliteStore.open(tmp_path / "store") for _ in range(2)]
        else:
            server = stack.enter_context(running_redis(tmp_path / "redis"))
            stores = [await RedisStore.open(server.url, timeout_s=PATIENCE_S) for _ in range(2)]
        yield stores
        for store in stores:
            await store.close()


async def test_two_processes_on_one_store_deliver_each_event_once(
    clock: ManualClock, two_stores: Sequence[SessionStore]
) -> None:
    async with receiving(TAKES) as receiver, AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(webhooks(store.records, clock)) for store in two_stores]
        hooks = [(await first.create("acme", receiver.url(), ALL))[0] for _ in range(4)]
        events = [an_event() for _ in range(15)]
        for event in events:
            first.publish(event)
        await wait_until(lambda: repr(first).startswith("<Webhooks: 0 events"))
        await stack.enter_async_context(delivering(first))
        await stack.enter_async_context(delivering(second))
        for hook in hooks:
            await until_states(second, hook.id)
    assert Counter(ids(receiver)) == {event.id: len(hooks) for event in events}


# -- what ends in between


async def test_who_stops_leaves_the_rest_to_the_next(clock: ManualClock) -> None:
    records = MemoryRecords()
    async with receiving(one_after_the_other(silent, TAKES)) as receiver:
        async with working(records, clock) as made:
            hook, _ = await made.create("acme", receiver.url(), ALL)
            made.publish(event := an_event())
            await wait_until(lambda: receiver.requests)
        async with working(records, clock) as made:
            await until_delivered(made, hook.id, receiver.requests, 2)
    assert ids(receiver) == [event.id] * 2


async def test_closing_waits_until_what_was_published_is_written(clock: ManualClock) -> None:
    records = MemoryRecords()
    async with receiving(TAKES) as receiver:
        async with webhooks(records, clock) as made:
            hook, _ = await made.create("acme", receiver.url(), ALL)
            for _ in range(50):
                made.publish(an_event())
        made.publish(an_event())
        assert len(await made.deliveries("acme", hook.id)) == 50


async def test_what_a_killed_process_was_sending_is_sent_by_the_next(tmp_path: Path) -> None:
    clock = ManualClock(wall=time.time())
    store = await SqliteStore.open(tmp_path / "store")
    async with receiving(one_after_the_other(silent, TAKES)) as receiver, webhooks(store.records, clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        command = [sys.executable, "-m", "machine.webhook_victim", str(tmp_path / "store"), "evt_kept"]
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join([str(TESTS), *sys.path])}
        victim = await asyncio.create_subprocess_exec(*command, env=environ)
        try:
            await wait_until(lambda: receiver.requests)
        finally:
            victim.kill()
            await victim.wait()
        assert [one["state"] for one in await made.deliveries("acme", hook.id)] == ["sending"]
        clock.set_wall(time.time() + LEASE_S)
        async with delivering(made):
            await until_delivered(made, hook.id, receiver.requests, 2)
    await store.close()
    assert ids(receiver) == ["evt_kept"] * 2


async def test_an_event_waits_for_a_store_that_is_away(clock: ManualClock) -> None:
    records = FailingRecords()
    async with receiving(TAKES) as receiver, working(records, clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        records.broken = True
        made.publish(event := an_event())
        await clock.advance(5.0)
        assert not receiver.requests
        records.broken = False
        await clock.advance(5.0)
        await until_delivered(made, hook.id, receiver.requests, 1)
    assert ids(receiver) == [event.id]
    assert made.dropped == 0


async def test_closing_does_not_wait_for_a_store_that_stays_away(clock: ManualClock) -> None:
    records = FailingRecords()
    async with receiving(TAKES) as receiver, webhooks(records, clock) as made:
        await made.create("acme", receiver.url(), ALL)
        records.broken = True
        made.publish(an_event())
        made.publish(an_event())
        await clock.advance(0.1)  # it waits to try again
    assert made.dropped == 2


async def test_an_event_that_is_no_json_harms_no_other(clock: ManualClock) -> None:
    async with receiving(TAKES) as receiver, working(MemoryRecords(), clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        made.publish(an_event(reason=cast(str, object())))
        made.publish(an_event(lived_s=float("nan")))
        made.publish(good := an_event())
        await until_delivered(made, hook.id, receiver.requests, 1)
    assert ids(receiver) == [good.id]
    assert made.dropped == 2


async def test_a_damaged_delivery_is_thrown_away(clock: ManualClock) -> None:
    records = MemoryRecords()
    async with receiving(TAKES) as receiver, webhooks(records, clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        await records.put(Record(f"delivery/{hook.id}", "0", "{}", group="acme", due=1.0))
        made.publish(an_event())
        async with delivering(made):
            await until_delivered(made, hook.id, receiver.requests, 1)
