"""Limits how many refused requests get an entry of their own, for each tenant and for all strangers together.

Otherwise anybody could push everything else out of the audit log. The requests beyond the limit are counted, and an
entry for each tenant says how many there were: every request is in the record, alone or as part of a number.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warren.kernel.clock import Clock
from warren.model.audit import REFUSED, AuditEntry

RECORDED_REFUSALS_PER_MINUTE: Final = 60
_MINUTE_S: Final = 60.0
_MAX_TENANTS: Final = 1024


@dataclass(slots=True)
class _Count:
    first_at: float
    last_at: float
    seen: int = 0


class RefusalLimit:
    """Calls `record` with the entries that tell the numbers: a minute after the first request, and in `flush`."""

    def __init__(self, clock: Clock, record: Callable[[AuditEntry], None]) -> None:
        self._clock = clock
        self._record = record
        self._counts: dict[str, _Count] = {}
        self._timer: asyncio.TimerHandle | None = None

    def may_record(self, tenant: str) -> bool:
        """Whether this request gets an entry of its own. `tenant` is empty for strangers."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MINUTE_S, self.flush)
        if tenant not in self._counts and len(self._counts) >= _MAX_TENANTS:
            tenant = ""
        now = self._clock.wall()
        count = self._counts.setdefault(tenant, _Count(now, now))
        count.seen += 1
        if count.seen <= RECORDED_REFUSALS_PER_MINUTE:
            count.first_at = now
            return True
        count.last_at = now
        return False

    def flush(self) -> None:
        """Records the numbers of the requests that got no entry of their own, and begins to count anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        for tenant, count in counts.items():
            if (left := count.seen - RECORDED_REFUSALS_PER_MINUTE) > 0:
                detail = {"count": left, "first_at": count.first_at, "last_at": count.last_at}
                self._record(AuditEntry(count.last_at, REFUSED, tenant, result="refused", detail=detail))
