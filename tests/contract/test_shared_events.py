"""The events of a cluster in a real Redis: what one process publishes, the streams of another one send."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from redis_server import RedisServer, running_redis

from warren.governance.shared_events import EVENTS_KEPT, SharedEvents
from warren.model.events import Event, EventKind, QuotaReachedData
from warren.stores.redis_link import connect

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path / "redis") as server:
        yield server


class Coordinator:
    """What a coordinator has of the feed."""

    def __init__(self, url: str) -> None:
        self._link = connect(url, timeout_s=0.5)
        self.events = SharedEvents(self._link, poll_s=0.01)
        self.feed = self.events.feed

    async def stream(self, tenant: str = "acme", after: str = "") -> AsyncGenerator[bytes, None]:
        stream = self.feed.stream(tenant, after=after, keepalive_s=0.05)
        await anext(stream)
        return stream

    async def close(self) -> None:
        await self.events.close()
        await self._link.close()


@pytest.fixture
async def two(server: RedisServer) -> AsyncIterator[tuple[Coordinator, Coordinator]]:
    both = Coordinator(server.url), Coordinator(server.url)
    async with anyio.create_task_group() as tasks:
        for one in both:
            tasks.start_soon(one.events.run)
        await anyio.lowlevel.checkpoint()
        yield both
        tasks.cancel_scope.cancel()
    for one in both:
        await one.close()


def event(name: str, tenant: str = "acme") -> Event:
    return Event(EventKind.QUOTA_REACHED, tenant, 0.0, QuotaReachedData(name, "key"))


async def following(stream: AsyncGenerator[bytes, None], count: int) -> list[tuple[str, str]]:
    """The next ones, each as its name and its id in the stream; signs of life do not count."""
    found: list[tuple[str, str]] = []
    with anyio.fail_after(30):
        while len(found) < count:
            for frame in (await anext(stream)).decode().split("\n\n")[:-1]:
                if not frame.startswith(":"):
                    fields = dict(line.split(": ", 1) for line in frame.split("\n"))
                    data: dict[str, Any] = json.loads(fields["data"])
                    found.append((data["data"]["quota"] if "data" in data else fields["event"], fields["id"]))
    return found


async def written(coordinator: Coordinator) -> None:
    with anyio.fail_after(30):
        while repr(coordinator.events) != "<SharedEvents: 0 to be written>":
            await anyio.sleep(0.01)


async def test_every_stream_gets_the_events_of_all_processes(two: tuple[Coordinator, Coordinator]) -> None:
    here, there = two
    streams = [await here.stream(), await there.stream()]
    here.events.publish(event("a"))
    await following(streams[0], 1)
    there.events.publish(event("hidden", "other"))
    there.events.publish(event("b"))
    assert [name for name, _ in await following(streams[0], 1)] == ["b"]
    assert [name for name, _ in await following(streams[1], 2)] == ["a", "b"]


async def test_a_stream_goes_on_at_another_coordinator(two: tuple[Coordinator, Coordinator]) -> None:
    here, there = two
    stream = await here.stream()
    for name in ("a", "b", "c"):
        here.events.publish(event(name))
    seen = await following(stream, 3)
    other = await there.stream(after=seen[0][1])
    assert await following(other, 2) == seen[1:]


async def test_more_than_the_list_holds_is_a_gap(two: tuple[Coordinator, Coordinator], server: RedisServer) -> None:
    here, there = two
    stream = await there.stream()
    here.events.publish(event("first"))
    place = (await following(stream, 1))[0][1]
    await stream.aclose()
    for number in range(EVENTS_KEPT + 10):
        here.events.publish(event(str(number)))
        if number % 500 == 0:
            await written(here)
    await written(here)
    assert int(server.ask("LLEN", "{warren}:feed")) <= 4 * EVENTS_KEPT
    again = await there.stream(after=place)
    assert (await following(again, 1))[0][0] == "gap"


async def test_redis_that_forgets_or_is_away_is_a_gap_and_hurts_nobody(
    two: tuple[Coordinator, Coordinator], server: RedisServer
) -> None:
    here, _ = two
    stream = await here.stream()
    here.events.publish(event("a"))
    await following(stream, 1)
    server.ask("FLUSHALL")
    here.events.publish(event("b"))
    assert [name for name, _ in await following(stream, 2)] == ["gap", "b"]
    server.kill()
    here.events.publish(event("lost"))
    await anyio.sleep(0.3)
    server.start()
    here.events.publish(event("c"))
    assert (await following(stream, 1))[0][0] == "gap"
    await written(here)
    here.events.publish(event("c"))
    while (await following(stream, 1))[-1][0] != "c":  # the writer tells of a gap, too
        here.events.publish(event("c"))
