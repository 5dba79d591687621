"""Whom we know while the store is away: keys that were proven and tenants that were read not long ago, nobody else."""

import asyncio
from collections.abc import Sequence

import pytest

from warren.access.identity import CredentialIdentity
from warren.access.keys import _MAX_CACHED, CACHED_S, TRUSTED_S, Keys
from warren.access.tenants import Tenant, Tenants
from warren.interfaces.records import Record
from warren.model.access import ALL_SCOPES, ANY_TENANT, NO_QUOTA, Quota
from warren.model.errors import Unauthorized, Unavailable
from warren.stores.memory import MemoryRecords
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


class AwayRecords:
    """Records of a store that is away when it is told to be, or that can only be read."""

    def __init__(self) -> None:
        self.inner = MemoryRecords()
        self.away = self.read_only = False
        self.asked = 0

    def _work(self, *, write: bool = False) -> MemoryRecords:
        self.asked += 1
        if self.away or (write and self.read_only):
            raise Unavailable("the store does not answer")
        return self.inner

    async def get(self, kind: str, record_id: str) -> Record | None:
        return await self._work().get(kind, record_id)

    async def put(self, record: Record) -> bool:
        return await self._work(write=True).put(record)

    async def delete(self, kind: str, record_id: str) -> bool:
        return await self._work(write=True).delete(kind, record_id)

    async def list(self, kind: str, *, group: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        return await self._work().list(kind, group=group, after=after, limit=limit)

    async def due(self, kind: str, now: float, limit: int) -> Sequence[Record]:
        return await self._work().due(kind, now, limit)

    async def count(self, kind: str, *, group: str = "") -> int:
        return await self._work().count(kind, group=group)

    async def sync(self) -> None:
        await self._work().sync()


class SlowRecords(AwayRecords):
    """Whoever reads has the answer in hand, and gets it when he may; who counts lets others have their turn."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def get(self, kind: str, record_id: str) -> Record | None:
        found = await super().get(kind, record_id)
        await self.may_answer.wait()
        return found

    async def count(self, kind: str, *, group: str = "") -> int:
        found = await super().count(kind, group=group)
        await asyncio.sleep(0)
        return found


class UncountedRecords(AwayRecords):
    """However many there are, counting them takes no time."""

    async def count(self, kind: str, *, group: str = "") -> int:
        return 0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def records() -> AwayRecords:
    return AwayRecords()


@pytest.fixture
def keys(records: AwayRecords, clock: ManualClock) -> Keys:
    return Keys(records, clock)


class TestKeys:
    async def test_a_key_that_was_proven_is_taken_for_some_minutes(
        self, keys: Keys, records: AwayRecords, clock: ManualClock
    ) -> None:
        key, text = await keys.create("ci", "acme", quota=Quota(sessions=3))
        caller = await keys.recognise(text)
        records.away = True
        for _ in range(59):
            await clock.advance(10)
            assert await keys.recognise(text) == caller
        await clock.advance(10)
        with pytest.raises(Unavailable, match="does not answer"):
            await keys.recognise(text)
        records.away = False
        assert (await keys.recognise(text)).key_id == key.id

    async def test_the_time_counts_from_the_last_proof_however_often_it_is_shown(
        self, keys: Keys, records: AwayRecords, clock: ManualClock
    ) -> None:
        _, text = await keys.create("ci", "acme")
        await keys.recognise(text)
        records.away = True
        await clock.advance(TRUSTED_S - 1)
        await keys.recognise(text)
        await clock.advance(1)
        with pytest.raises(Unavailable):
            await keys.recognise(text)

    async def test_a_key_that_was_never_proven_is_not_taken(
        self, keys: Keys, records: AwayRecords, clock: ManualClock
    ) -> None:
        key, text = await keys.create("ci", "acme")
        _, other = await keys.create("other", "acme")
        await keys.recognise(text)
        await clock.advance(CACHED_S)
        records.away = True
        for shown in (other, text[:-1], text + "0", f"wk_{key.id.removeprefix('key_')}_{'0' * 64}"):
            with pytest.raises(Unavailable):
                await keys.recognise(shown)
        await keys.recognise(text)

    async def test_what_is_no_key_at_all_is_refused_as_ever(self, keys: Keys, records: AwayRecords) -> None:
        records.away = True
        with pytest.raises(Unauthorized):
            await keys.recognise("hello")

    async def test_an_expired_key_is_refused(self, keys: Keys, records: AwayRecords, clock: ManualClock) -> None:
        _, text = await keys.create("ci", "acme", expires_at=clock.wall() + 60)
        await keys.recognise(text)
        records.away = True
        await clock.advance(59)
        await keys.recognise(text)
        await clock.advance(1)
        with pytest.raises(Unauthorized, match="expired"):
            await keys.recognise(text)

    async def test_the_store_is_not_asked_each_time(self, keys: Keys, records: AwayRecords, clock: ManualClock) -> None:
        _, text = await keys.create("ci", "acme")
        await keys.recognise(text)
        await asyncio.sleep(0)
        records.away = True
        await clock.advance(CACHED_S)
        before = records.asked
        for _ in range(20):
            await keys.recognise(text)
        assert records.asked == before + 1

    async def test_a_key_revoked_elsewhere_is_seen_as_soon_as_the_store_is_back(
        self, keys: Keys, records: AwayRecords, clock: ManualClock
    ) -> None:
        key, text = await keys.create("ci", "acme")
        await keys.recognise(text)
        await clock.advance(CACHED_S)
        records.away = True
        await keys.recognise(text)
        await records.inner.delete("key", key.id)
        records.away = False
        await clock.advance(CACHED_S)
        with pytest.raises(Unauthorized):
            await keys.recognise(text)

    @pytest.mark.parametrize("how", ["here", "elsewhere", "rotated here", "rotated elsewhere"])
    async def test_a_key_known_to_be_revoked_is_not_taken_later(
        self, keys: Keys, records: AwayRecords, clock: ManualClock, how: str
    ) -> None:
        where = keys if "here" in how.split() else Keys(records, clock)
        key, text = await keys.create("ci", "acme")
        _, other = await keys.create("other", "acme")
        await keys.recognise(text)
        await keys.recognise(other)
        await (where.rotate(key.id) if "rotated" in how else where.revoke(key.id))
        await clock.advance(CACHED_S)
        with pytest.raises(Unauthorized):
            await keys.recognise(text)
        records.away = True
        with pytest.raises(Unavailable):
            await keys.recognise(text)
        assert (await keys.recognise(other)).tenant == "acme"

    async def test_a_key_that_is_revoked_while_it_is_looked_up_is_refused(self, clock: ManualClock) -> None:
        records = SlowRecords()
        keys = Keys(records, clock)
        key, text = await keys.create("ci", "acme")
        records.may_answer.clear()
        coming = asyncio.ensure_future(keys.recognise(text))
        await asyncio.sleep(0)
        gone = Keys(records.inner, clock)
        await gone.revoke(key.id)
        keys._forget(key.id)
        records.may_answer.set()
        with pytest.raises(Unauthorized):
            await coming

    async def test_a_store_that_cannot_write_refuses_nobody(
        self, keys: Keys, records: AwayRecords, clock: ManualClock
    ) -> None:
        key, text = await keys.create("ci", "acme")
        records.read_only = True
        for _ in range(3):
            assert (await keys.recognise(text)).key_id == key.id
            await asyncio.sleep(0)
            await clock.advance(61)
        records.read_only = False
        await keys.recognise(text)
        await asyncio.sleep(0)
        assert (await keys.get(key.id)).used_at == clock.wall()

    async def test_no_more_are_remembered_than_may_be(self, clock: ManualClock) -> None:
        records = UncountedRecords()
        keys = Keys(records, clock)
        texts = [(await keys.create("ci", "acme"))[1] for _ in range(_MAX_CACHED + 1)]
        for text in texts:
            await keys.recognise(text)
        assert repr(keys) == f"<Keys: {_MAX_CACHED} cached>"
        await asyncio.sleep(0)
        await clock.advance(CACHED_S)
        records.away = True
        with pytest.raises(Unavailable):
            await keys.recognise(texts[0])
        await keys.recognise(texts[1])


class TestTheFirstKey:
    async def test_of_many_who_start_at_once_one_makes_it(self, clock: ManualClock) -> None:
        records = SlowRecords()
        some = [Keys(records, clock) for _ in range(10)]
        made = await asyncio.gather(*(keys.create_first("first", "default", ALL_SCOPES) for keys in some))
        ((key, text),) = [one for one in made if one is not None]
        assert [one.id for one in await some[0].list()] == [key.id]
        assert (await some[1].recognise(text)).scopes == ALL_SCOPES

    async def test_where_there_is_a_key_there_is_no_first_one(self, keys: Keys) -> None:
        key, _ = await keys.create("mine", "acme")
        assert await keys.create_first("first", "default", ALL_SCOPES) is None
        await keys.revoke(key.id)
        assert await keys.create_first("first", "default", ALL_SCOPES) is not None
        assert await keys.create_first("first", "default", ALL_SCOPES) is None

    async def test_it_can_be_revoked_and_made_again_with_another_secret(self, keys: Keys) -> None:
        first = await keys.create_first("first", "default", ALL_SCOPES)
        assert first is not None
        await keys.revoke(first[0].id)
        second = await keys.create_first("first", "default", ALL_SCOPES)
        assert second is not None
        with pytest.raises(Unauthorized):
            await keys.recognise(first[1])
        await keys.recognise(second[1])


class TestTenants:
    @pytest.fixture
    def tenants(self, records: AwayRecords, clock: ManualClock) -> Tenants:
        return Tenants(records, clock)

    async def test_what_was_read_holds_for_some_minutes(
        self, tenants: Tenants, records: AwayRecords, clock: ManualClock
    ) -> None:
        await tenants.put(Tenant("acme", Quota(sessions=3)))
        assert (await tenants.of("acme")).quota.sessions == 3
        assert (await tenants.of("nobody")).quota == NO_QUOTA
        records.away = True
        for _ in range(59):
            await clock.advance(10)
            assert (await tenants.of("acme")).quota.sessions == 3
            assert (await tenants.of("nobody")).quota == NO_QUOTA
        await clock.advance(10)
        for name in ("acme", "nobody"):
            with pytest.raises(Unavailable):
                await tenants.of(name)

    async def test_of_a_tenant_that_was_never_read_nothing_is_known(
        self, tenants: Tenants, records: AwayRecords
    ) -> None:
        await tenants.put(Tenant("acme", Quota(sessions=3)))
        records.away = True
        with pytest.raises(Unavailable):
            await tenants.of("acme")

    async def test_a_change_elsewhere_is_seen_as_soon_as_the_store_is_back(
        self, tenants: Tenants, records: AwayRecords, clock: ManualClock
    ) -> None:
        await tenants.put(Tenant("acme", Quota(sessions=3)))
        await tenants.of("acme")
        await clock.advance(CACHED_S)
        records.away = True
        await tenants.of("acme")
        await Tenants(records.inner, clock).put(Tenant("acme", Quota(sessions=1)))
        records.away = False
        await clock.advance(CACHED_S)
        assert (await tenants.of("acme")).quota.sessions == 1

    async def test_a_change_here_holds_at_once_and_leaves_the_others_known(
        self, tenants: Tenants, records: AwayRecords
    ) -> None:
        for name in ("acme", "other"):
            await tenants.put(Tenant(name, Quota(sessions=3)))
            await tenants.of(name)
        await tenants.put(Tenant("acme", Quota(sessions=1)))
        assert (await tenants.of("acme")).quota.sessions == 1
        await tenants.delete("acme")
        records.away = True
        with pytest.raises(Unavailable):
            await tenants.of("acme")
        assert (await tenants.of("other")).quota.sessions == 3

    async def test_what_is_set_for_any_tenant_is_read_anew_for_all(self, tenants: Tenants) -> None:
        assert (await tenants.of("acme")).quota == NO_QUOTA
        await tenants.put(Tenant(ANY_TENANT, Quota(sessions=2)))
        assert (await tenants.of("acme")).quota.sessions == 2
        await tenants.delete(ANY_TENANT)
        assert (await tenants.of("acme")).quota == NO_QUOTA


async def test_a_request_is_let_in_while_the_store_is_away(records: AwayRecords, clock: ManualClock) -> None:
    keys, tenants = Keys(records, clock), Tenants(records, clock)
    identity = CredentialIdentity(keys, tenants)
    await tenants.put(Tenant("acme", Quota(sessions=3)))
    _, text = await keys.create("ci", "acme")
    headers = [(b"x-api-key", text.encode())]
    caller = await identity.caller(headers)
    records.away = True
    await clock.advance(300)
    assert await identity.caller(headers) == caller
    assert caller.quota.sessions == 3
