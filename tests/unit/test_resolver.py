"""Look-ups of names: one tenant's silent name server does not stop another's, nor all of the tenant's own."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from ipaddress import ip_address

import pytest

from warren.sandboxes.egress.resolver import Addresses, NotResolved, Resolver

pytestmark = pytest.mark.anyio
FOUND = (ip_address("93.184.216.34"),)


class NameServers:
    """Names that begin with `slow` or `late` are answered when the test says so, `no` names do not exist."""

    def __init__(self) -> None:
        self.go_on, self.late = threading.Event(), threading.Event()
        self.asked: list[str] = []

    def look_up(self, name: str) -> Addresses:
        self.asked.append(name)
        if name.startswith("slow"):
            self.go_on.wait(60)
        if name.startswith("late"):
            self.late.wait(60)
        if name.startswith("no"):
            raise OSError("no such name")
        return FOUND


@pytest.fixture
def servers() -> Iterator[NameServers]:
    servers = NameServers()
    yield servers
    servers.go_on.set()


@pytest.fixture
async def resolver(servers: NameServers) -> AsyncIterator[Resolver]:
    resolver = Resolver(servers.look_up)
    yield resolver
    servers.go_on.set()
    await asyncio.to_thread(resolver._threads.shutdown)


async def hostile(resolver: Resolver, count: int, tenant: str = "hostile") -> list[asyncio.Task[Addresses]]:
    """Starts look-ups that nobody answers, from 10 sandboxes of one tenant."""
    tasks = [
        asyncio.create_task(resolver.resolve(f"slow{number}.{tenant}", tenant, f"{tenant} {number % 10}"))
        for number in range(count)
    ]
    await asyncio.sleep(0.05)
    return tasks


async def end(tasks: list[asyncio.Task[Addresses]]) -> list[object]:
    for task in tasks:
        task.cancel()
    return list(await asyncio.gather(*tasks, return_exceptions=True))


async def test_a_silent_name_server_stops_nobody_elses_look_ups(resolver: Resolver) -> None:
    tasks = await hostile(resolver, 420)
    begun = time.monotonic()
    for number in range(20):
        assert await resolver.resolve(f"a{number}.example", "other", "other 1") == FOUND
    assert time.monotonic() - begun < 3.0
    refused = [task.exception() for task in tasks if task.done()]
    assert len(refused) > 100
    assert all(isinstance(each, NotResolved) for each in refused)
    await end(tasks)


async def test_tenants_without_number_leave_the_next_one_a_turn(resolver: Resolver, servers: NameServers) -> None:
    tasks = [task for number in range(12) for task in await hostile(resolver, 30, f"hostile{number}")]
    waiting = asyncio.create_task(resolver.resolve("a.example", "other", "other 1"))
    await asyncio.sleep(0.05)
    servers.go_on.set()  # threads become free: the tenant that has none is first
    assert await waiting == FOUND
    assert servers.asked.index("a.example") < 80
    await end(tasks)


async def test_a_sandbox_leaves_threads_to_the_others_of_its_tenant(resolver: Resolver) -> None:
    tasks = [asyncio.create_task(resolver.resolve(f"slow{number}", "one", "first")) for number in range(100)]
    await asyncio.sleep(0.05)
    assert await resolver.resolve("a.example", "one", "second") == FOUND
    await end(tasks)


async def test_look_ups_of_a_sandbox_wait_in_their_order(resolver: Resolver, servers: NameServers) -> None:
    slow = [asyncio.create_task(resolver.resolve(f"slow{number}", "one", "first")) for number in range(7)]
    names = ["late.example", *(f"{letter}.example" for letter in "abcdef")]
    tasks = [asyncio.create_task(resolver.resolve(name, "one", "first")) for name in names]
    for number in range(4):  # others get and leave threads meanwhile
        await resolver.resolve(f"{number}.example", "two", "second")
    servers.late.set()
    await asyncio.gather(*tasks)  # in the one thread that the sandbox has left
    assert [name for name in servers.asked if name in names] == names
    await end(slow)


async def test_what_was_not_found_is_remembered_for_a_moment(resolver: Resolver, servers: NameServers) -> None:
    for _ in range(5):
        with pytest.raises(NotResolved, match="cannot be found"):
            await resolver.resolve("no.example", "one", "first")
    assert servers.asked == ["no.example"]


async def test_many_ask_for_one_name_and_it_is_looked_up_once(resolver: Resolver, servers: NameServers) -> None:
    tasks = [asyncio.create_task(resolver.resolve("slow.example", f"{n % 7}", f"{n}")) for n in range(100)]
    await asyncio.sleep(0.05)
    servers.go_on.set()
    assert set(await asyncio.gather(*tasks)) == {FOUND}
    assert servers.asked == ["slow.example"]


async def test_nothing_is_counted_when_all_is_over(resolver: Resolver, servers: NameServers) -> None:
    tasks = [*await hostile(resolver, 100), *await hostile(resolver, 100, "another")]
    await end(tasks[::2])
    servers.go_on.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(10):
        while resolver._asking:
            await asyncio.sleep(0.01)
    assert (resolver._tenants.in_all, resolver._sandboxes.in_all, resolver._places.in_all) == (0, 0, 0)
    assert resolver._waiting == {}


async def test_the_more_wait_the_earlier_they_are_given_up(resolver: Resolver) -> None:
    assert resolver._timeout_s("hostile") == 15.0
    tasks = await hostile(resolver, 420)
    assert resolver._timeout_s("hostile") < 5.0
    assert resolver._timeout_s("other") == 15.0
    await end(tasks)
