"""The audit record in Redis keeps the contract; and what is special: it is shared, bounded, and Redis may be away."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio
import pytest
from contract.audit_contract import EVERYTHING, AuditContract, a_deed, all_of
from redis_server import PATIENCE_S, RedisServer, lossy_wire, running_cluster, running_redis

from warren.governance.audit.redis import RedisAudit, verify_stream
from warren.interfaces.audit import AuditLog, Query
from warren.model.audit import DROPPED, CommandText
from warren.model.errors import Unavailable
from warren.stores.redis_link import RedisLink, connect

LASTING = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture(scope="class")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="class")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as server:
        yield server


class TestRedisAudit(AuditContract):
    @pytest.fixture
    async def log(self, shared_server: RedisServer) -> AsyncIterator[AuditLog]:
        shared_server.ask("FLUSHALL")
        link = connect(shared_server.url, timeout_s=PATIENCE_S)
        log = await RedisAudit.open(link)
        yield log
        await log.close()
        await link.close()


class TestRedisAuditOnACluster(AuditContract):
    @pytest.fixture
    async def log(self, cluster: RedisServer) -> AsyncIterator[AuditLog]:
        cluster.ask("FLUSHALL")
        url = f"redis+cluster://:{cluster.password}@127.0.0.1:{cluster.port}"
        link = connect(url, timeout_s=PATIENCE_S)
        log = await RedisAudit.open(link)
        yield log
        await log.close()
        await link.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path / "redis", *LASTING) as server:
        yield server


@pytest.fixture
async def link(server: RedisServer) -> AsyncIterator[RedisLink]:
    link = connect(server.url, timeout_s=PATIENCE_S)
    yield link
    await link.close()


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)


async def found_at_last(log: AuditLog, count: int) -> list[float]:
    """What is found as soon as there is so much of it."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                entries = await all_of(log, EVERYTHING)
            except Unavailable:
                entries = []
            if len(entries) >= count:
                return [entry.at for entry in entries]
            await asyncio.sleep(0.05)


