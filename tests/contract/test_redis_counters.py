"""Quotas that are counted in a real Redis: shared, never exceeded, and counted on while Redis is away."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from certificates import make_certificates
from contract.counters_contract import CountersContract
from redis_server import PATIENCE_S, RedisSentinel, RedisServer, running_cluster, running_redis
from server_process import free_port

from warren.governance.quotas import DAY_S, Quotas
from warren.governance.redis_counters import RedisCounters
from warren.model.access import Caller, Quota
from warren.model.errors import InvalidRequest, RateLimited, Unavailable
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

NOON = 20_000 * DAY_S + DAY_S / 2
LASTING = ("--appendonly", "yes", "--appendfsync", "always")
MANY = 100


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path / "redis", *LASTING) as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=NOON)


class Watch:
    """A time that stands still until it is set."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


class Book:
    """What was spent before, and how often somebody asked."""

    def __init__(self, spent: float = 0.0) -> None:
        self.spent = spent
        self.asked = 0
        self.away = False

    async def __call__(self, tenant: str, what: str) -> float:
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("the book is away")
        return self.spent


@asynccontextmanager
async def nodes(
    url: str, clock: ManualClock, count: int = 2, *, book: Book | None = None, namespace: str = "warren"
) -> AsyncIterator[list[Quotas]]:
    counters = [RedisCounters(url, namespace, timeout_s=PATIENCE_S) for _ in range(count)]
    some = [Quotas(clock, each, spent_before=book or Book()) for each in counters]
    try:
        yield some
    finally:
        for one in some:
            await one.close()


@asynccontextmanager
async def counting(url: str, watch: Watch, timeout_s: float = PATIENCE_S) -> AsyncIterator[RedisCounters]:
    counts = RedisCounters(url, timeout_s=timeout_s, retry_s=2.0, now=watch)
    try:
        yield counts
    finally:
        await counts.close()


async def passed(calls: list[Awaitable[object]]) -> int:
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(one, RateLimited) for one in results if isinstance(one, BaseException)), results
    return sum(one is not False and not isinstance(one, BaseException) for one in results)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not await is_so():
            await asyncio.sleep(0.01)


async def back(counts: RedisCounters, watch: Watch) -> None:
    """Lets time pass until Redis is asked and found again."""

    async def is_back() -> bool:
        watch.at += 2.0
        await counts.get("anything")
        return not counts.is_cut_off

    await until(is_back)


class TestRedisCounters(CountersContract):
    @pytest.fixture
    async def counters(self, server: RedisServer) -> AsyncIterator[RedisCounters]:
        self._server = server
        async with counting(server.url, Watch()) as counters:
            yield counters

    async def pass_time(self, name: str, seconds: float) -> None:
        key = f"{{warren}}:counts:{name}"
        if self._server.ask("TYPE", key) == b"hash":
            self._server.ask("HINCRBYFLOAT", key, "began", -seconds)
        else:
            self._server.ask("PEXPIRE", key, max(0, self._server.ask("PTTL", key) - int(seconds * 1000)))

    async def test_a_days_counter_of_the_version_before_goes_on(
        self, server: RedisServer, counters: RedisCounters
    ) -> None:
        server.ask("SET", "{warren}:counts:exec_seconds/tenant:acme/20000", 7, "EX", 60)
        assert await counters.spend("exec_seconds/tenant:acme/20000", 3, 10)
        assert not await counters.spend("exec_seconds/tenant:acme/20000", 1, 10)


