"""API keys: made, recognised, expired, rotated, revoked."""

import asyncio
import re

import pytest

from warren.access.keys import CACHED_S, Keys, e2b_spelling, key_view, looks_like_key
from warren.model.access import ALL_SCOPES, Caller, Quota, Scope
from warren.model.errors import InvalidRequest, NotFound, Unauthorized
from warren.model.session import DEFAULT_TENANT
from warren.stores.memory import MemoryRecords
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def records() -> MemoryRecords:
    return MemoryRecords()


@pytest.fixture
def keys(records: MemoryRecords, clock: ManualClock) -> Keys:
    return Keys(records, clock)


async def test_a_key_is_recognised_as_what_it_was_made_for(keys: Keys) -> None:
    key, text = await keys.create("ci", "acme", frozenset({Scope.EXEC}), quota=Quota(sessions=3))
    assert await keys.recognise(text) == Caller("acme", key.id, frozenset({Scope.EXEC}), key_quota=Quota(sessions=3))


async def test_a_key_has_a_second_spelling_for_clients_of_e2b(keys: Keys) -> None:
    key, text = await keys.create("ci", "acme")
    spelled = e2b_spelling(text)
    assert re.fullmatch("e2b_[0-9a-f]{80}", spelled)
    assert looks_like_key(spelled)
    assert (await keys.recognise(spelled)).key_id == (await keys.recognise(text)).key_id == key.id
    for wrong in (spelled[:-1], spelled + "0", spelled.upper(), f"e2b_{text}", spelled.replace("e2b_", "wk_")):
        with pytest.raises(Unauthorized):
            await keys.recognise(wrong)
    await keys.revoke(key.id)
    with pytest.raises(Unauthorized):
        await keys.recognise(spelled)
    first = await keys.create_first("first", "acme", ALL_SCOPES)
    assert first is not None
    with pytest.raises(InvalidRequest, match="no form for E2B"):
        e2b_spelling(first[1])


async def test_what_is_kept_does_not_contain_the_key(keys: Keys, records: MemoryRecords) -> None:
    key, text = await keys.create("ci", "acme")
    secret = text.rpartition("_")[2]
    record = await records.get("key", key.id)
    assert record is not None
    assert secret not in record.value
    assert secret not in str(key_view(key))
    assert key.hashed not in str(key_view(key))


async def test_equal_keys_would_be_kept_differently(keys: Keys) -> None:
    made = [(await keys.create("same", "acme"))[0] for _ in range(3)]
    assert len({key.salt for key in made}) == len({key.hashed for key in made}) == 3


@pytest.mark.parametrize(
    "wrong",
    ["", "wk_", "wk__", "wk_x_y", "sk_00_11", "wk_0_1_2", "é", "wk_\ud800_1", "e2b_", "e2b_" + "0" * 80, "x" * 100_000],
    ids=lambda text: ascii(text)[:20],
)
async def test_what_is_no_key_is_refused_in_the_same_words(keys: Keys, wrong: str) -> None:
    _, text = await keys.create("ci", "acme")
    for shown in (wrong, text[:-1], text + "0", text.upper(), text[:-1] + ("0" if text[-1] != "0" else "1")):
        with pytest.raises(Unauthorized) as refused:
            await keys.recognise(shown)
        assert refused.value.message == "this API key is not known here"


async def test_a_key_is_refused_after_its_expiry(keys: Keys, clock: ManualClock) -> None:
    _, text = await keys.create("ci", "acme", expires_at=clock.wall() + 60)
    await keys.recognise(text)
    await clock.advance(59.5)
    await keys.recognise(text)
    await clock.advance(0.5)
    with pytest.raises(Unauthorized, match="has expired"):
        await keys.recognise(text)


async def test_a_rotated_key_is_the_same_key_with_another_secret(keys: Keys) -> None:
    key, old = await keys.create("ci", "acme", ALL_SCOPES)
    fresh, new = await keys.rotate(key.id)
    assert (fresh.id, fresh.name, fresh.tenant, fresh.scopes) == (key.id, key.name, key.tenant, key.scopes)
    assert (await keys.recognise(new)).key_id == key.id
    with pytest.raises(Unauthorized):
        await keys.recognise(old)


async def test_an_old_secret_opens_until_its_overlap_ends(
    keys: Keys, records: MemoryRecords, clock: ManualClock
) -> None:
    key, first = await keys.create("ci", "acme", ALL_SCOPES)
    fresh, second = await keys.rotate(key.id, 60)
    assert key_view(fresh)["old_until"] == clock.wall() + 60
    for these in (keys, Keys(records, clock)):
        assert await these.recognise(first) == await these.recognise(second)
        # What stands on a secret, such as a sign-in, ends with that secret.
        assert (await these.identify(first)).hashed != (await these.identify(second)).hashed
        assert (await these.recognise_stored(key.id, key.hashed)).key_id == key.id
    await clock.advance(59.5)
    assert (await keys.recognise(first)).key_id == key.id
    await clock.advance(0.5)  # it is cached, and refused all the same
    for these in (keys, Keys(records, clock)):
        with pytest.raises(Unauthorized):
            await these.recognise(first)
        with pytest.raises(Unauthorized):
            await these.recognise_stored(key.id, key.hashed)
        assert (await these.recognise(second)).key_id == key.id
    assert [key_view(each)["old_until"] for each in await keys.list()] == [None]


