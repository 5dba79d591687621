"""The store of a worker keeps the contract over a real Redis, with copies in a real file; so does what it stands on.

The contract's sessions name no worker, so this worker has no name: then they are its own, and `active` and `due`,
which are about a worker's own sessions, give all of them. What has ended is no worker's, coordinators forget it: here
`purge` asks the shared store, as they do.
"""

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from contract.restore_contract import RestoreContract
from contract.roster_contract import ME, a_report
from contract.store_contract import DurableStoreContract, StoreContract
from contract.store_values import S, a_session, added, ended, swapped
from redis_server import PATIENCE_S, LossyWire, RedisServer, lossy_wire, running_redis
from unit.restoring_store import RestoringStore

from warren.cluster.roster import Roster
from warren.interfaces.store import SessionStore
from warren.stores import redis_roster_scripts as scripts
from warren.stores import redis_scripts
from warren.stores.encryption import Encryption
from warren.stores.mirrored import MirroredStore, SharedStore
from warren.stores.redis_link import RedisLink, connect
from warren.stores.redis_store import RedisStore
from warren.stores.sqlite import SqliteStore

SEALER = Encryption(bytes(32))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


class _Purging(MirroredStore):
    async def purge(self, epoch: str, before: float) -> int:
        assert await super().purge(epoch, before) == 0
        return await self._shared.purge(epoch, before)


class TestMirroredStore(StoreContract, DurableStoreContract):
    @pytest.fixture
    async def store(self, server: RedisServer, tmp_path: Path) -> AsyncIterator[SessionStore]:
        self._url, self._namespace, self._path = server.url, secrets.token_hex(4), tmp_path / "copies.db"
        self._opened: list[tuple[SqliteStore, _Purging]] = []
        yield await self._open()
        for copies, store in self._opened:
            await store.close()
            await copies.close()

    async def reopened(self, store: SessionStore) -> SessionStore:
        return await self._open()

    async def _open(self) -> SessionStore:
        copies = await SqliteStore.open(self._path, encryption=SEALER)
        shared = await RedisStore.open(self._url, SEALER, timeout_s=PATIENCE_S, namespace=self._namespace)
        store = _Purging(shared, copies.records, "", SEALER)
        self._opened.append((copies, store))
        await store.load()
        await store.reconcile()
        return store


class TestRestoreInRedis(RestoreContract):
    @pytest.fixture
    async def store(self, server: RedisServer) -> AsyncIterator[SharedStore]:
        store = await RedisStore.open(server.url, timeout_s=PATIENCE_S, namespace=secrets.token_hex(4))
        yield store
        await store.close()


class TestRestoreInMemory(RestoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[SharedStore]:
        yield RestoringStore()


@pytest.fixture
async def link(server: RedisServer) -> AsyncIterator[RedisLink]:
    server.ask("FLUSHALL")
    server.ask("SET", "{warren}", redis_scripts.VERSION)
    link = connect(server.url, timeout_s=PATIENCE_S)
    yield link
    await link.close()


@pytest.mark.anyio
class TestGivingUp:
    """`swap_of_dead`: nothing is taken from a worker whose lease lasts."""

    async def test_what_is_a_live_workers_is_left_to_it(self, server: RedisServer, link: RedisLink) -> None:
        store, roster = RedisStore(link), Roster(link)
        await roster.register(a_report("w"), 0)
        session = await added(store, worker="w", state=S.RUNNING)
        lost = session.moved_to(S.LOST)
        assert not await store.swap_of_dead(lost, ME.id)
        assert await store.get("acme", session.id) == session
        server.ask("HSET", "{warren}:worker:1:w", "until", "1.000000")
        assert await store.swap_of_dead(lost, ME.id)
        assert await store.get("acme", session.id) == lost

    async def test_only_a_coordinator_that_the_worker_asks_can_take_it(
        self, server: RedisServer, link: RedisLink
    ) -> None:
        store, roster = RedisStore(link), Roster(link)
        await roster.register(a_report("w"), 0)
        await roster.beat(a_report("w", coordinators=("other", ME.id)), 1)
        session = await added(store, worker="w", state=S.RUNNING)
        server.ask("HSET", "{warren}:worker:1:w", "until", "1.000000")
        assert not await store.swap_of_dead(session.moved_to(S.LOST), "started-later")
        assert await store.get("acme", session.id) == session
        assert await store.swap_of_dead(session.moved_to(S.LOST), ME.id)

    @pytest.mark.parametrize("worker", ["never-seen", "", "w"])
    async def test_what_is_nobodys_can_be_taken(self, link: RedisLink, worker: str) -> None:
        store = RedisStore(link)
        await Roster(link).register(a_report("other"), 0)
        session = await added(store, worker=worker, state=S.RUNNING, thread_id="t", disk_mb=3)
        assert await store.swap_of_dead(session.moved_to(S.LOST), ME.id)
        assert (await store.count())[S.LOST] == 1

    async def test_a_change_made_from_an_old_version_is_not_stored(self, link: RedisLink) -> None:
        store = RedisStore(link)
        first = await added(store, worker="w", state=S.RUNNING)
        second = await swapped(store, first, S.RUNNING, used=150.0)
        assert not await store.swap_of_dead(first.moved_to(S.LOST), ME.id)
        over = await ended(store, second)
        assert not await store.swap_of_dead(second.moved_to(S.LOST), ME.id)
        assert await store.get("acme", first.id) == over

    async def test_nothing_is_taken_while_redis_gets_its_data_back(self, server: RedisServer, link: RedisLink) -> None:
        store = RedisStore(link)
        session = a_session(worker="w", state=S.RUNNING)
        server.ask("DEL", "{warren}")
        assert await store.restore(session)
        assert not await store.swap_of_dead(session.moved_to(S.LOST), ME.id)
        assert await store.get("acme", session.id) == session

    async def test_only_one_of_many_coordinators_takes_it(self, link: RedisLink) -> None:
        store = RedisStore(link)
        session = await added(store, worker="w", state=S.RUNNING)
        lost = session.moved_to(S.LOST)
        assert [await store.swap_of_dead(lost, ME.id) for _ in range(5)].count(True) == 1


@pytest.mark.anyio
class TestAnswersThatGetLost:
    @pytest.fixture
    async def lossy(self, server: RedisServer, link: RedisLink) -> AsyncIterator[tuple[LossyWire, RedisStore]]:
        for script in (scripts.SWAP_OF_DEAD, redis_scripts.RESTORE):
            server.ask("SCRIPT", "LOAD", script.text)
        async with lossy_wire(server) as (wire, url):
            store = await RedisStore.open(url, timeout_s=PATIENCE_S)
            yield wire, store
            await store.close()

    async def test_what_was_restored_was_restored(self, lossy: tuple[LossyWire, RedisStore]) -> None:
        wire, store = lossy
        session = a_session(worker="w", state=S.RUNNING, thread_id="t", version=4)
        wire.lose()
        assert await store.restore(session)
        assert wire.lost_all
        assert list(await store.active()) == [session]
        assert not await store.restore(session)

    async def test_what_was_taken_was_taken(self, lossy: tuple[LossyWire, RedisStore]) -> None:
        wire, store = lossy
        session = await added(store, worker="w", state=S.RUNNING)
        wire.lose()
        assert await store.swap_of_dead(session.moved_to(S.LOST), ME.id)
        assert wire.lost_all
