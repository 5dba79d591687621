"""The feed of events: whoever reads gets all of its tenant's in order, or hears that some are missing."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from warren.governance.event_feed import EventFeed
from warren.model.access import ANY_TENANT
from warren.model.errors import RateLimited, Stopping
from warren.model.events import CommandEndedData, Event, EventKind, QuotaReachedData

pytestmark = pytest.mark.anyio

Frames = AsyncGenerator[bytes, None]


def event(name: str, tenant: str = "acme", session_id: str = "") -> Event:
    return Event(EventKind.QUOTA_REACHED, tenant, 0.0, QuotaReachedData(name, "key"), session_id)


def read(frames: bytes) -> list[dict[str, Any]]:
    """Each with its kind and the id that it has in the stream."""
    found = []
    for frame in frames.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        found.append({"kind": fields["event"], "place": fields["id"], **json.loads(fields["data"])})
    return found


async def begun(stream: Frames) -> dict[str, Any]:
    (ready,) = read(await anext(stream))
    assert ready["kind"] == "ready"
    return ready


async def names(stream: Frames, count: int) -> list[str]:
    """What the next events are about; `gap` stands for itself."""
    found: list[str] = []
    with anyio.fail_after(10):
        while len(found) < count:
            found += [one["data"]["quota"] if "data" in one else one["kind"] for one in read(await anext(stream))]
    return found


async def test_events_come_in_order_to_those_they_are_for() -> None:
    feed = EventFeed()
    mine, others, everyone = feed.stream("acme"), feed.stream("other"), feed.stream("admin", of=ANY_TENANT)
    for stream in (mine, others, everyone):
        assert not (await begun(stream))["resumed"]
    for name, tenant in (("a", "acme"), ("b", "other"), ("c", "acme")):
        feed.publish(event(name, tenant))
    assert await names(mine, 2) == ["a", "c"]
    assert await names(others, 1) == ["b"]
    assert await names(everyone, 3) == ["a", "b", "c"]
    assert repr(feed) == "<EventFeed: 6 events of 3 tenants, 3 streams>"
    for stream in (mine, others, everyone):
        await stream.aclose()
    assert feed.streams == 0


async def test_a_stream_is_for_some_kinds_or_a_session() -> None:
    feed = EventFeed()
    of_session = feed.stream("acme", session_id="ses_1")
    of_kind = feed.stream("acme", kinds=["session.created"], keepalive_s=0.01)
    await begun(of_session)
    await begun(of_kind)
    feed.publish(event("a", session_id="ses_2"))
    feed.publish(event("b", session_id="ses_1"))
    ended = CommandEndedData("p", 0, "exited", 1.0, 1.0, 0, background=True)
    feed.publish(Event(EventKind.COMMAND_FINISHED, "acme", 0.0, ended, "ses_1"))
    feed.publish(event("c", session_id="ses_1"))
    assert await names(of_session, 2) == ["b", "c"]
    assert await anext(of_kind) == b": keep-alive\n\n"


async def test_a_stream_goes_on_where_it_broke_off() -> None:
    feed = EventFeed(ring=3)
    first = feed.stream("acme")
    start = (await begun(first))["place"]
    for name in ("a", "b", "c"):
        feed.publish(event(name))
    seen = read(await anext(first))
    for place, missed in ((start, ["a", "b", "c"]), (seen[1]["place"], ["c"]), (seen[2]["place"], [])):
        again = feed.stream("acme", after=place)
        assert (await begun(again))["resumed"]
        feed.publish(event("next", "other"))
        if missed:
            assert await names(again, len(missed)) == missed
        await again.aclose()
    feed.publish(event("d"))
    for place in (start, "0123456789abcdef-1", f"{feed.run}-99999", "nonsense", "\xff"):
        late = feed.stream("acme", after=place)
        assert not (await begun(late))["resumed"]
        assert await names(late, 1) == ["gap"]
        feed.publish(event("live", "acme"))
        assert await names(late, 1) == ["live"]
        await late.aclose()


async def test_a_slow_reader_hears_of_the_gap_and_holds_nothing() -> None:
    feed = EventFeed(ring=5)
    slow = feed.stream("acme")
    await begun(slow)
    for number in range(6):
        feed.publish(event(str(number)))
    assert await names(slow, 1) == ["gap"]
    feed.publish(event("after"))
    assert await names(slow, 1) == ["after"]


async def test_a_busy_tenant_pushes_out_nobody_elses_events() -> None:
    feed = EventFeed(ring=100, all_rings=1000)
    quiet = feed.stream("quiet")
    place = (await begun(quiet))["place"]
    feed.publish(event("kept", "quiet"))
    for number in range(5000):
        feed.publish(event(str(number), "busy"))
    again = feed.stream("quiet", after=place)
    assert (await begun(again))["resumed"]
    assert await names(again, 1) == ["kept"]


async def test_the_rings_are_bounded_in_all() -> None:
    feed = EventFeed(ring=10, all_rings=50)
    for number in range(1000):
        feed.publish(event("x", f"tenant-{number}"))
    assert repr(feed).startswith("<EventFeed: 50 events of")


async def test_lost_events_and_a_new_count_are_gaps() -> None:
    feed = EventFeed()
    stream = feed.stream("acme")
    place = (await begun(stream))["place"]
    feed.lose(7)
    assert await names(stream, 1) == ["gap"]
    late = feed.stream("acme", after=place)
    await begun(late)
    assert await names(late, 1) == ["gap"]
    feed.begin_again("0123456789abcdef", 3)
    assert await names(stream, 1) == ["gap"]
    feed.publish(event("on"))
    assert await names(stream, 1) == ["on"]


async def test_an_event_is_encoded_once_for_all() -> None:
    feed = EventFeed()
    streams = [feed.stream("acme") for _ in range(20)]
    for stream in streams:
        await begun(stream)
    feed.publish(event("a"))
    frames = [await anext(stream) for stream in streams]
    assert len({id(frame) for frame in frames}) == 1


async def test_a_tenant_has_so_many_streams_and_stopping_ends_them() -> None:
    feed = EventFeed(max_streams=2)
    first, second = feed.stream("acme"), feed.stream("acme", of=ANY_TENANT)
    await begun(first)
    await begun(second)
    with pytest.raises(RateLimited, match="close some"):
        await anext(feed.stream("acme"))
    await begun(feed.stream("other"))
    await second.aclose()
    third = feed.stream("acme")
    await begun(third)
    feed.close()
    for stream in (first, third):
        assert [frame async for frame in stream] == []
    with pytest.raises(Stopping):
        await anext(feed.stream("acme"))


async def test_a_stream_that_has_told_something_rests_and_tells_then_what_has_come_together() -> None:
    feed = EventFeed(rest_s=0.2)
    pieces: list[bytes] = []

    async def follow() -> None:
        stream = feed.stream("acme")
        try:
            async for piece in stream:
                pieces.append(piece)
        finally:
            await stream.aclose()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        for name in ("", "first", "a", "b", "c"):
            if name:
                feed.publish(event(name))
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
        with anyio.fail_after(10):
            while len(pieces) < 3:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert [[one["data"]["quota"] for one in read(piece)] for piece in pieces[1:]] == [["first"], ["a", "b", "c"]]


async def test_a_slow_reader_holds_nothing_that_the_ring_has_lost() -> None:
    feed = EventFeed(ring=400)
    stream = feed.stream("acme")
    await begun(stream)
    for number in range(400):
        feed.publish(event(f"{number}"))
    first = len(read(await anext(stream)))
    assert 0 < first < 400
    for number in range(400):
        feed.publish(event(f"{number}"))
    assert await names(stream, 1) == ["gap"]
    await stream.aclose()