class TestTwoNodes:
    async def test_of_a_hundred_requests_as_many_pass_as_may(self, server: RedisServer, clock: ManualClock) -> None:
        caller = Caller("acme", "key_1", quota=Quota(requests_per_minute=30), key_quota=Quota(requests_per_minute=60))
        async with nodes(server.url, clock) as some:
            assert await passed([some[n % 2].request(caller) for n in range(MANY)]) == 30

    async def test_of_a_hundred_creates_as_many_pass_as_may(self, server: RedisServer, clock: ManualClock) -> None:
        caller = Caller("acme", quota=Quota(creates_per_minute=17))
        async with nodes(server.url, clock) as some:
            assert await passed([some[n % 2].create(caller) for n in range(MANY)]) == 17

    @pytest.mark.parametrize(("what", "amount", "most"), [("exec_seconds", 1, 60), ("bytes_out", 300, 10_000)])
    async def test_a_days_quota_is_never_exceeded(
        self, server: RedisServer, clock: ManualClock, what: str, amount: int, most: int
    ) -> None:
        caller = Caller("acme", quota=Quota.from_mapping({f"{what}_per_day": most}))
        async with nodes(server.url, clock) as some:
            spent = await passed([some[n % 2].spend(caller, what, amount) for n in range(MANY)])
            assert spent == most // amount
            assert [await one.spend(caller, what, amount) for one in some] == [False, False]
            assert [await one.left(caller, what) for one in some] == [0, 0]
            await clock.advance(DAY_S)
            assert await some[1].spend(caller, what, most)
            assert not await some[0].spend(caller, what, 1)

    async def test_what_was_spent_before_counts_once_however_many_begin(
        self, server: RedisServer, clock: ManualClock
    ) -> None:
        caller, book = Caller("acme", quota=Quota(exec_seconds_per_day=100)), Book(40.0)
        async with nodes(server.url, clock, 5, book=book) as some:
            assert await passed([some[n % 5].spend(caller, "exec_seconds", 1) for n in range(MANY)]) == 60
            assert 1 <= book.asked <= 5
        book.spent = 100.0
        async with nodes(server.url, clock, 1, book=book) as (late,):
            more = Caller("acme", quota=Quota(exec_seconds_per_day=110))
            await late.spend_again(more, "exec_seconds", 5)
            assert await passed([late.spend(more, "exec_seconds", 1) for _ in range(20)]) == 10
            assert book.asked <= 5

    async def test_who_begins_late_does_not_undo_what_was_spent_meanwhile(self, server: RedisServer) -> None:
        async with counting(server.url, Watch()) as one, counting(server.url, Watch()) as other:
            assert [await each.spend("day", 1, 10) for each in (one, other)] == [None, None]
            await one.begin("day", 60, 3)
            assert await one.spend("day", 4, 10)
            await other.begin("day", 60, 3)
            assert await other.get("day") == 7
            assert [await other.spend("day", 3, 10), await one.spend("day", 1, 10)] == [True, False]

    async def test_when_redis_has_lost_its_data_the_book_counts_again(
        self, server: RedisServer, clock: ManualClock
    ) -> None:
        caller, book = Caller("acme", quota=Quota(exec_seconds_per_day=10)), Book()
        async with nodes(server.url, clock, book=book) as some:
            assert await some[0].spend(caller, "exec_seconds", 6)
            book.spent = 6.0
            server.ask("FLUSHALL")
            assert await passed([some[n % 2].spend(caller, "exec_seconds", 1) for n in range(20)]) == 4

    async def test_a_refusal_costs_nothing_when_the_quota_is_raised(
        self, server: RedisServer, clock: ManualClock
    ) -> None:
        async with nodes(server.url, clock) as some:
            caller = Caller("acme", quota=Quota(exec_seconds_per_day=10))
            assert await passed([some[n % 2].spend(caller, "exec_seconds", 1) for n in range(50)]) == 10
            more = Caller("acme", quota=Quota(exec_seconds_per_day=15))
            assert await passed([some[n % 2].spend(more, "exec_seconds", 1) for n in range(50)]) == 5

    async def test_every_key_begins_with_the_namespace_and_expires(
        self, server: RedisServer, clock: ManualClock
    ) -> None:
        caller = Caller(
            "acme",
            quota=Quota(requests_per_minute=5, creates_per_minute=5, exec_seconds_per_day=5, bytes_out_per_day=5),
        )
        async with nodes(server.url, clock, 1, namespace="mine") as (one,):
            await one.request(caller)
            await one.create(caller)
            for what in ("exec_seconds", "bytes_out"):
                await one.spend(caller, what, 1)
                assert not await one.spend(caller, what, 5)
        names = server.ask("KEYS", "*")
        assert len(names) == 4
        assert all(name.startswith(b"{mine}:") for name in names)
        assert all(0 < server.ask("TTL", name) <= DAY_S for name in names)
        async with nodes(server.url, clock, 1, namespace="other") as (one,):
            assert await one.spend(caller, "bytes_out", 5)


