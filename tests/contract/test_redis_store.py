"""The store in Redis keeps the contract: on one server, over its socket in steps, on a cluster; and Sentinel."""

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from contract.store_contract import DurableStoreContract, StoreContract
from contract.store_values import EPOCH, S, a_key, a_session, added, ended, swapped
from redis_server import PATIENCE_S, RedisSentinel, RedisServer, running_cluster, running_redis, wait_until

from warren.interfaces.records import Record
from warren.interfaces.store import Caps, Page, SessionStore
from warren.model.errors import Unavailable
from warren.stores.encryption import Encryption
from warren.stores.redis_store import RedisStore

pytestmark = pytest.mark.group_by("class")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as server:
        yield server


class TestRedisStore(StoreContract, DurableStoreContract):
    @pytest.fixture
    async def store(self, server: RedisServer) -> AsyncIterator[SessionStore]:
        self._url, self._namespace = server.url, secrets.token_hex(4)
        self._opened = [await self._open()]
        yield self._opened[0]
        for store in self._opened:
            await store.close()

    async def reopened(self, store: SessionStore) -> SessionStore:
        self._opened.append(await self._open())
        return self._opened[-1]

    async def _open(self) -> RedisStore:
        return await RedisStore.open(self._url, timeout_s=PATIENCE_S, namespace=self._namespace)


@pytest.mark.extended
class TestRedisStoreInSteps(StoreContract):
    """Over the socket, sealed, and never looking at more than three sessions at once."""

    @pytest.fixture
    async def store(self, server: RedisServer) -> AsyncIterator[SessionStore]:
        url = f"unix://:{server.password}@{server.socket}?db=1"
        namespace = secrets.token_hex(4)
        store = await RedisStore.open(url, Encryption(bytes(32)), timeout_s=PATIENCE_S, namespace=namespace, step=3)
        yield store
        await store.close()


@pytest.mark.extended
class TestRedisStoreOnACluster(StoreContract):
    @pytest.fixture
    async def store(self, cluster: RedisServer) -> AsyncIterator[SessionStore]:
        url = f"redis+cluster://:{cluster.password}@127.0.0.1:{cluster.port}"
        store = await RedisStore.open(url, timeout_s=PATIENCE_S, namespace=secrets.token_hex(4))
        yield store
        await store.close()


