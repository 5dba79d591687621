"""The stores keep the contract, and what is special about each."""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from busiest_turn import MAX_S, busiest_turn
from contract.store_contract import DurableStoreContract, StoreContract
from contract.store_values import S, a_key, a_session, added, swapped

from warren.interfaces.store import Page, SessionStore
from warren.model.errors import Unavailable
from warren.stores.memory import MemoryStore
from warren.stores.sqlite import CHECKPOINT_S, SqliteStore
from warren.stores.sqlite_file import SqliteFile
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.group_by("class")

_PROGRAMS = Path(__file__).parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


class TestMemoryStore(StoreContract):
    @pytest.fixture
    async def store(self) -> SessionStore:
        return MemoryStore()

    async def test_it_says_what_it_holds(self) -> None:
        store = MemoryStore()
        await added(store, a_key())
        assert repr(store) == "<MemoryStore: 1 sessions, 1 keys>"
        await store.close()


class TestSqliteStore(StoreContract, DurableStoreContract):
    @pytest.fixture
    async def store(self, path: Path) -> AsyncIterator[SessionStore]:
        self._path, self._opened = path, [await SqliteStore.open(path)]
        yield self._opened[0]
        for store in self._opened:
            await store.close()

    async def test_looking_through_long_sessions_holds_up_nobody_and_keeps_few_of_them(
        self, store: SessionStore
    ) -> None:
        for number in range(80):
            texts = {f"{number} {at}": "\U0001f407" * 4096 for at in range(60)}
            await added(store, metadata=texts, state=S.ENDED)
        tracemalloc.start()
        try:
            async with busiest_turn() as busiest:
                assert not await store.list("acme", Page(frozenset(S), metadata={"none": "of them"}))
                assert len(await store.list("acme", Page(frozenset(S), metadata={"79 0": "\U0001f407" * 4096}))) == 1
            assert busiest.seconds < MAX_S
            await store.list("acme", Page(frozenset(S)))
            assert tracemalloc.get_traced_memory()[0] < 64 << 20
        finally:
            tracemalloc.stop()

    async def reopened(self, store: SessionStore) -> SessionStore:
        self._opened.append(await SqliteStore.open(self._path))
        return self._opened[-1]


class TestSqliteStoreWithRowsInMemory(StoreContract):
    @pytest.fixture
    async def store(self, path: Path) -> AsyncIterator[SessionStore]:
        store = await SqliteStore.open(path, alone=True)
        yield store
        await store.close()

    async def test_what_it_has_in_memory_is_what_the_file_has(self, store: SessionStore, path: Path) -> None:
        first = await added(store, metadata={"name": "\udc80"})
        second = await swapped(store, first, S.RUNNING)
        assert not await store.swap(replace(first, version=2, detail="too late"))
        other = await SqliteStore.open(path)
        for session in (first, second):
            assert await store.get("acme", session.id) == await other.get("acme", session.id) == second
        assert await store.get("others", second.id) is None
        over = await swapped(store, second, S.STOPPING)
        assert await store.get("acme", over.id) == await other.get("acme", over.id) == over
        await other.close()

    async def test_it_keeps_few_long_sessions_in_memory(self, store: SessionStore) -> None:
        tracemalloc.start()
        try:
            for number in range(80):
                texts = {f"{number} {at}": "\U0001f407" * (4096 + at) for at in range(60)}  # each of its own
                session = await swapped(store, await added(store, metadata=texts), S.RUNNING)
                assert await store.get("acme", session.id) == session
            assert tracemalloc.get_traced_memory()[0] < 64 << 20
        finally:
            tracemalloc.stop()

    async def test_a_closed_store_has_nothing_in_memory(self, store: SessionStore) -> None:
        session = await added(store)
        await store.close()
        with pytest.raises(Unavailable, match="closed"):
            await store.get("acme", session.id)