class TestEveryKindOfAddress:
    async def _counts(self, urls: list[str], clock: ManualClock) -> None:
        caller = Caller("acme", quota=Quota(requests_per_minute=10, exec_seconds_per_day=10))
        for url in urls:
            async with nodes(url, clock, namespace=str(len(url))) as some:
                assert await passed([some[n % 2].request(caller) for n in range(30)]) == 10
                assert await passed([some[n % 2].spend(caller, "exec_seconds", 1) for n in range(30)]) == 10

    async def test_a_socket(self, server: RedisServer, clock: ManualClock) -> None:
        await self._counts([f"unix://:{server.password}@{server.socket}?db=3"], clock)
        assert server.ask("DBSIZE") == 0

    async def test_tls(self, tmp_path: Path, clock: ManualClock) -> None:
        made = make_certificates(tmp_path)
        made.cert.rename(tmp_path / "server.crt")
        made.key.rename(tmp_path / "server.key")
        with running_redis(tmp_path / "tls", tls_files=str(tmp_path / "server")) as server:
            url = server.tls_url
            await self._counts([f"{url}?ssl_ca_certs={made.ca}", f"{url}?ssl_cert_reqs=none"], clock)

    async def test_sentinel(self, server: RedisServer, tmp_path: Path, clock: ManualClock) -> None:
        sentinel = RedisSentinel(tmp_path / "sentinel", server)
        sentinel.start()
        try:
            await self._counts([sentinel.url], clock)
        finally:
            sentinel.kill()

    async def test_cluster(self, tmp_path: Path, clock: ManualClock) -> None:
        with running_cluster(tmp_path / "cluster") as server:
            await self._counts([f"redis+cluster://:{server.password}@127.0.0.1:{server.port}"], clock)

    def test_what_is_none_is_refused_at_once(self) -> None:
        with pytest.raises(InvalidRequest):
            RedisCounters("http://127.0.0.1")


