"""Tokens are refused once they are revoked, in every process, also while the store is away."""

import pytest

from warren.access.revocations import CACHED_S, TRUSTED_S, Revocations
from warren.model.errors import InvalidRequest, NotFound, Unauthorized, Unavailable
from warren.stores.memory import MemoryRecords
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


async def refused(revocations: Revocations, **claims: object) -> bool:
    try:
        await revocations.check(claims)
    except Unauthorized:
        return True
    return False


async def test_one_token_is_refused_and_others_are_not() -> None:
    clock, records = ManualClock(), MemoryRecords()
    here, there = Revocations(records, clock), Revocations(records, clock)
    assert not await refused(there, jti="one")
    made = await here.revoke(token_id="one")
    assert await refused(here, jti="one")
    assert not await refused(here, jti="two")
    await clock.advance(CACHED_S)
    assert await refused(there, jti="one")
    await there.withdraw(made.id)
    assert not await refused(there, jti="one")
    with pytest.raises(NotFound):
        await there.withdraw(made.id)


async def test_a_subject_loses_what_it_got_and_may_get_new_ones() -> None:
    clock, records = ManualClock(), MemoryRecords()
    revocations = Revocations(records, clock)
    made = await revocations.revoke(subject="eve")
    assert await refused(revocations, sub="eve", iat=made.made_at - 10)
    assert await refused(revocations, sub="eve"), "who knows when it was issued"
    assert not await refused(revocations, sub="eve", iat=made.made_at + 1)
    assert not await refused(revocations, sub="bob", iat=1)
    await clock.advance(60.0)
    again = await revocations.revoke(subject="eve")
    assert again.id == made.id
    assert await refused(revocations, sub="eve", iat=made.made_at + 1)


class AwayRecords(MemoryRecords):
    away = False

    async def list(self, *arguments: object, **named: object) -> list[object]:  # type: ignore[override]
        if self.away:
            raise Unavailable("away")
        return await super().list(*arguments, **named)  # type: ignore[arg-type, return-value]


async def test_while_the_store_is_away_those_read_last_count_for_a_while() -> None:
    clock, records = ManualClock(), AwayRecords()
    revocations = Revocations(records, clock)
    await revocations.revoke(token_id="one")
    records.away = True
    await clock.advance(CACHED_S)
    assert await refused(revocations, jti="one")
    assert not await refused(revocations, jti="two")
    await clock.advance(TRUSTED_S)
    for checked in (revocations, Revocations(records, clock)):
        for _ in range(3):  # also a moment after an attempt that failed
            with pytest.raises(Unavailable):
                await checked.check({"jti": "two"})
    records.away = False
    await clock.advance(CACHED_S)
    assert not await refused(revocations, jti="two")


async def test_old_ones_are_removed_and_nonsense_is_refused() -> None:
    clock, records = ManualClock(), MemoryRecords()
    revocations = Revocations(records, clock)
    await revocations.revoke(token_id="one", kept_s=10.0)
    await clock.advance(11.0)
    await revocations.revoke(token_id="two")
    assert [one.token_id for one in await revocations.list()] == ["two"]
    for values in ({}, {"token_id": "a", "subject": "b"}, {"subject": "x" * 300}, {"token_id": "\n"}):
        with pytest.raises(InvalidRequest):
            await revocations.revoke(**values)
