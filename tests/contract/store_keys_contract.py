"""What every session store promises about idempotency keys. Part of `StoreContract`."""

import asyncio
from dataclasses import replace

import pytest
from contract.store_values import EPOCH, STRANGE, S, a_key, a_session, added, ended, swapped

from warren.interfaces.store import ANSWER_GONE, Added, Key, KeyLimits, KeyRecord, SessionStore
from warren.model.errors import KeyReused, QuotaExceeded
from warren.model.session import EndReason, SessionState


def an_exec_key(name: str = "k", **values: str) -> Key:
    return a_key(name, **{"scope": "ses_1", **values})


@pytest.mark.anyio
class StoreKeysContract:
    # Keys of creates.

    async def test_a_known_key_gives_its_session_as_it_is_now(self, store: SessionStore) -> None:
        session = await added(store, a_key())
        session = await swapped(store, session, S.RUNNING)
        late = a_session()
        assert await store.add(late, a_key()) == (session, Added.KEY)
        assert await store.get("acme", late.id) is None

    async def test_a_known_key_gives_its_session_also_when_it_has_ended(self, store: SessionStore) -> None:
        session = await ended(store, await added(store, a_key()))
        assert await store.add(a_session(), a_key()) == (session, Added.KEY)

    async def test_a_known_key_comes_before_the_thread(self, store: SessionStore) -> None:
        session = await ended(store, await added(store, a_key(), thread_id="t"))
        await added(store, thread_id="t")
        assert await store.add(a_session(thread_id="t"), a_key()) == (session, Added.KEY)

    async def test_a_key_with_another_fingerprint_is_refused(self, store: SessionStore) -> None:
        session = await added(store, a_key(), thread_id="t")
        late = a_session(thread_id="other")
        with pytest.raises(KeyReused):
            await store.add(late, a_key(fingerprint="two"))
        assert await store.get("acme", late.id) is None
        assert await store.add(a_session(), a_key()) == (session, Added.KEY)

    @pytest.mark.parametrize("reason", [EndReason.FAILED, EndReason.UNDONE])
    @pytest.mark.parametrize("fingerprint", ["one", "two"])
    async def test_a_key_whose_session_came_to_nothing_can_be_used_again(
        self, store: SessionStore, reason: EndReason, fingerprint: str
    ) -> None:
        await ended(store, await added(store, a_key()), reason=reason)
        second = await added(store, a_key(fingerprint=fingerprint))
        assert await store.add(a_session(), a_key(fingerprint=fingerprint)) == (second, Added.KEY)

    async def test_a_key_that_the_session_of_a_thread_got_can_be_taken_back(self, store: SessionStore) -> None:
        await added(store, thread_id="t")
        await store.add(a_session(thread_id="t"), a_key())
        await store.release_key(a_key(fingerprint="two"))
        with pytest.raises(KeyReused):
            await store.add(a_session(), a_key(fingerprint="two"))
        await store.release_key(a_key())
        fresh = a_session()
        assert await store.add(fresh, a_key(fingerprint="two")) == (fresh, Added.NEW)

    @pytest.mark.parametrize("state", [S.CREATING, S.RUNNING])
    async def test_a_key_is_remembered_for_the_session_of_the_thread(
        self, store: SessionStore, state: SessionState
    ) -> None:
        session = await added(store, thread_id="t", state=state)
        assert await store.add(a_session(thread_id="t"), a_key()) == (session, Added.THREAD)
        session = await ended(store, session)
        assert await store.add(a_session(thread_id="t"), a_key()) == (session, Added.KEY)

    @pytest.mark.parametrize("state", [S.LOST, S.STOPPING])
    async def test_a_key_is_not_remembered_for_a_session_that_is_no_use_any_more(
        self, store: SessionStore, state: SessionState
    ) -> None:
        session = await added(store, thread_id="t", state=state)
        assert await store.add(a_session(thread_id="t"), a_key()) == (session, Added.THREAD)
        await swapped(store, session, *(() if state is S.STOPPING else (S.STOPPING,)), S.ENDED)
        second = await added(store, a_key(fingerprint="two"), thread_id="t")
        assert await store.add(a_session(thread_id="t"), a_key(fingerprint="two")) == (second, Added.KEY)

    async def test_keys_are_apart_by_scope_and_by_tenant(self, store: SessionStore) -> None:
        keys = (a_key(), a_key(scope="other"), a_key(tenant="other"), a_key("K"), a_key(scope="createk"))
        made = {(await added(store, key, tenant=key.tenant)).id for key in keys}
        assert len(made) == len(keys)

    async def test_a_hundred_adds_with_a_key_at_once_make_one_session(self, store: SessionStore) -> None:
        answers = await asyncio.gather(*(store.add(a_session(), a_key()) for _ in range(100)))
        assert [which for _, which in answers].count(Added.NEW) == 1
        assert len({session.id for session, _ in answers}) == 1
        assert len(await store.active()) == 1

    async def test_a_key_of_a_session_that_is_still_there_stays(self, store: SessionStore) -> None:
        running = await added(store, a_key("running"), epoch="boot-0")
        over = await ended(store, await added(store, a_key("over")), ended=10.0)
        assert await store.purge(EPOCH, 10.0) == 0
        assert await store.add(a_session(), a_key("running")) == (running, Added.KEY)
        assert await store.add(a_session(), a_key("over")) == (over, Added.KEY)

    async def test_a_key_of_a_session_that_was_purged_is_unknown(self, store: SessionStore) -> None:
        await ended(store, await added(store, a_key()), ended=10.0)
        assert await store.purge(EPOCH, 11.0) == 1
        await added(store, a_key(fingerprint="two"))

    # Keys of other work.

    async def test_a_claimed_key_is_known_and_gets_its_answer(self, store: SessionStore) -> None:
        key = an_exec_key()
        assert await store.claim_key(key, EPOCH, 1.0) is None
        assert await store.claim_key(key, EPOCH, 2.0) == KeyRecord("one")
        await store.answer_key(key, "42")
        assert await store.claim_key(key, EPOCH, 3.0) == KeyRecord("one", "42")

    async def test_a_claimed_key_with_another_fingerprint_is_refused(self, store: SessionStore) -> None:
        await store.claim_key(an_exec_key(), EPOCH, 1.0)
        with pytest.raises(KeyReused):
            await store.claim_key(an_exec_key(fingerprint="two"), EPOCH, 1.0)
        assert await store.claim_key(an_exec_key(), EPOCH, 1.0) == KeyRecord("one")

    async def test_a_released_key_is_unknown(self, store: SessionStore) -> None:
        key = an_exec_key()
        await store.claim_key(key, EPOCH, 1.0)
        await store.answer_key(key, "42")
        await store.release_key(key)
        assert await store.claim_key(replace(key, fingerprint="two"), EPOCH, 2.0) is None

    async def test_the_oldest_answers_of_a_tenant_make_room_for_its_new_ones(self, store: SessionStore) -> None:
        store.key_limits = KeyLimits(answer_bytes=3000, all_answer_bytes=5000)
        keys = [an_exec_key(f"k{number}") for number in range(5)]
        other = an_exec_key("k", tenant="other")
        for number, key in enumerate([other, *keys]):
            await store.claim_key(key, EPOCH, float(number))
            await store.answer_key(key, "x" * 1000)
            await store.answer_key(key, "x" * 1000)  # the same answer counts once

        async def answers() -> list[int]:
            known = [await store.claim_key(key, EPOCH, 9.0) for key in (other, *keys)]
            return [0 if one is None or one.answer == ANSWER_GONE else len(one.answer) for one in known]

        assert await answers() == [1000, 0, 0, 1000, 1000, 1000]
        await store.answer_key(keys[0], "x" * 4000)  # too long for the tenant
        assert (await store.claim_key(keys[0], EPOCH, 9.0)) == KeyRecord("one", ANSWER_GONE)
        await store.release_key(keys[4])
        await store.claim_key(an_exec_key("late"), EPOCH, 9.0)
        await store.answer_key(an_exec_key("late"), "x" * 2000)
        assert await answers() == [1000, 0, 0, 0, 0, 0]
        store.key_limits = KeyLimits(all_answer_bytes=3500)
        await store.answer_key(other, "x" * 2000)  # others keep theirs: there is no room for it
        assert await answers() == [0, 0, 0, 0, 0, 0]
        assert len((await store.claim_key(an_exec_key("late"), EPOCH, 9.0) or KeyRecord("")).answer) == 2000

    async def test_a_tenant_has_so_many_keys_at_most(self, store: SessionStore) -> None:
        store.key_limits = KeyLimits(keys=3, all_keys=5)
        for number in range(3):
            assert await store.claim_key(an_exec_key(f"k{number}"), EPOCH, float(number)) is None
        with pytest.raises(QuotaExceeded, match="3 Idempotency-Keys"):
            await store.claim_key(an_exec_key("k3"), EPOCH, 3.0)
        assert await store.claim_key(an_exec_key("k0"), EPOCH, 3.0) == KeyRecord("one")
        for number in range(2):
            assert await store.claim_key(an_exec_key(f"k{number}", tenant="other"), EPOCH, 9.0) is None
        with pytest.raises(QuotaExceeded, match="there are 5"):
            await store.claim_key(an_exec_key("k", tenant="third"), EPOCH, 9.0)
        await store.release_key(an_exec_key("k0"))
        assert await store.claim_key(an_exec_key("k3"), EPOCH, 3.0) is None
        await store.purge(EPOCH, 2.0)
        assert await store.claim_key(an_exec_key("k4"), EPOCH, 6.0) is None

    async def test_answering_and_releasing_what_is_unknown_does_nothing(self, store: SessionStore) -> None:
        await store.answer_key(an_exec_key(), "42")
        await store.release_key(an_exec_key())
        assert await store.claim_key(an_exec_key(), EPOCH, 1.0) is None

    async def test_an_earlier_request_cannot_answer_or_release_the_key_of_a_later_one(
        self, store: SessionStore
    ) -> None:
        await store.claim_key(an_exec_key(), EPOCH, 1.0)
        await store.answer_key(an_exec_key(fingerprint="two"), "42")
        await store.release_key(an_exec_key(fingerprint="two"))
        assert await store.claim_key(an_exec_key(), EPOCH, 2.0) == KeyRecord("one")

    async def test_claimed_keys_are_apart_by_scope_and_by_tenant(self, store: SessionStore) -> None:
        keys = (an_exec_key(), an_exec_key(scope="ses_2"), an_exec_key(tenant="other"), an_exec_key("K"))
        assert [await store.claim_key(key, EPOCH, 1.0) for key in keys] == [None] * len(keys)
        await store.answer_key(keys[0], "42")
        assert [await store.claim_key(key, EPOCH, 1.0) for key in keys[1:]] == [KeyRecord("one")] * 3

    async def test_of_a_hundred_claims_at_once_one_is_the_first(self, store: SessionStore) -> None:
        answers = await asyncio.gather(*(store.claim_key(an_exec_key(), EPOCH, 1.0) for _ in range(100)))
        assert answers.count(None) == 1
        assert answers.count(KeyRecord("one")) == 99

    @pytest.mark.parametrize("text", [*STRANGE, "x" * 3_000_000], ids=lambda text: ascii(text)[:20])
    async def test_an_answer_is_kept_exactly(self, store: SessionStore, text: str) -> None:
        key = an_exec_key(text[:200], fingerprint=text[:200])
        await store.claim_key(key, EPOCH, 1.0)
        await store.answer_key(key, text)
        assert await store.claim_key(key, EPOCH, 1.0) == KeyRecord(text[:200], text)

    async def test_purge_forgets_claimed_keys_by_age_and_epoch(self, store: SessionStore) -> None:
        session = await added(store)
        keys = [an_exec_key(name, scope=session.id) for name in ("old", "new", "elsewhen")]
        for key, epoch, made in zip(keys, (EPOCH, EPOCH, "boot-0"), (10.0, 20.0, 99.0), strict=True):
            await store.claim_key(key, epoch, made)
        assert await store.purge(EPOCH, 20.0) == 0
        assert [await store.claim_key(key, EPOCH, 30.0) for key in keys] == [None, KeyRecord("one"), None]