@pytest.mark.anyio
class TestSqliteFile:
    async def test_it_is_private_as_are_the_files_next_to_it(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        await added(store)
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
        await store.close()

    async def test_one_that_others_could_read_is_made_private(self, path: Path) -> None:
        await (await SqliteStore.open(path)).close()
        path.chmod(0o644)
        await (await SqliteStore.open(path)).close()
        assert path.stat().st_mode & 0o777 == 0o600

    async def test_a_store_that_was_closed_is_one_file_with_everything_in_it(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        session = await added(store)
        await store.close()
        await store.close()
        assert repr(store) == f"<SqliteStore {path} closed>"
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        again = await SqliteStore.open(path)
        assert list(await again.active()) == [session]
        await again.close()

    async def test_a_closed_store_says_so(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        await store.close()
        with pytest.raises(Unavailable, match="closed"):
            await store.get("acme", "ses_1")
        with pytest.raises(Unavailable, match="closed"):
            await store.add(a_session(), a_key())

    @pytest.mark.parametrize(
        "content", [b"not a database, but long enough to be one" * 100, b"x"], ids=["long", "short"]
    )
    async def test_a_file_that_is_no_database_is_named_and_left_alone(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(Unavailable) as caught:
            await SqliteStore.open(path)
        assert str(path) in caught.value.message
        assert "move it away" in caught.value.remedy
        assert path.read_bytes() == content

    async def test_a_damaged_file_is_an_error_and_not_a_crash(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        for _ in range(50):
            await added(store)
        await store.close()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
            roots = connection.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = 'sessions'").fetchall()
        content = bytearray(path.read_bytes())
        for (root,) in roots:
            content[(root - 1) * page_bytes : root * page_bytes] = b"\xff" * page_bytes
        path.write_bytes(content)
        store = await SqliteStore.open(path)
        with pytest.raises(Unavailable, match=path.name) as caught:
            await store.active()
        assert str(path) not in caught.value.message
        await store.close()

    async def test_a_newer_version_is_refused_and_left_alone(self, path: Path) -> None:
        await (await SqliteStore.open(path)).close()
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
        content = path.read_bytes()
        with pytest.raises(Unavailable, match="has version 99; this Warren knows version 1"):
            await SqliteStore.open(path)
        assert path.read_bytes() == content

    async def test_a_database_of_another_program_is_refused_and_left_alone(self, path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE sessions (id TEXT)")
        connection.close()
        content = path.read_bytes()
        with pytest.raises(Unavailable, match="another program"):
            await SqliteStore.open(path)
        assert path.read_bytes() == content

    async def test_a_directory_that_is_not_there_is_named(self, path: Path) -> None:
        with pytest.raises(Unavailable, match=r"none/sessions\.db"):
            await SqliteStore.open(path.parent / "none" / path.name)
        with pytest.raises(Unavailable, match=str(path.parent)):
            await SqliteStore.open(path.parent)

    async def test_a_file_locked_by_another_program_is_unavailable_for_that_time(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            await store.add(a_session())
        other.execute("ROLLBACK")
        other.close()
        await added(store)
        await store.close()


class SlowSqliteFile(SqliteFile):
    """A disk that takes its time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.at_last_part = threading.Event()
        self.may_go_on = threading.Event()

    def restart_log(self) -> None:
        self.at_last_part.set()
        assert self.may_go_on.wait(10)
        super().restart_log()


@pytest.mark.anyio
class TestSqliteLog:
    async def test_the_log_does_not_grow_for_ever(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        session = await added(store, state=S.RUNNING)
        sizes = []
        for _ in range(5):
            session = await swapped(store, session, *[S.RUNNING] * 100)
            await store.checkpoint()
            sizes.append(Path(f"{path}-wal").stat().st_size)
        assert len(set(sizes[1:])) == 1
        assert await store.get("acme", session.id) == session
        await store.close()

    async def test_it_is_brought_into_the_file_in_the_background(self, path: Path) -> None:
        clock = ManualClock()
        store = await SqliteStore.open(path, clock)
        session = await added(store)
        before = path.stat().st_size
        await _asleep(clock)
        await clock.advance(CHECKPOINT_S)
        await _asleep(clock)
        assert path.stat().st_size > before
        assert await store.get("acme", session.id) == session
        await store.close()

    async def test_a_checkpoint_that_fails_is_told_once_and_tried_again(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = ManualClock()
        store = await SqliteStore.open(path, clock)
        await added(store)
        await _asleep(clock)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            await clock.advance(CHECKPOINT_S)
            await _asleep(clock)
        assert [record.message for record in caplog.records] == ["sqlite_checkpoint_failed"]
        other.close()
        await clock.advance(CHECKPOINT_S)
        await _asleep(clock)
        before = Path(f"{path}-wal").stat().st_size
        await added(store)
        assert Path(f"{path}-wal").stat().st_size == before
        await store.close()

    async def test_writers_wait_for_the_last_part_of_a_checkpoint_and_readers_do_not(self, path: Path) -> None:
        file = SlowSqliteFile(path)
        store = SqliteStore(file, ManualClock())
        session = await added(store)
        checkpoint = asyncio.ensure_future(store.checkpoint())
        await asyncio.to_thread(file.at_last_part.wait, 10)
        writer = asyncio.ensure_future(store.swap(session.moved_to(S.RUNNING)))
        await asyncio.sleep(0)
        assert await store.get("acme", session.id) == session
        assert not writer.done()
        file.may_go_on.set()
        assert await writer
        await checkpoint
        await store.close()

    async def test_nothing_is_lost_by_writing_during_checkpoints(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        for _ in range(20):
            await asyncio.gather(store.checkpoint(), *(added(store) for _ in range(20)))
        assert len(await store.active()) == 400
        await store.close()

    async def test_a_store_that_is_closed_during_a_checkpoint_waits_for_it(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        session = await added(store)
        checkpoint = asyncio.ensure_future(store.checkpoint())
        await asyncio.sleep(0)
        await store.close()
        await checkpoint
        again = await SqliteStore.open(path)
        assert await again.get("acme", session.id) == session
        await again.close()


@pytest.mark.anyio
class TestSqliteFaults:
    @pytest.mark.parametrize("seed", range(10))
    async def test_what_was_acknowledged_is_there_after_kill_9(self, path: Path, seed: int) -> None:
        """The child adds and ends sessions and says so; what it said last must hold."""
        writer = _child("store_writer.py", path)
        _await_start(writer)
        await asyncio.sleep(random.Random(seed).uniform(0.05, 0.4))
        writer.send_signal(signal.SIGKILL)
        lines = writer.communicate()[0].split("\n")[:-1]
        store = await SqliteStore.open(path)
        stored = {one.id: one for one in await store.list("acme", Page(states=frozenset(S), limit=1_000_000))}
        for line in lines:
            session_id, version = line.split()
            assert stored[session_id].version >= int(version)
        assert len(lines) > 10
        assert await store.purge("elsewhen", 0.0) == sum(not one.active for one in stored.values())
        await store.close()

    async def test_a_full_disk_is_told_leaves_nothing_half_written_and_passes(self, tmp_path: Path) -> None:
        """In a mount namespace of its own, on a file system of a few hundred kilobytes."""
        child = _child("store_on_full_disk.py", tmp_path, before=("unshare", "-m"))
        out, _ = child.communicate(timeout=60)
        assert (child.returncode, out) == (0, "full, nothing half-written, works again\n")


async def _asleep(clock: ManualClock) -> None:
    """Until the background task has done its work and waits for its next time."""
    with anyio.fail_after(10):
        while "1 asleep" not in repr(clock):
            await asyncio.sleep(0.001)


def _child(program: str, path: Path, before: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    command = [*before, sys.executable, str(_PROGRAMS / program), str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _await_start(writer: "subprocess.Popen[str]") -> None:
    assert writer.stdout is not None
    assert writer.stdout.readline() == "started\n"
