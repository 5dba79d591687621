"""What one kind of store has is all in the other after a copy, and back."""

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from contract.records_contract import a_record
from contract.store_values import STRANGE, S, a_full_session, a_key, a_session
from redis_server import PATIENCE_S, RedisServer, running_redis

from warren.interfaces.store import ANSWER_GONE, Added
from warren.model.session import EndReason, Session
from warren.stores.copying import Move, RedisSource, SqliteSource, copy_all, places
from warren.stores.encryption import Encryption
from warren.stores.redis_link import RedisLink, connect
from warren.stores.redis_store import RedisStore, check_it_is_ours
from warren.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio
SEALED = Encryption(bytes(32))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def link(server: RedisServer) -> AsyncIterator[RedisLink]:
    link = connect(server.url, timeout_s=PATIENCE_S, namespace=secrets.token_hex(4))
    await check_it_is_ours(link, take=True)
    yield link
    await link.close()


def _later(session: Session) -> Session:
    return replace(session, epoch="cluster", used=session.used + 1000)


def _earlier(session: Session) -> Session:
    return replace(session, epoch="boot-1", used=session.used - 1000)


@pytest.mark.parametrize("shares", [True, False], ids=["shared-snapshots", "own-snapshots"])
async def test_what_is_copied_there_and_back_is_as_it_was(tmp_path: Path, link: RedisLink, *, shares: bool) -> None:
    threads = [{"thread_id": "same", "created_at": 1e9 + number, "used": 100.0 + number} for number in range(3)]
    sessions = [
        a_full_session(),
        a_session(**threads[0], state=S.ENDED, reason=EndReason.IDLE, ended=7.0),
        a_session(**threads[1], state=S.ENDED, reason=EndReason.FAILED, ended=8.0),
        a_session(**threads[2], state=S.RUNNING, env={"A": "secret"}, metadata={text: text for text in STRANGE}),
        *(a_session(tenant=f"t{number % 7}", state=S.RUNNING, worker="local") for number in range(1200)),
    ]
    running = sessions[3]
    records = [a_record(text, group=text, due=number) for number, text in enumerate(STRANGE[:3], 1)]
    records += [a_record(f"{number:04}") for number in range(1100)]
    placed = {"volume": {"place": ""}, "snapshot": {"place": "", "packed": False}, "session_log": {"place": ""}}
    records += [replace(a_record("here"), kind=kind, value=json.dumps(value)) for kind, value in placed.items()]
    records += [replace(a_record("kept"), kind="snapshot", value=json.dumps({"place": "", "packed": True}))]
    first = await SqliteStore.open(tmp_path / "first.db", encryption=SEALED)
    for session in sessions:
        await first.add(session, a_key("made", scope="create") if session is running else None)
    await first.add(replace(a_session(**threads[2])), a_key("again", scope="create"))  # the thread's session
    await first.add(over := a_session(thread_id="over", state=S.RUNNING), a_key("one", scope="create"))
    await first.add(a_session(thread_id="over"), a_key("two", scope="create"))
    assert await first.swap(replace(over, version=2, state=S.ENDED, reason=EndReason.DELETED, ended=9.0))
    for name, answer in (("done", '{"exit_code": 0}'), ("gone", ANSWER_GONE), (STRANGE[3], "x" * 100), ("open", "")):
        key = a_key(name, scope=running.id)
        assert await first.claim_key(key, "boot-1", 5.0) is None
        await first.answer_key(key, answer)
    for record in records:
        assert await first.records.put(record)
    assert await first.records.put(records[0].changed("changed", 9.0))
    await first.close()

    source = SqliteSource(tmp_path / "first.db", SEALED)
    shared = RedisStore(link, SEALED)
    copied = await copy_all(source, shared, Move(_later, "local", "cluster", 1005.0, shares))
    source.close()
    assert copied == len(sessions) - 2
    assert await shared.get("acme", running.id) == _later(running)
    assert await places(RedisSource(link, SEALED)) == {"local"}
    assert json.loads((await shared.records.get("snapshot", "kept")).value)["place"] == ("" if shares else "local")  # type: ignore[union-attr]

    last = await SqliteStore.open(tmp_path / "last.db", encryption=SEALED)
    assert await copy_all(RedisSource(link, SEALED), last, Move(_earlier, "", "boot-1", 5.0, shares)) == copied
    for session in sessions:
        assert await last.get(session.tenant, session.id) == session
    assert (await last.of_thread("acme", "same")) == running
    for name in ("made", "again"):
        found, how = await last.add(a_session(thread_id="other"), a_key(name, scope="create"))
        assert (found, how) == (running, Added.KEY)
    for name in ("one", "two"):
        found, how = await last.add(a_session(), a_key(name, scope="create"))
        assert (found.id, how) == (over.id, Added.KEY)
    for name, answer in (("done", '{"exit_code": 0}'), ("gone", ANSWER_GONE), (STRANGE[3], "x" * 100), ("open", "")):
        known = await last.claim_key(a_key(name, scope=running.id), "boot-1", 6.0)
        assert known is not None
        assert known.answer == answer
    assert await last.count() == await _counts(tmp_path / "first.db")
    for record in records[1:]:
        assert await last.records.get(record.kind, record.id) == record
    assert await last.records.get("note", records[0].id) == replace(records[0], value="changed", due=9.0)
    assert await last.records.count("note") == len(records) - 4
    await last.close()


async def _counts(path: Path) -> object:
    store = await SqliteStore.open(path, encryption=SEALED)
    try:
        return await store.count()
    finally:
        await store.close()
