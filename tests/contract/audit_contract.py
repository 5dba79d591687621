"""What every audit record promises (interfaces/audit.py)."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from warren.interfaces.audit import AuditLog, AuditPage, Query
from warren.model.audit import DROPPED, AuditEntry
from warren.model.errors import InvalidRequest, Unavailable

EVERYTHING = Query(None, limit=1000)


def a_deed(at: Any = 1.0, **values: Any) -> AuditEntry:
    return AuditEntry(**{"at": at, "action": "run_command", "tenant": "acme", **values})


async def all_of(log: AuditLog, query: Query) -> list[AuditEntry]:
    """Every page, to the end."""
    entries: list[AuditEntry] = []
    after = ""
    while True:
        page = await log.find(_after(query, after))
        entries += page.entries
        if not page.after:
            return entries
        assert page.after != after
        after = page.after


def _after(query: Query, after: str) -> Query:
    return Query(
        query.tenant,
        query.since,
        query.until,
        query.session_id,
        query.key_id,
        query.action,
        query.limit,
        after,
    )


@pytest.mark.anyio
class AuditContract:
    @pytest.fixture
    async def log(self) -> AsyncIterator[AuditLog]:
        raise NotImplementedError
        yield

    async def test_a_deed_is_found_as_it_was_recorded(self, log: AuditLog) -> None:
        entry = AuditEntry(
            at=1_800_000_000.1234567,
            action="run_command",
            tenant="acme",
            key_id="key_1",
            client="192.0.2.7",
            request_id="req_1",
            session_id="ses_1",
            status=200,
            result="ok",
            duration_ms=12.75,
            detail={"command": "echo 'ü 🐇'\n\x1b[31m", "exit_code": 0, "deep": {"list": [1, None, True, "x"]}},
        )
        log.record(entry)
        assert (await log.find(EVERYTHING)).entries == [entry]

    async def test_nothing_is_found_where_nothing_was_recorded(self, log: AuditLog) -> None:
        assert await log.find(EVERYTHING) == AuditPage([])

    async def test_the_newest_come_first(self, log: AuditLog) -> None:
        for number in range(50):
            log.record(a_deed(float(number)))
        assert [entry.at for entry in await all_of(log, EVERYTHING)] == [float(number) for number in range(49, -1, -1)]

    @pytest.mark.parametrize("limit", [1, 7, 50, 1000])
    async def test_pages_follow_each_other_without_gap_or_repetition(self, log: AuditLog, limit: int) -> None:
        for number in range(50):
            log.record(a_deed(float(number)))
        entries = await all_of(log, Query("acme", limit=limit))
        assert [entry.at for entry in entries] == [float(number) for number in range(49, -1, -1)]

    async def test_a_page_stays_where_it_was_while_more_is_recorded(self, log: AuditLog) -> None:
        for number in range(10):
            log.record(a_deed(float(number)))
        first = await log.find(Query("acme", limit=5))
        for number in range(10, 20):
            log.record(a_deed(float(number)))
        second = await log.find(Query("acme", limit=5, after=first.after))
        assert [entry.at for entry in second.entries] == [4.0, 3.0, 2.0, 1.0, 0.0]

    async def test_a_tenant_finds_its_own_deeds_and_no_others(self, log: AuditLog) -> None:
        for tenant in ("acme", "other", "", "acme2", "*"):
            log.record(a_deed(tenant=tenant, detail={"tenant": "acme", "command": '"tenant":"acme"'}))
        assert [entry.tenant for entry in await all_of(log, Query("acme"))] == ["acme"]
        assert [entry.tenant for entry in await all_of(log, Query("*"))] == ["*"]
        assert [entry.tenant for entry in await all_of(log, Query(""))] == [""]
        assert len(await all_of(log, EVERYTHING)) == 5

    async def test_every_field_of_a_query_narrows_it(self, log: AuditLog) -> None:
        odd = a_deed(5.0, session_id="ses_é\x7f", key_id="key_2", action="session.expired")
        for entry in (a_deed(4.0, session_id="ses_1", key_id="key_1"), odd, a_deed(6.0)):
            log.record(entry)
        for query in (
            Query("acme", session_id="ses_é\x7f"),
            Query("acme", key_id="key_2"),
            Query(None, action="session.expired"),
            Query(None, since=5.0, until=6.0),
        ):
            assert await all_of(log, query) == [odd]
        assert len(await all_of(log, Query("acme", since=5.0))) == 2
        assert len(await all_of(log, Query("acme", until=5.0))) == 1
        assert await all_of(log, Query("acme", since=6.5)) == []

    async def test_a_limit_is_kept_within_reason(self, log: AuditLog) -> None:
        for number in range(1005):
            log.record(a_deed(float(number)))
        assert len((await log.find(Query("acme", limit=10**9))).entries) == 1000
        for limit in (0, -5):
            assert len((await log.find(Query("acme", limit=limit))).entries) == 1

    @pytest.mark.parametrize("after", ["x", "-1", "1-", "../../etc/passwd", "9" * 100, "1-1-1", "²", "1\n"])
    async def test_a_page_it_never_gave_is_refused(self, log: AuditLog, after: str) -> None:
        log.record(a_deed())
        with pytest.raises(InvalidRequest, match="no page of the audit record"):
            await log.find(Query("acme", after=after))

    async def test_secrets_are_not_kept(self, log: AuditLog) -> None:
        log.record(a_deed(detail={"command": "login hunter22 --token=abc", "path": "/hunter22"}), ["hunter22"])
        (found,) = (await log.find(EVERYTHING)).entries
        assert found.detail == {"command": "login [redacted] --token=[redacted]", "path": "/[redacted]"}

    async def test_what_is_too_long_is_cut(self, log: AuditLog) -> None:
        log.record(a_deed(detail={"command": "echo " + "x " * 100_000}))
        (found,) = (await log.find(EVERYTHING)).entries
        assert len(found.detail["command"]) < 2200
        assert found.detail["command"].endswith("[cut: it had 200005 characters]")

    async def test_whatever_is_in_a_deed_recording_does_not_raise(self, log: AuditLog) -> None:
        class Odd:
            def __str__(self) -> str:
                raise RuntimeError("no")

        endless: list[object] = []
        endless.append(endless)
        lost = [a_deed(tenant=Odd()), a_deed(detail=None), a_deed(None), a_deed("x"), a_deed(status="x")]
        kept = [a_deed(detail={"odd": Odd()}), a_deed(detail={"odd": endless}), a_deed(float("nan"))]
        for entry in (*lost, *kept):
            log.record(entry)
        log.record(a_deed(), [None])  # type: ignore[list-item]
        found = [entry for entry in await all_of(log, EVERYTHING) if entry.action != DROPPED]
        assert found == [a_deed(0), a_deed(detail={"odd": [[["<list>"]]]}), a_deed(detail={"odd": "<Odd>"})]
        log.record(a_deed(4.0))
        dropped = [entry for entry in await all_of(log, EVERYTHING) if entry.action == DROPPED]
        assert {entry.tenant for entry in dropped} == {"", "acme"}
        assert sum(entry.detail["count"] for entry in dropped) == len(lost) + 1

    async def test_deeds_from_many_threads_all_arrive_whole(self, log: AuditLog) -> None:
        def record(thread: int) -> None:
            for number in range(100):
                log.record(a_deed(float(number), session_id=f"ses_{thread}", detail={"command": "x" * number}))

        threads = [threading.Thread(target=record, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        for number in range(8):
            entries = await all_of(log, Query("acme", session_id=f"ses_{number}"))
            assert [entry.at for entry in entries] == [float(number) for number in range(99, -1, -1)]

    async def test_many_may_look_while_it_is_written(self, log: AuditLog) -> None:
        async def look() -> None:
            entries = await all_of(log, Query("acme", limit=10))
            assert [entry.at for entry in entries] == sorted((entry.at for entry in entries), reverse=True)

        for number in range(200):
            log.record(a_deed(float(number)))
            if number % 50 == 0:
                await asyncio.gather(*(look() for _ in range(3)))
        assert len(await all_of(log, EVERYTHING)) == 200

    async def test_a_closed_record_takes_nothing_and_says_so_when_asked(self, log: AuditLog) -> None:
        await log.close()
        await log.close()
        log.record(a_deed())
        with pytest.raises(Unavailable, match="closed"):
            await log.find(EVERYTHING)