@pytest.mark.anyio
class TestShared:
    async def test_deeds_of_all_are_found_by_all(self, server: RedisServer) -> None:
        links = [connect(server.url, timeout_s=PATIENCE_S) for _ in range(3)]
        logs = [await RedisAudit.open(link) for link in links]
        for number in range(200):
            for which, log in enumerate(logs):
                log.record(a_deed(float(number), session_id=f"ses_{which}"))
        for log in logs:
            await log.find(EVERYTHING)
        found = await verify_stream(links[0])
        assert (found.entries, found.problems) == (600, [])
        for log in logs:
            for which in range(3):
                entries = await all_of(log, Query("acme", session_id=f"ses_{which}", limit=30))
                assert [entry.at for entry in entries] == [float(number) for number in range(199, -1, -1)]
        for log, link in zip(logs, links, strict=True):
            await log.close()
            await link.close()

    async def test_namespaces_are_apart_and_every_key_begins_with_its_own(
        self, server: RedisServer, link: RedisLink
    ) -> None:
        other = connect(server.url, timeout_s=PATIENCE_S, namespace="other")
        logs = [await RedisAudit.open(one) for one in (link, other)]
        logs[1].record(a_deed())
        await logs[1].find(EVERYTHING)
        assert await all_of(logs[0], EVERYTHING) == []
        assert all(name.startswith(b"{other}:") for name in server.ask("KEYS", "*"))
        for log in logs:
            await log.close()
        await other.close()

    async def test_it_is_there_after_closing_and_the_link_stays_open(self, link: RedisLink) -> None:
        log = await RedisAudit.open(link)
        for number in range(300):
            log.record(a_deed(float(number)))
        await log.close()
        again = await RedisAudit.open(link)
        assert [entry.at for entry in await all_of(again, EVERYTHING)] == [
            float(number) for number in range(299, -1, -1)
        ]
        await again.close()

    async def test_command_texts_are_left_out_if_they_are_not_wanted(self, link: RedisLink) -> None:
        log = await RedisAudit.open(link, commands=CommandText.NONE)
        log.record(a_deed(detail={"command": "ls", "exit_code": 0}))
        (found,) = await all_of(log, EVERYTHING)
        assert found.detail == {"exit_code": 0}
        await log.close()

    async def test_only_the_newest_are_kept(self, server: RedisServer, link: RedisLink) -> None:
        log = await RedisAudit.open(link, max_bytes=20_000)
        for number in range(1000):
            log.record(a_deed(float(number), detail={"path": "x" * (number % 100)}))
        entries = await all_of(log, EVERYTHING)
        assert [entry.at for entry in entries] == [999.0 - number for number in range(len(entries))]
        kept = sum(len(values[b"deed"]) for _, values in server.ask("XRANGE", "{warren}:audit", "-", "+"))
        assert 10_000 < kept < 20_000
        await log.close()

    async def test_a_bound_that_was_lowered_is_come_to(self, server: RedisServer, link: RedisLink) -> None:
        log = await RedisAudit.open(link)
        for number in range(3000):
            log.record(a_deed(float(number)))
        await log.close()
        log = await RedisAudit.open(link, max_bytes=5000)
        for number in range(5):
            log.record(a_deed(float(number)))
            await log.find(EVERYTHING)
        assert server.ask("XLEN", "{warren}:audit") < 40
        await log.close()

    async def test_a_page_after_what_is_gone_is_the_last(self, link: RedisLink) -> None:
        log = await RedisAudit.open(link, max_bytes=3000)
        for number in range(10):
            log.record(a_deed(float(number)))
        page = await log.find(Query("acme", limit=5))
        for number in range(100):
            log.record(a_deed(float(number)))
        await log.find(EVERYTHING)
        for after in (page.after, "0-0", "1-0"):
            assert (await log.find(Query("acme", after=after))).entries == []
        await log.close()

    async def test_looking_for_what_is_rare_is_done_in_bounded_steps(
        self, server: RedisServer, link: RedisLink
    ) -> None:
        log = await RedisAudit.open(link)
        log.record(a_deed(0.0, session_id="ses_rare"))
        for number in range(1, 5000):
            log.record(a_deed(float(number), detail={"path": "x" * 1900}))
        await until(lambda: server.ask("XLEN", "{warren}:audit") == 5000)
        first = await log.find(Query("acme", session_id="ses_rare"))
        assert (first.entries, bool(first.after)) == ([], True)
        assert [entry.at for entry in await all_of(log, Query("acme", session_id="ses_rare"))] == [0.0]
        await log.close()

    async def test_rubbish_in_the_stream_is_passed_over(self, server: RedisServer, link: RedisLink) -> None:
        log = await RedisAudit.open(link)
        log.record(a_deed(1.0))
        await log.find(EVERYTHING)
        server.ask("XADD", "{warren}:audit", "*", "deed", b"\xff{", "end", "1000000")
        log.record(a_deed(2.0))
        assert [entry.at for entry in await all_of(log, EVERYTHING)] == [2.0, 1.0]
        await log.close()

    async def test_an_entry_that_was_removed_or_changed_shows(self, server: RedisServer, link: RedisLink) -> None:
        log = await RedisAudit.open(link)
        for number in range(10):
            log.record(a_deed(float(number)))
        await log.close()
        found = await verify_stream(link)
        assert (found.entries, found.problems) == (10, [])
        names = [name for name, _ in server.ask("XRANGE", "{warren}:audit", "-", "+")]
        server.ask("XDEL", "{warren}:audit", names[-1])
        assert (await verify_stream(link)).problems == []
        assert (await verify_stream(link, found.head)).problems
        server.ask("XDEL", "{warren}:audit", names[4])
        assert "removed" in (await verify_stream(link)).problems[0]