async def test_one_old_secret_is_kept_and_no_longer_than_the_key(keys: Keys, clock: ManualClock) -> None:
    key, first = await keys.create("ci", "acme", ALL_SCOPES, expires_at=clock.wall() + 30)
    _, second = await keys.rotate(key.id, 60)
    _, third = await keys.rotate(key.id, 60)
    assert (await keys.recognise(second)).key_id == (await keys.recognise(third)).key_id
    with pytest.raises(Unauthorized):
        await keys.recognise(first)
    await clock.advance(30)
    for text in (second, third):
        with pytest.raises(Unauthorized, match="has expired"):
            await keys.recognise(text)
    _, fourth = await keys.create("other", "acme")
    key_id = (await keys.recognise(fourth)).key_id
    _, fifth = await keys.rotate(key_id, 60)
    await keys.rotate(key_id)  # without an overlap nothing is left of earlier secrets
    for text in (fourth, fifth):
        with pytest.raises(Unauthorized):
            await keys.recognise(text)
    for wrong in (-1, 8 * 86400, float("nan")):
        with pytest.raises(InvalidRequest, match="an old secret cannot stay valid"):
            await keys.rotate(key_id, wrong)


async def test_a_revoked_key_is_refused_at_once_here_and_soon_elsewhere(
    keys: Keys, records: MemoryRecords, clock: ManualClock
) -> None:
    elsewhere = Keys(records, clock)
    key, text = await keys.create("ci", "acme")
    await keys.recognise(text)
    await elsewhere.recognise(text)
    await keys.revoke(key.id)
    with pytest.raises(Unauthorized):
        await keys.recognise(text)
    await clock.advance(CACHED_S)
    with pytest.raises(Unauthorized):
        await elsewhere.recognise(text)
    with pytest.raises(NotFound, match="warren keys list"):
        await keys.revoke(key.id)


async def test_noting_the_last_use_does_not_make_a_revoked_key_last_longer(
    keys: Keys, records: MemoryRecords, clock: ManualClock
) -> None:
    elsewhere = Keys(records, clock)
    key, text = await keys.create("ci", "acme")
    await keys.recognise(text)
    await asyncio.sleep(0)
    await clock.advance(59)
    await keys.recognise(text)
    await elsewhere.revoke(key.id)
    await clock.advance(CACHED_S - 0.5)
    await keys.recognise(text)
    await clock.advance(0.5)
    with pytest.raises(Unauthorized):
        await keys.recognise(text)


async def test_the_last_use_is_noted_now_and_then(keys: Keys, clock: ManualClock) -> None:
    key, text = await keys.create("ci", "acme")
    for _ in range(3):
        await keys.recognise(text)
        await asyncio.sleep(0)
    first = (await keys.get(key.id)).used_at
    assert first == clock.wall()
    await clock.advance(61)
    await keys.recognise(text)
    await asyncio.sleep(0)
    assert (await keys.get(key.id)).used_at == first + 61


async def test_a_key_that_may_do_less_cannot_be_the_admin_key_of_the_configuration(
    keys: Keys, clock: ManualClock
) -> None:
    first = await keys.create_first("first", DEFAULT_TENANT, ALL_SCOPES)
    assert first is not None
    _, tenants = await keys.create("ci", "acme")
    _, other = await keys.create("ci", "acme", ALL_SCOPES)
    _, expired = await keys.create("old", DEFAULT_TENANT, ALL_SCOPES, clock.wall() + 1)
    _, bounded = await keys.create("few", DEFAULT_TENANT, ALL_SCOPES, quota=Quota(sessions=1))
    admin, rotated = await keys.create("admin", DEFAULT_TENANT, frozenset({Scope.ADMIN}))
    await keys.check_admin_key(rotated)
    _, admins = await keys.rotate(admin.id)
    await clock.advance(2)
    for text in (tenants, e2b_spelling(tenants), other, expired, bounded):
        with pytest.raises(InvalidRequest, match="would become an administrator"):
            await keys.check_admin_key(text)
    with pytest.raises(InvalidRequest, match=f"an old secret of {admin.id}: whoever has that"):
        await keys.check_admin_key(rotated)
    of_another_server = f"wk_first_{'0' * 64}"
    for text in ("", "chosen", admins, first[1], of_another_server, f"wk_{'0' * 16}_{'0' * 64}"):
        await keys.check_admin_key(text)


async def test_keys_are_listed_by_tenant(keys: Keys) -> None:
    for tenant in ("a", "b", "a"):
        await keys.create("k", tenant)
    assert [key.tenant for key in await keys.list("a")] == ["a", "a"]
    assert len(await keys.list()) == 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": ""}, "1 to 128"),
        ({"name": "a\nb"}, "1 to 128"),
        ({"tenant": "a b"}, "cannot be a tenant's name"),
        ({"tenant": ""}, "cannot be a tenant's name"),
        ({"scopes": frozenset()}, "can do nothing"),
        ({"expires_at": 1.0}, "expired before"),
    ],
)
async def test_a_key_that_makes_no_sense_is_not_made(keys: Keys, values: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await keys.create(**{"name": "ci", "tenant": "acme", **values})  # type: ignore[arg-type]
    assert not await keys.any()
