"""Every refused request is in the audit record: the first ones of a minute alone, the others as a number."""

import pytest

from warren.governance.audit.refusals import RECORDED_REFUSALS_PER_MINUTE, RefusalLimit
from warren.model.audit import REFUSED, AuditEntry
from warren.testing.manual_clock import ManualClock


@pytest.mark.anyio
async def test_what_gets_no_entry_of_its_own_is_counted_for_its_tenant() -> None:
    entries: list[AuditEntry] = []
    limit = RefusalLimit(ManualClock(), entries.append)
    told = [limit.may_record("loud") for _ in range(1000)]
    assert [limit.may_record("") for _ in range(3)] == [True] * 3
    assert sum(told) == RECORDED_REFUSALS_PER_MINUTE
    limit.flush()
    (entry,) = entries
    assert (entry.action, entry.tenant, entry.detail["count"]) == (REFUSED, "loud", 940)
    assert limit.may_record("loud"), "it begins to count anew"
    limit.flush()
    assert len(entries) == 1


@pytest.mark.anyio
async def test_many_tenants_are_counted_in_bounded_memory() -> None:
    entries: list[AuditEntry] = []
    limit = RefusalLimit(ManualClock(), entries.append)
    told = sum(limit.may_record(f"tenant-{number}") for number in range(5000))
    limit.flush()
    assert told + sum(entry.detail["count"] for entry in entries) == 5000