class TestRedisStoreAfterKill(DurableStoreContract):
    """The server is killed with kill -9 and started again; the first store goes on as well."""

    @pytest.fixture(params=["always", "everysec"])
    async def store(self, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[SessionStore]:
        with running_redis(tmp_path, "--appendonly", "yes", "--appendfsync", request.param) as self._server:
            self._opened = [await RedisStore.open(self._server.url, timeout_s=PATIENCE_S)]
            yield self._opened[0]
            for store in self._opened:
                await store.close()

    async def reopened(self, store: SessionStore) -> SessionStore:
        self._server.kill()
        self._server.start()
        self._opened.append(await RedisStore.open(self._server.url, timeout_s=PATIENCE_S))
        return self._opened[-1]


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    server.ask("FLUSHALL")
    store = await RedisStore.open(server.url, timeout_s=PATIENCE_S)
    yield store
    await store.close()


@pytest.mark.anyio
class TestWhatIsInRedis:
    async def test_everything_that_ended_and_was_purged_leaves_no_key(
        self, store: RedisStore, server: RedisServer
    ) -> None:
        for number in range(7):
            session = await added(store, a_key(str(number)), thread_id=str(number % 3), epoch=f"boot-{number % 2}")
            await store.add(a_session(thread_id=str(number % 3)), a_key(f"thread {number}"))
            session = await swapped(store, session, S.RUNNING, S.LOST, disk_mb=number)
            await store.claim_key(a_key(str(number), scope=session.id), f"boot-{number % 2}", float(number))
            await store.answer_key(a_key(str(number), scope=session.id), "42")
            await ended(store, session)
        await store.purge(EPOCH, 1e9)
        record = Record("note", "one", "text", group="acme", due=1.0)
        await store.records.put(record)
        await store.records.put(Record("note", "one", "text", 2, group="other"))
        await store.records.delete("note", "one")
        left = set(server.ask("KEYS", "*"))
        assert {name for name in left if not name.startswith(b"{warren}:did:")} == {b"{warren}", b"{warren}:counts"}
        assert all(server.ask("PTTL", name) > 0 for name in left if name.startswith(b"{warren}:did:"))

    async def test_a_key_that_is_used_again_belongs_to_its_new_session_only(self, store: RedisStore) -> None:
        first = await ended(store, await added(store, a_key()), ended=1.0, reason="failed")
        second = await added(store, a_key())
        assert await store.purge(EPOCH, 2.0) == 1
        assert await store.get("acme", first.id) is None
        assert (await store.add(a_session(), a_key()))[0] == second

    async def test_a_claimed_key_that_comes_to_stand_for_a_session_stays_with_it(self, store: RedisStore) -> None:
        await store.claim_key(a_key(), "boot-0", 1.0)
        session = await added(store, a_key())
        await store.purge(EPOCH, 100.0)
        assert (await store.add(a_session(), a_key()))[0] == session

    async def test_quotas_are_right_after_many_changes(self, store: RedisStore) -> None:
        for _ in range(3):
            await ended(store, await added(store, disk_mb=5, key_id="k"))
            await swapped(store, await added(store, disk_mb=7, key_id="k"), S.RUNNING, S.LOST)
        held = await added(store, disk_mb=3, key_id="k")
        changed = await swapped(store, held, S.RUNNING, disk_mb=4)
        caps = Caps(sessions=2, disk_mb=10, key_sessions=2, key_disk_mb=10)
        session, _ = await store.add(a_session(disk_mb=6, key_id="k"), None, caps)
        await ended(store, session)
        await ended(store, changed)
        await store.add(a_session(disk_mb=10, key_id="k"), None, caps)

    async def test_variables_are_there_only_sealed(self, server: RedisServer) -> None:
        server.ask("FLUSHALL")
        store = await RedisStore.open(server.url, Encryption(bytes(32)), timeout_s=PATIENCE_S)
        session = await added(store, env={"TOKEN": "very-secret"})
        kept = server.ask("HGETALL", f"{{warren}}:session:{len(session.id)}:{session.id}")
        assert b"very-secret" not in repr(kept).encode()
        assert b"TOKEN" not in repr(kept).encode()
        assert await store.get("acme", session.id) == session
        await store.close()
        unsealed = await RedisStore.open(server.url, timeout_s=PATIENCE_S)
        with pytest.raises(Unavailable, match="no key for them"):
            await unsealed.get("acme", session.id)
        await unsealed.close()

    async def test_a_long_list_is_complete_while_others_are_purged(self, server: RedisServer) -> None:
        store = await RedisStore.open(server.url, timeout_s=PATIENCE_S, namespace=secrets.token_hex(4), step=2)
        made = [await added(store, created_at=float(number // 4)) for number in range(20)]
        wanted = sorted(made, key=lambda one: (one.created_at, one.id), reverse=True)
        assert list(await store.list("acme", Page(limit=1000))) == wanted
        assert list(await store.list("acme", Page(limit=5, after=wanted[3].id))) == wanted[4:9]
        assert {one.id for one in await store.active()} == {one.id for one in made}
        await store.close()

    async def test_another_version_is_refused_and_left_alone(self, server: RedisServer) -> None:
        server.ask("SET", "{elsewhen}", "99")
        with pytest.raises(Unavailable, match="has version 99; this Warren knows version 1"):
            await RedisStore.open(server.url, timeout_s=PATIENCE_S, namespace="elsewhen")
        assert server.ask("GET", "{elsewhen}") == b"99"

    async def test_namespaces_do_not_see_each_other(self, server: RedisServer) -> None:
        stores = [await RedisStore.open(server.url, timeout_s=PATIENCE_S, namespace=secrets.token_hex(4)) for _ in "ab"]
        session = await added(stores[0], thread_id="t")
        assert await stores[1].get("acme", session.id) is None
        await added(stores[1], thread_id="t")
        for one in stores:
            await one.close()

    async def test_a_redis_that_throws_keys_away_is_told_about(
        self, server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            await (await RedisStore.open(server.url, timeout_s=PATIENCE_S)).close()
        finally:
            server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        (record,) = caplog.records
        assert (record.message, record.fields["policy"]) == ("redis_evicts_sessions", "allkeys-lru")
        assert server.password not in str(record.fields)


@pytest.mark.anyio
class TestSentinel:
    async def test_the_store_follows_the_primary_when_it_changes(self, tmp_path: Path) -> None:
        with running_redis(tmp_path / "a") as first, running_redis(tmp_path / "b", password=first.password) as second:
            second.ask("REPLICAOF", "127.0.0.1", first.port)
            wait_until(lambda: second.ask("INFO", "replication")["master_link_status"] == "up", "no replication")
            sentinel = RedisSentinel(tmp_path / "sentinel", first)
            try:
                sentinel.start()
                wait_until(lambda: len(sentinel.ask("SENTINEL", "REPLICAS", "mymaster")) == 1, "no replica was found")
                await self._survives_a_failover(sentinel, first, second)
            finally:
                sentinel.kill()

    async def _survives_a_failover(self, sentinel: RedisSentinel, first: RedisServer, second: RedisServer) -> None:
        store = await RedisStore.open(sentinel.url, timeout_s=PATIENCE_S)
        session = await added(store, thread_id="t")
        assert "mymaster" in repr(store)
        wait_until(lambda: bool(second.ask("KEYS", "{warren}:session:*")), "the session did not reach the replica")
        wait_until(sentinel.changes_the_primary, "the Sentinel found no replica good enough")
        wait_until(lambda: second.ask("ROLE")[0] == b"master", "the replica did not become the primary")
        address = [b"127.0.0.1", str(second.port).encode()]
        wait_until(lambda: list(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")) == address, "not told")
        wait_until(lambda: first.ask("ROLE")[0] == b"slave", "the primary did not become a replica")
        assert await store.swap(session.moved_to(S.RUNNING))
        assert second.ask("HGET", f"{{warren}}:session:{len(session.id)}:{session.id}", "state") == b"running"
        await store.close()

    async def test_a_service_the_sentinel_does_not_know_is_named(self, server: RedisServer, tmp_path: Path) -> None:
        sentinel = RedisSentinel(tmp_path, server)
        try:
            sentinel.start()
            url = sentinel.url.replace("mymaster", "another")
            with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{sentinel.port} \(Sentinel, another\)") as caught:
                await RedisStore.open(url, timeout_s=PATIENCE_S)
            assert server.password not in str(caught.value)
        finally:
            sentinel.kill()