class TestRedisAway:
    async def test_counting_goes_on_from_where_it_was_and_comes_back(
        self, server: RedisServer, clock: ManualClock
    ) -> None:
        caller, book, watch = Caller("acme", quota=Quota(exec_seconds_per_day=50)), Book(), Watch()
        async with counting(server.url, watch) as counts, nodes(server.url, clock, 1, book=book) as (other,):
            quotas = Quotas(clock, counts, spent_before=book)
            assert await other.spend(caller, "exec_seconds", 10)
            assert await quotas.spend(caller, "exec_seconds", 10)
            server.kill()
            book.away = True
            assert await passed([quotas.spend(caller, "exec_seconds", 1) for _ in range(5)]) == 5
            assert await quotas.left(caller, "exec_seconds") == 25
            assert repr(counts) == f"<RedisCounters in memory, 127.0.0.1:{server.port} is away>"
            server.start()
            await back(counts, watch)
            assert await other.left(caller, "exec_seconds") == 25
            assert await passed([other.spend(caller, "exec_seconds", 1) for _ in range(50)]) == 25
            assert not await quotas.spend(caller, "exec_seconds", 1)

    async def test_a_frozen_redis_holds_up_nobody_for_long(self, server: RedisServer, clock: ManualClock) -> None:
        caller, watch = Caller("acme", quota=Quota(requests_per_minute=40, exec_seconds_per_day=40)), Watch()
        async with counting(server.url, watch, timeout_s=0.5) as counts:
            quotas = Quotas(clock, counts, spent_before=Book())
            assert await quotas.spend(caller, "exec_seconds", 1)
            server.send(signal.SIGSTOP)
            try:
                with anyio.fail_after(PATIENCE_S):
                    assert await passed([quotas.spend(caller, "exec_seconds", 1) for _ in range(200)]) == 39
                    assert await passed([quotas.request(caller) for _ in range(200)]) == 40
                    watch.at += 10
                    assert not await quotas.spend(caller, "exec_seconds", 1)  # asked in the background: nobody waits
                    assert counts.is_cut_off
            finally:
                server.send(signal.SIGCONT)
            await back(counts, watch)
            assert not await quotas.spend(caller, "exec_seconds", 1)

    async def test_who_begins_a_day_while_it_is_away_begins_with_nothing(self, clock: ManualClock) -> None:
        book, watch = Book(), Watch()
        book.away = True
        caller = Caller("acme", quota=Quota(exec_seconds_per_day=10, requests_per_minute=5))
        async with counting(f"redis://127.0.0.1:{free_port()}", watch) as counts:
            quotas = Quotas(clock, counts, spent_before=book)
            assert await passed([quotas.spend(caller, "exec_seconds", 1) for _ in range(20)]) == 10
            assert await passed([quotas.request(caller) for _ in range(20)]) == 5

    async def test_a_book_that_is_away_while_redis_is_there_lets_nothing_begin(
        self, server: RedisServer, clock: ManualClock
    ) -> None:
        caller, book = Caller("acme", quota=Quota(exec_seconds_per_day=10)), Book(10.0)
        book.away = True
        async with nodes(server.url, clock, 1, book=book) as (one,):
            with pytest.raises(Unavailable, match="the book is away"):
                await one.spend(caller, "exec_seconds", 1)
            book.away = False
            assert not await one.spend(caller, "exec_seconds", 1)

    async def test_it_is_asked_again_no_sooner_than_it_should(
        self, server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        watch = Watch()
        async with counting(server.url, watch) as counts:
            await counts.begin("day", 60, 0)
            server.kill()
            assert await counts.get("day") == 0
            server.start()
            before = server.calls("evalsha")
            watch.at += 1.9
            for _ in range(5):
                await counts.get("day")
            await asyncio.sleep(0.05)
            assert (server.calls("evalsha") - before, counts.is_cut_off) == (0, True)
            await back(counts, watch)
        records = [record for record in caplog.records if record.name == "warren.quotas"]
        assert [record.message for record in records] == ["quotas_redis_lost", "quotas_redis_back"]
        assert {str(record.fields["redis"]) for record in records} == {f"127.0.0.1:{server.port}"}
        assert server.password not in caplog.text

    async def test_who_counts_after_closing_counts_in_memory(self, server: RedisServer) -> None:
        watch = Watch()
        counts = RedisCounters(server.url, timeout_s=PATIENCE_S, now=watch)
        await counts.begin("day", 60, 3)
        await counts.close()
        watch.at += 100
        await counts.begin("day", 60, 0)
        assert await counts.spend("day", 1, 10)
        assert counts.is_cut_off
        assert server.ask("GET", "{warren}:counts:day") == b"3"

    async def test_what_was_spent_meanwhile_is_not_paid_twice_when_redis_has_lost_its_data(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        caller, book, watch = Caller("acme", quota=Quota(exec_seconds_per_day=20)), Book(), Watch()
        with running_redis(tmp_path / "forgetful") as server:
            async with counting(server.url, watch) as counts:
                quotas = Quotas(clock, counts, spent_before=book)
                assert await quotas.spend(caller, "exec_seconds", 5)
                server.kill()
                assert await quotas.spend(caller, "exec_seconds", 5)
                book.spent = 10.0
                server.start()
                await back(counts, watch)
                assert await passed([quotas.spend(caller, "exec_seconds", 1) for _ in range(20)]) == 10
