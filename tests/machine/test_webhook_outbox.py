"""Events reach the webhooks that want them, over real connections, whatever happens in between."""

import asyncio
from pathlib import Path

import pytest
from machine.webhook_receiver import PRIVATE, Names, receiving, saying, two_receivers
from machine.webhook_world import (
    FAILS,
    GONE,
    NOW,
    TAKES,
    an_event,
    delivering,
    ids,
    one_after_the_other,
    posts,
    silent,
    states,
    to_the_next_attempt,
    until_delivered,
    until_states,
    wait_until,
    webhooks,
    working,
)
from webhook_page import is_genuine

from warren.governance.webhooks.deliveries import FAILED_KEPT_S, MAX_FAILED
from warren.governance.webhooks.delivery_worker import MAX_OF_WEBHOOK, SCAN_S
from warren.governance.webhooks.outbox import CACHED_S
from warren.governance.webhooks.retries import ATTEMPTS, PAUSES_S, SPREAD
from warren.model.errors import Conflict, RateLimited
from warren.model.events import EventKind
from warren.stores.memory import MemoryRecords
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio
ALL = ["*"]
TESTS = Path(__file__).parents[1]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=NOW)


# -- what arrives


async def test_an_event_arrives_as_it_was_and_signed(clock: ManualClock) -> None:
    event = an_event(reason="idle")
    async with receiving(TAKES) as receiver, working(MemoryRecords(), clock) as made:
        hook, secret = await made.create("acme", receiver.url(), ALL)
        made.publish(event)
        await until_delivered(made, hook.id, receiver.requests, 1)
    (post,) = posts(receiver)
    assert post.values == {
        "id": event.id,
        "type": "session.ended",
        "timestamp": "2027-01-15T08:00:00.000Z",
        "tenant": "acme",
        "session_id": "ses_1",
        "data": {"thread_id": None, "memory_mb": 512, "reason": "idle", "lived_s": 1.5},
    }
    assert post.id == event.id
    assert is_genuine(secret, post.headers, post.body, clock.wall())
    assert not is_genuine(secret, post.headers, post.body + b" ", clock.wall())


async def test_a_webhook_is_told_of_what_it_wants_and_of_its_tenant_alone(clock: ManualClock) -> None:
    wanted = an_event(kind=EventKind.SESSION_LOST)
    async with receiving(TAKES) as receiver, working(MemoryRecords(), clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ["session.lost", "quota.reached"])
        made.publish(an_event())
        made.publish(an_event("other", EventKind.SESSION_LOST))
        made.publish(wanted)
        await until_delivered(made, hook.id, receiver.requests, 1)
    assert ids(receiver) == [wanted.id]


async def test_every_webhook_of_a_tenant_is_told(clock: ManualClock) -> None:
    events = [an_event() for _ in range(20)]
    async with receiving(TAKES) as one, receiving(TAKES) as two, working(MemoryRecords(), clock) as made:
        hooks = [(await made.create("acme", each.url(), ALL))[0] for each in (one, two)]
        for event in events:
            made.publish(event)
        for hook, each in zip(hooks, (one, two), strict=True):
            await until_delivered(made, hook.id, each.requests, 20)
    assert sorted(ids(one)) == sorted(ids(two)) == sorted(event.id for event in events)


async def test_events_that_nobody_wants_are_not_kept(clock: ManualClock) -> None:
    records = MemoryRecords()
    async with webhooks(records, clock) as made:
        for _ in range(5):
            made.publish(an_event())
    assert repr(records) == "<MemoryRecords: 0>"
    assert made.dropped == 0


async def test_a_webhook_made_by_another_process_is_told_two_seconds_later(clock: ManualClock) -> None:
    records = MemoryRecords()
    async with receiving(TAKES) as receiver, working(records, clock) as made, webhooks(records, clock) as other:
        made.publish(an_event())
        await wait_until(lambda: repr(made).startswith("<Webhooks: 0 events"))
        hook, _ = await other.create("acme", receiver.url(), ALL)
        await clock.advance(CACHED_S)
        made.publish(late := an_event())
        await until_delivered(made, hook.id, receiver.requests, 1)
    assert ids(receiver) == [late.id]