@pytest.mark.anyio
class TestRedisAway:
    async def test_deeds_wait_while_it_is_gone_and_are_kept_when_it_is_back(
        self, server: RedisServer, link: RedisLink, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "warren.audit")
        log = await RedisAudit.open(link)
        log.record(a_deed(0.0))
        assert len(await all_of(log, EVERYTHING)) == 1
        server.kill()
        for number in range(1, 100):
            log.record(a_deed(float(number)))
        await until(lambda: "audit_not_written" in caplog.text)
        with pytest.raises(Unavailable, match="Redis at"):
            await log.find(EVERYTHING)
        server.start()
        assert await found_at_last(log, 100) == [float(number) for number in range(99, -1, -1)]
        assert log.dropped == 0
        await until(lambda: "audit_written_again" in caplog.text)
        assert len(caplog.records) == 2
        assert server.password not in str([record.fields for record in caplog.records])
        await log.close()

    async def test_what_is_more_than_may_wait_is_counted(self, server: RedisServer, link: RedisLink) -> None:
        log = await RedisAudit.open(link, queue_most=10)
        server.kill()
        log.record(a_deed(0.0))
        await until(lambda: "0 waiting" in repr(log))
        for number in range(1, 101):
            log.record(a_deed(float(number)))
        assert repr(log) == f"<RedisAudit 127.0.0.1:{server.port}: 10 waiting, 90 dropped>"
        server.start()
        times = await found_at_last(log, 12)
        entries = await all_of(log, EVERYTHING)
        assert [entry.at for entry in entries if entry.action != DROPPED] == [
            float(number) for number in range(10, -1, -1)
        ]
        (note,) = (entry for entry in entries if entry.action == DROPPED)
        assert note.detail == {"count": 90, "first_at": 11.0, "last_at": 100.0}
        assert len(times) == 12
        await log.close()

    async def test_a_frozen_redis_stops_nobody_and_gets_every_deed_once(self, server: RedisServer) -> None:
        link = connect(server.url, timeout_s=0.5)
        log = await RedisAudit.open(link)
        await found_at_last(log, 0)
        server.send(signal.SIGSTOP)
        try:
            for number in range(50):
                log.record(a_deed(float(number)))
            with pytest.raises(Unavailable, match="did not answer"):
                await log.find(EVERYTHING)
        finally:
            server.send(signal.SIGCONT)
        assert await found_at_last(log, 50) == [float(number) for number in range(49, -1, -1)]
        await log.close()
        await link.close()

    async def test_a_batch_whose_answer_was_lost_is_there_once(self, server: RedisServer) -> None:
        async with lossy_wire(server) as (wire, url):
            link = connect(url, timeout_s=PATIENCE_S)
            log = await RedisAudit.open(link)
            log.record(a_deed(0.0))
            await found_at_last(log, 1)
            for number in range(1, 6):
                wire.lose(number)
                log.record(a_deed(float(number)))
                await found_at_last(log, number + 1)
                assert wire.lost_all
            assert await found_at_last(log, 6) == [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
            await log.close()
            await link.close()

    async def test_closing_while_it_is_away_ends_and_counts_what_is_lost(
        self, server: RedisServer, link: RedisLink
    ) -> None:
        log = await RedisAudit.open(link)
        server.kill()
        for number in range(3):
            log.record(a_deed(float(number)))
        with anyio.fail_after(PATIENCE_S):
            await log.close()
        assert repr(log) == f"<RedisAudit 127.0.0.1:{server.port}: closed, 3 dropped>"

    async def test_a_full_redis_makes_deeds_wait(self, server: RedisServer, link: RedisLink) -> None:
        log = await RedisAudit.open(link)
        log.record(a_deed(0.0))
        await found_at_last(log, 1)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        log.record(a_deed(1.0))
        await until(lambda: "0 waiting" in repr(log))
        server.ask("CONFIG", "SET", "maxmemory", "0")
        assert await found_at_last(log, 2) == [1.0, 0.0]
        assert log.dropped == 0
        await log.close()
