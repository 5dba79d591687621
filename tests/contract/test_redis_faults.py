"""What the store in Redis does when Redis is away, frozen, full, restarted, or emptied, and when answers get lost."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from contract.records_contract import a_record
from contract.store_values import EPOCH, S, a_key, a_session, added, ended, swapped
from redis_server import (
    PATIENCE_S,
    LossyWire,
    RedisServer,
    lossy_wire,
    running_cluster,
    running_redis,
    wait_for_cluster,
    wait_until,
)
from server_process import free_port

from warren.app.cluster_wiring import wait_for_redis_time
from warren.interfaces.store import Added, KeyRecord, Page
from warren.kernel.clock import boot_time
from warren.model.errors import KeyReused, NoSpace, Unavailable
from warren.stores import redis_records, redis_scripts
from warren.stores.redis_link import connect
from warren.stores.redis_lua import LuaScript
from warren.stores.redis_store import RedisStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open(server.url, timeout_s=PATIENCE_S)
    yield store
    await store.close()


@pytest.fixture
async def lossy(server: RedisServer) -> AsyncIterator[tuple[LossyWire, RedisStore]]:
    _load_scripts(server)
    async with lossy_wire(server) as (wire, url):
        store = await RedisStore.open(url, timeout_s=PATIENCE_S)
        yield wire, store
        await store.close()


async def test_answers_that_come_late_do_not_make_a_clock_late(server: RedisServer) -> None:
    async with lossy_wire(server) as (wire, url):
        wire.delay(*[0.1] * 8)
        link = connect(url)
        offset_s = await wait_for_redis_time(link)
        await link.close()
    assert abs(offset_s - (time.time() - boot_time())) < 0.03


class TestAnswersThatGetLost:
    """The change was made, and its answer went with the connection: the caller gets the right answer all the same."""

    async def test_a_new_session_is_new(self, lossy: tuple[LossyWire, RedisStore]) -> None:
        wire, store = lossy
        for key, thread_id in ((None, ""), (None, "t"), (a_key(), ""), (a_key("other"), "u")):
            session = a_session(thread_id=thread_id)
            wire.lose()
            assert await store.add(session, key) == (session, Added.NEW)
            assert wire.lost_all
        assert len(await store.active()) == 4

    async def test_a_key_remembered_for_the_session_of_a_thread_gives_that_as_the_threads(
        self, lossy: tuple[LossyWire, RedisStore]
    ) -> None:
        wire, store = lossy
        session = await added(store, thread_id="t")
        wire.lose()
        assert await store.add(a_session(thread_id="t"), a_key()) == (session, Added.THREAD)
        assert await store.add(a_session(thread_id="t"), a_key()) == (session, Added.KEY)

    async def test_an_id_that_another_gave_is_still_a_conflict(self, lossy: tuple[LossyWire, RedisStore]) -> None:
        wire, store = lossy
        session = await added(store, a_key())
        wire.lose()
        with pytest.raises(KeyReused):
            await store.add(a_session(), a_key(fingerprint="two"))
        wire.lose()
        assert await store.add(a_session(), a_key()) == (session, Added.KEY)

    async def test_a_change_that_was_made_was_made(self, lossy: tuple[LossyWire, RedisStore]) -> None:
        wire, store = lossy
        session = await added(store)
        for state in (S.RUNNING, S.RUNNING, S.STOPPING, S.ENDED):
            wire.lose()
            session = await swapped(store, session, state)
            assert wire.lost_all
        assert await store.get("acme", session.id) == session

    async def test_a_change_that_another_was_faster_with_was_not_made(
        self, lossy: tuple[LossyWire, RedisStore], store: RedisStore
    ) -> None:
        wire, mine = lossy
        session = await added(store)
        theirs = await swapped(store, session, S.RUNNING, detail="theirs")
        wire.lose()
        assert not await mine.swap(session.moved_to(S.RUNNING, detail="mine"))
        assert await store.get("acme", session.id) == theirs

    async def test_a_claimed_key_is_the_claimers(self, lossy: tuple[LossyWire, RedisStore]) -> None:
        wire, store = lossy
        wire.lose()
        assert await store.claim_key(a_key(), EPOCH, 1.0) is None
        wire.lose()
        await store.answer_key(a_key(), "42")
        wire.lose()
        assert await store.claim_key(a_key(), EPOCH, 1.0) == KeyRecord("one", "42")
        wire.lose()
        await store.release_key(a_key())
        assert await store.claim_key(a_key(), EPOCH, 1.0) is None

    async def test_records_are_put_and_deleted_once(self, lossy: tuple[LossyWire, RedisStore]) -> None:
        wire, store = lossy
        for put in (a_record(), a_record().changed("more")):
            wire.lose()
            assert await store.records.put(put)
        wire.lose()
        assert await store.records.delete("note", "one")
        wire.lose()
        assert not await store.records.delete("note", "one")

    async def test_lost_twice_is_unavailable(self, lossy: tuple[LossyWire, RedisStore], server: RedisServer) -> None:
        wire, store = lossy
        session = await added(store)
        wire.lose(2)
        with pytest.raises(Unavailable, match=f"Redis at 127.0.0.1:{wire.port}"):
            await store.get("acme", session.id)
        assert await store.get("acme", session.id) == session


class TestTriedAgainLater:
    """The second try comes when others have been at it in the meantime."""

    async def test_a_key_that_was_released_and_claimed_by_another_is_not_released_again(
        self, store: RedisStore, server: RedisServer
    ) -> None:
        key = a_key()
        release = (
            "EVAL",
            redis_scripts.RELEASE_KEY.text,
            1,
            "{warren}",
            "",
            "0123456789ab",
            key.tenant,
            key.scope,
            key.key,
        )
        await store.claim_key(key, EPOCH, 1.0)
        server.ask(*release, key.fingerprint)
        assert await store.claim_key(key, EPOCH, 1.0) is None
        server.ask(*release, key.fingerprint)
        assert await store.claim_key(key, EPOCH, 1.0) == KeyRecord("one")

    async def test_a_record_that_was_deleted_and_put_again_is_not_deleted_again(
        self, store: RedisStore, server: RedisServer
    ) -> None:
        delete = "EVAL", redis_records.DELETE.text, 1, "{warren}", "", "0123456789ab", "note", "one"
        assert server.ask(*delete)[1] == 0
        await store.records.put(a_record())
        assert server.ask(*delete)[1] == 1
        await store.records.put(a_record())
        assert server.ask(*delete)[1] == 1
        assert await store.records.get("note", "one") == a_record()

    async def test_a_change_that_others_have_changed_since_was_made_all_the_same(
        self, store: RedisStore, server: RedisServer
    ) -> None:
        record = a_record()
        tries = []
        for token, put in (("0" * 12, record), ("1" * 12, record.changed("mine"))):
            values = put.kind, put.id, put.value, put.version, put.group, ""
            tries.append(("EVAL", redis_records.PUT.text, 1, "{warren}", "", token, *values))
            assert server.ask(*tries[-1])[1] == 1
        for version in range(2, 8):
            assert [server.ask(*one)[1] for one in tries] == [1, 1]
            assert await store.records.put(a_record(value="theirs", version=version + 1))
        found = await store.records.get("note", "one")
        assert found == a_record(value="theirs", version=8)
        assert server.ask(*tries[0][:5], "2" * 12, *tries[0][6:])[1] == 0


class TestRestarts:
    async def test_idle_connections_may_be_cut_at_any_time(self, store: RedisStore, server: RedisServer) -> None:
        await asyncio.gather(*(added(store) for _ in range(20)))
        for _ in range(3):
            server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            answers = await asyncio.gather(*(store.add(a_session(thread_id="t")) for _ in range(20)))
            assert len({session.id for session, _ in answers}) == 1
        assert len(await store.active()) == 21

    async def test_an_empty_redis_after_a_restart_is_an_empty_store(
        self, store: RedisStore, server: RedisServer
    ) -> None:
        session = await added(store)
        server.kill()
        with pytest.raises(Unavailable, match=f"Redis at 127.0.0.1:{server.port} cannot be reached") as caught:
            await store.get("acme", session.id)
        assert caught.value.retry_after_s
        server.start()
        with pytest.raises(Unavailable, match="has lost its data"):
            await store.get("acme", session.id)
        assert not await store.swap(session.moved_to(S.RUNNING))
        await _refused_until_settled(store, server)
        await added(store)

    async def test_flushed_scripts_and_flushed_data_do_no_harm(self, store: RedisStore, server: RedisServer) -> None:
        session = await added(store, a_key(), thread_id="t")
        server.ask("SCRIPT", "FLUSH")
        assert await store.of_thread("acme", "t") == session
        server.ask("FLUSHALL")
        with pytest.raises(Unavailable, match="has lost its data"):
            await store.of_thread("acme", "t")
        assert await store.count() == dict.fromkeys(S, 0)
        await _refused_until_settled(store, server)
        again = await added(store, a_key(), thread_id="t")
        await ended(store, again, ended=1.0)
        assert await store.purge(EPOCH, 2.0) == 1

    async def test_a_cluster_that_was_restarted_is_found_again(self, tmp_path: Path) -> None:
        with running_cluster(tmp_path) as server:
            url = f"redis+cluster://:{server.password}@127.0.0.1:{free_port()},127.0.0.1:{server.port}"
            store = await RedisStore.open(url, timeout_s=PATIENCE_S)
            await added(store)
            server.kill()
            server.start()
            wait_for_cluster(server)
            await _refused_until_settled(store, server)
            await added(store)
            assert len(await store.active()) == 1
            await store.close()


class TestFrozenRedis:
    async def test_it_is_told_in_time_and_the_change_is_not_made_late(
        self, store: RedisStore, server: RedisServer
    ) -> None:
        session = await added(store)
        _load_scripts(server)
        hasty = await RedisStore.open(server.url, timeout_s=0.5)
        assert await _soon(hasty.get, "acme", session.id) == session
        before = server.calls("evalsha")
        server.send(signal.SIGSTOP)
        try:
            with pytest.raises(Unavailable, match=r"did not answer within 0\.5 s") as caught:
                await hasty.swap(session.moved_to(S.RUNNING))
            assert caught.value.retry_after_s
        finally:
            server.send(signal.SIGCONT)
        wait_until(lambda: server.calls("evalsha") > before, "the change never arrived")
        assert await store.get("acme", session.id) == session
        assert await _soon(hasty.get, "acme", session.id) == session
        await hasty.close()

    async def test_it_is_not_held_for_frozen_but_asked_once_more_when_this_process_stood_still(
        self, store: RedisStore, server: RedisServer
    ) -> None:
        session = await added(store)
        hasty = await RedisStore.open(server.url, timeout_s=0.5)
        assert await _soon(hasty.get, "acme", session.id) == session
        server.send(signal.SIGSTOP)
        try:
            asked = asyncio.create_task(swapped(hasty, session, S.RUNNING))
            await asyncio.sleep(0.1)
            time.sleep(1.0)  # noqa: ASYNC251  the event loop is to stand still
        finally:
            server.send(signal.SIGCONT)
        changed = await asked
        assert await asyncio.gather(*[hasty.get("acme", session.id) for _ in range(5)]) == [changed] * 5
        await hasty.close()

    async def test_a_clock_that_was_set_stops_nobody(self, store: RedisStore) -> None:
        session = await added(store)
        for hours in (-10, 10):
            assert store._link._ahead_s is not None
            store._link._ahead_s += hours * 3600
            session = await swapped(store, session, S.RUNNING)
        assert await store.get("acme", session.id) == session

    async def test_a_script_whose_time_is_over_is_not_run_for_ever(self, store: RedisStore) -> None:
        """The client can swallow the time-out around it (Python 3.11)."""
        over = asyncio.get_running_loop().time() - 0.1
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(TimeoutError):
                await store._link._run_in_time(redis_scripts.GET, (b"token", b"acme", b"none"), over)


class TestFullRedis:
    async def test_nothing_new_is_taken_and_what_there_is_can_be_ended(
        self, store: RedisStore, server: RedisServer
    ) -> None:
        held = await added(store, a_key(), thread_id="t", state=S.RUNNING)
        server.ask("CONFIG", "SET", "maxmemory", 1)
        late = a_session(thread_id="late")
        for write in (
            lambda: store.add(late),
            lambda: store.add(late, a_key("late")),
            lambda: store.add(a_session(thread_id="t"), a_key("late")),
            lambda: store.swap(held.changed(used=140.0)),
            lambda: store.claim_key(a_key("late"), EPOCH, 1.0),
            lambda: store.answer_key(a_key(), "x"),
            lambda: store.records.put(a_record()),
        ):
            with pytest.raises(NoSpace, match=f"Redis at 127.0.0.1:{server.port} has no memory left") as caught:
                await write()
            assert "maxmemory" in caught.value.remedy
        assert list(await store.active()) == [held]
        assert await store.of_thread("acme", "late") is None
        await ended(store, held, ended=1.0)
        assert await store.purge(EPOCH, 2.0) == 1
        server.ask("CONFIG", "SET", "maxmemory", 0)
        assert await store.claim_key(a_key("late"), EPOCH, 1.0) is None
        assert await store.add(late) == (late, Added.NEW)
        assert await store.count() == {**dict.fromkeys(S, 0), S.CREATING: 1}


class TestManyAtOnce:
    async def test_forty_stores_in_eight_processes_make_one_session_for_a_thread(self, server: RedisServer) -> None:
        children = [_claimer(server.url, 5) for _ in range(8)]
        for child in children:
            assert child.stdout is not None
            assert await asyncio.to_thread(child.stdout.readline) == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        lines = [line for child in children for line in (await asyncio.to_thread(child.communicate))[0].split("\n")]
        answers = [line.split() for line in lines if line]
        assert len(answers) == 40
        assert len({session_id for session_id, _ in answers}) == 1
        assert [which for _, which in answers].count(Added.NEW) == 1
        store = await RedisStore.open(server.url, timeout_s=PATIENCE_S)
        assert [one.id for one in await store.list("acme", Page())] == [answers[0][0]]
        await store.close()

    async def test_a_thousand_calls_at_once_share_few_connections(self, store: RedisStore, server: RedisServer) -> None:
        await asyncio.gather(*(added(store) for _ in range(1000)))
        assert len(await store.active()) == 1000
        assert len(server.ask("CLIENT", "LIST").splitlines()) <= 70


def _load_scripts(server: RedisServer) -> None:
    """Else it is only the complaint about an unknown script that gets lost or comes late."""
    for script in (*vars(redis_scripts).values(), *vars(redis_records).values()):
        if isinstance(script, LuaScript):
            assert server.ask("SCRIPT", "LOAD", script.text) == script.sha.encode()


async def _soon(call: Callable[..., Awaitable[object]], *values: object) -> object:
    """A hasty store on a busy machine may be too hasty; then it tries again."""
    for _ in range(100):
        try:
            return await call(*values)
        except Unavailable:
            continue
    raise AssertionError("it was never in time")


async def _refused_until_settled(store: RedisStore, server: RedisServer) -> None:
    """Workers could still have sessions that Redis has lost. The roster says when they have had their time."""
    late = a_session(thread_id="late")
    for key in (None, a_key("late")):
        with pytest.raises(Unavailable, match="Redis is empty, or has lost its data") as caught:
            await store.add(late, key)
        assert caught.value.retry_after_s
    with pytest.raises(Unavailable, match="has lost its data"):
        await store.get("acme", late.id)
    server.ask("SET", "{warren}", redis_scripts.VERSION)
    assert await store.get("acme", late.id) is None
    assert await store.of_thread("acme", "late") is None


def _claimer(url: str, number: int) -> "subprocess.Popen[str]":
    command = [sys.executable, str(Path(__file__).parent / "redis_claimer.py"), url, str(number)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