# -- what fails


async def test_a_failure_is_tried_again_with_the_same_id_and_a_signature_of_its_own(clock: ManualClock) -> None:
    async with receiving(one_after_the_other(FAILS, TAKES)) as receiver, working(MemoryRecords(), clock) as made:
        hook, secret = await made.create("acme", receiver.url(), ALL)
        made.publish(event := an_event())
        await until_states(made, hook.id, ("waiting", 1))
        (shown,) = await made.deliveries("acme", hook.id)
        assert (shown["status"], shown["error"]) == (500, "it answered 500: oh no")
        assert (shown["message_id"], shown["type"], shown["attempted_at"]) == (event.id, "session.ended", NOW)
        assert PAUSES_S[0] <= shown["next_attempt_at"] - NOW <= PAUSES_S[0] * (1 + SPREAD)
        await to_the_next_attempt(clock, made, hook.id)
        await until_delivered(made, hook.id, receiver.requests, 2)
    first, second = posts(receiver)
    assert (first.id, first.body) == (second.id, second.body)
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
    second_at = float(second.headers["webhook-timestamp"])
    assert is_genuine(secret, second.headers, second.body, second_at)
    assert second_at > NOW


async def test_who_takes_a_message_and_hangs_up_gets_it_again(clock: ManualClock) -> None:
    async def hangs_up(*_: object) -> None:
        return

    async with receiving(one_after_the_other(hangs_up, TAKES)) as receiver, working(MemoryRecords(), clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        made.publish(event := an_event())
        await until_states(made, hook.id, ("waiting", 1))
        assert (await made.deliveries("acme", hook.id))[0]["status"] is None
        await clock.advance(10.0)
        await until_delivered(made, hook.id, receiver.requests, 2)
    assert ids(receiver) == [event.id] * 2


async def test_a_receiver_may_ask_for_patience(clock: ManualClock) -> None:
    busy = saying(b"", "503 Busy", "Retry-After: 1000")
    async with receiving(busy) as receiver, working(MemoryRecords(), clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        made.publish(an_event())
        await until_states(made, hook.id, ("waiting", 1))
        assert (await made.deliveries("acme", hook.id))[0]["next_attempt_at"] >= NOW + 1000


async def test_after_the_last_attempt_it_is_given_up_and_shown_for_a_day(clock: ManualClock) -> None:
    """Delivering begins anew each time: nobody has to wake for all the looks in between."""
    async with receiving(FAILS) as receiver, webhooks(MemoryRecords(), clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        made.publish(an_event())
        for attempt in range(1, ATTEMPTS):
            async with delivering(made):
                await until_states(made, hook.id, ("waiting", attempt))
            await to_the_next_attempt(clock, made, hook.id)
        async with delivering(made):
            await until_states(made, hook.id, ("failed", ATTEMPTS))
        assert (await made.deliveries("acme", hook.id))[0]["next_attempt_at"] is None
        await clock.advance(FAILED_KEPT_S - 60)
        async with delivering(made):
            assert (await made.test("acme", hook.id)).status == 500
            await until_states(made, hook.id, ("failed", ATTEMPTS))
        await clock.advance(1000)
        async with delivering(made):
            await until_states(made, hook.id)
    assert len(receiver.requests) == ATTEMPTS + 1


async def test_what_was_given_up_is_kept_in_small_numbers(clock: ManualClock) -> None:
    async with receiving(saying(b"", "405 No")) as receiver, working(MemoryRecords(), clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        for _ in range(MAX_FAILED + 5):
            made.publish(an_event())
        await wait_until(lambda: len(receiver.requests) == MAX_FAILED + 5)
        await until_states(made, hook.id, *[("failed", 1)] * MAX_FAILED)


async def test_410_disables_the_webhook(clock: ManualClock) -> None:
    async with receiving(GONE) as receiver, working(MemoryRecords(), clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        made.publish(an_event())
        await until_states(made, hook.id, ("failed", 1))
        assert "410" in (await made.get("acme", hook.id)).disabled
        await clock.advance(CACHED_S)
        made.publish(an_event())
        await wait_until(lambda: repr(made).startswith("<Webhooks: 0 events"))
        assert len(await made.deliveries("acme", hook.id)) == 1
        with pytest.raises(Conflict, match="disabled"):
            await made.test("acme", hook.id)
    assert len(receiver.requests) == 1


async def test_what_waits_for_a_webhook_that_was_disabled_is_given_up_unsent(clock: ManualClock) -> None:
    async with receiving(one_after_the_other(FAILS, GONE)) as receiver, working(MemoryRecords(), clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        made.publish(an_event())
        await until_states(made, hook.id, ("waiting", 1))
        assert (await made.test("acme", hook.id)).status == 410
        await clock.advance(10.0)
        await until_states(made, hook.id, ("failed", 1))
        assert "disabled" in (await made.deliveries("acme", hook.id))[0]["error"]
    assert len(receiver.requests) == 2


async def test_a_name_that_leads_to_this_machine_is_refused_and_not_called(clock: ManualClock) -> None:
    names = Names([PRIVATE])
    async with two_receivers(TAKES) as (_, private), working(MemoryRecords(), clock, resolver=names) as made:
        hook, _ = await made.create("acme", f"http://hooks.test:{private.port}/", ALL)
        made.publish(an_event())
        await until_states(made, hook.id, ("waiting", 1))
        (shown,) = await made.deliveries("acme", hook.id)
        assert shown["status"] is None
        assert shown["error"]
        assert not (await made.test("acme", hook.id)).delivered
        assert await private.strangers() == 0
    assert names.asked == ["hooks.test"] * 2


async def test_a_webhook_whose_name_does_not_exist_pauses_as_a_whole_and_is_disabled_in_the_end(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    names = Names([])
    async with working(MemoryRecords(), clock, resolver=names) as made:
        hook, _ = await made.create("acme", "http://hooks.test/", ALL)
        for _ in range(50):
            made.publish(an_event())
        for attempt in range(1, ATTEMPTS):
            await wait_until(lambda at=attempt: len(names.asked) >= at)
            await wait_until(lambda: "0 sending" in repr(made))
            assert len(names.asked) <= attempt + MAX_OF_WEBHOOK - 1  # the first attempts are made together
            assert not (await made.get("acme", hook.id)).disabled
            for _ in range(2):
                made.publish(an_event())
            await wait_until(lambda: repr(made).startswith("<Webhooks: 0 events"))
            ends_at = max(one["next_attempt_at"] for one in await made.deliveries("acme", hook.id))
            assert ends_at - clock.wall() >= PAUSES_S[attempt - 1] - 1
            await clock.advance(ends_at - clock.wall() + 0.001)

        async def is_disabled() -> bool:
            return "no public address" in (await made.get("acme", hook.id)).disabled

        await wait_until(is_disabled)
        await wait_until(lambda: "0 sending" in repr(made))

        async def all_failed() -> bool:
            await clock.advance(SCAN_S)
            return {state for state, _ in await states(made, hook.id)} == {"failed"}

        await wait_until(all_failed)
        assert len(names.asked) <= ATTEMPTS + MAX_OF_WEBHOOK - 1
    lines = [record.getMessage() for record in caplog.records if record.name == "warren.webhooks"]
    assert sum("webhook_name_refused" in line for line in lines) == 1
    assert sum("webhook_disabled" in line for line in lines) == 1


async def test_a_name_that_is_away_for_a_moment_disables_nothing_however_often_a_delivery_had_failed(
    clock: ManualClock,
) -> None:
    async with receiving(FAILS) as receiver:
        names = Names(*[[receiver.address]] * (ATTEMPTS - 1), [], [receiver.address])
        async with webhooks(MemoryRecords(), clock, resolver=names) as made:
            hook, _ = await made.create("acme", f"http://hooks.test:{receiver.port}/", ALL)
            made.publish(an_event())
            for attempt in range(1, ATTEMPTS + 1):
                async with delivering(made):
                    await until_states(made, hook.id, ("waiting", attempt))
                await to_the_next_attempt(clock, made, hook.id)
            async with delivering(made):
                await until_states(made, hook.id, ("failed", ATTEMPTS + 1))
            assert not (await made.get("acme", hook.id)).disabled


async def test_a_webhook_whose_name_comes_back_gets_what_waited(clock: ManualClock) -> None:
    async with receiving(TAKES) as receiver:
        names = Names([], [receiver.address])
        async with working(MemoryRecords(), clock, resolver=names) as made:
            hook, _ = await made.create("acme", f"http://hooks.test:{receiver.port}/", ALL)
            made.publish(an_event())
            await until_states(made, hook.id, ("waiting", 1))
            for _ in range(5):
                made.publish(an_event())
            await wait_until(lambda: repr(made).startswith("<Webhooks: 0 events"))
            assert len(names.asked) == 1
            assert (await made.test("acme", hook.id)).delivered  # that ends the pause of the others
            await wait_until(lambda: len(receiver.requests) == 6)
            await clock.advance(PAUSES_S[0] * (1 + SPREAD) + 0.001)
            await until_delivered(made, hook.id, receiver.requests, 7)


# -- what is deleted


async def test_nothing_is_sent_to_a_webhook_that_was_deleted(clock: ManualClock) -> None:
    records = MemoryRecords()
    async with receiving(TAKES) as receiver, webhooks(records, clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        made.publish(an_event())
        await until_states(made, hook.id, ("waiting", 0))
        await made.delete("acme", hook.id)
        other, _ = await made.create("acme", receiver.url(), ALL)
        made.publish(late := an_event())
        async with delivering(made):
            await until_delivered(made, other.id, receiver.requests, 1)
    assert ids(receiver) == [late.id]


async def test_what_was_put_in_line_by_who_had_not_heard_of_the_deletion_goes_too(clock: ManualClock) -> None:
    records = MemoryRecords()
    async with receiving(TAKES) as receiver, working(records, clock) as made, webhooks(records, clock) as other:
        hook, _ = await made.create("acme", receiver.url(), ["session.lost"])
        other.publish(an_event(kind=EventKind.SESSION_LOST))
        await until_delivered(made, hook.id, receiver.requests, 1)
        await made.delete("acme", hook.id)
        other.publish(an_event(kind=EventKind.SESSION_LOST))
        await wait_until(lambda: repr(other).startswith("<Webhooks: 0 events"))
        await clock.advance(120.0 + SCAN_S)
        await wait_until(lambda: repr(records) == "<MemoryRecords: 0>")
    assert len(receiver.requests) == 1


# -- trying it out


async def test_a_ping_says_what_came_of_it(clock: ManualClock) -> None:
    async with receiving(one_after_the_other(TAKES, FAILS)) as receiver, webhooks(MemoryRecords(), clock) as made:
        hook, secret = await made.create("acme", receiver.url(), ["session.lost"])
        good, bad = await made.test("acme", hook.id), await made.test("acme", hook.id)
        assert (good.delivered, good.status, good.error) == (True, 200, "")
        assert (bad.delivered, bad.status, bad.error) == (False, 500, "it answered 500: oh no")
        assert not await made.deliveries("acme", hook.id)
    post = posts(receiver)[0]
    assert (post.values["type"], post.values["tenant"], post.values["data"]) == ("ping", "acme", {})
    assert is_genuine(secret, post.headers, post.body, clock.wall())


async def test_pings_have_the_places_that_deliveries_have(clock: ManualClock) -> None:
    async with receiving(silent) as receiver, webhooks(MemoryRecords(), clock) as made:
        hook, _ = await made.create("acme", receiver.url(), ALL)
        pings = [asyncio.create_task(made.test("acme", hook.id)) for _ in range(MAX_OF_WEBHOOK)]
        await wait_until(lambda: receiver.connections == MAX_OF_WEBHOOK)
        with pytest.raises(RateLimited):
            await made.test("acme", hook.id)
        for ping in pings:
            ping.cancel()
        await asyncio.gather(*pings, return_exceptions=True)
        ping = asyncio.create_task(made.test("acme", hook.id))
        await wait_until(lambda: receiver.connections == MAX_OF_WEBHOOK + 1)
        ping.cancel()
        await asyncio.gather(ping, return_exceptions=True)
