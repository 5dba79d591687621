"""Counts how many bytes each tenant has in all of something that is kept in records: artifacts, snapshots."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Final

from warren.interfaces.records import Record, RecordStore
from warren.kernel.logs import get_log
from warren.model.errors import Unavailable, WarrenError

PAGE: Final = 200
PAGE_LABELS: Final = 256 * 1024  # the characters of metadata after which a page of a list ends
_TRIES: Final = 50

_log = get_log(__name__)


class TenantUse:
    """`kind` is that of the records with the sums; `what` names in errors what is counted."""

    def __init__(self, records: RecordStore, kind: str, what: str) -> None:
        self._sums, self._kind, self._what = records, kind, what

    async def give_back(self, tenant: str, size: int) -> None:
        try:
            await self.change_use(tenant, -size, None)
        except WarrenError as exc:
            _log.warning("tenant_use_not_saved", of=self._what, tenant=tenant, action="count_later", error=exc)

    async def change_use(self, tenant: str, size: int, bound: int | None) -> bool:
        """Adds `size`, which may be negative, to the tenant's sum. Returns False if the sum would exceed `bound`."""
        if not size:
            return True
        for attempt in range(_TRIES):
            current = await self._sums.get(self._kind, tenant)
            total = max(0, (int(current.value) if current else 0) + size)
            if bound is not None and size > 0 and total > bound:
                return False
            changed = current.changed(str(total)) if current else Record(self._kind, tenant, str(total))
            if await self._sums.put(changed):
                return True
            await asyncio.sleep(0.001 * attempt)
        raise Unavailable(f"the sum of the tenant's {self._what} changes all the time", retry_after_s=1)

    async def used_bytes(self, tenant: str | None) -> int:
        """The bytes that one tenant has, or those of all tenants."""
        if tenant is None:
            return sum([int(use.value) async for use in self.users()])
        current = await self._sums.get(self._kind, tenant)
        return int(current.value) if current else 0

    async def users(self) -> AsyncGenerator[Record, None]:
        """Yields a record per tenant, whose value is the sum of the tenant's bytes."""
        after = ""
        while page := await self._sums.list(self._kind, after=after, limit=PAGE):
            for record in page:
                yield record
            after = page[-1].id

    async def correct_use(self, use: Record, sizes: AsyncIterable[int], is_busy: Callable[[], bool]) -> None:
        """Corrects the tenant's sum. Does nothing while something is being saved, or if the sum has changed meanwhile:
        the next sweep counts again."""
        if is_busy():
            return
        total = sum([size async for size in sizes])
        if total != int(use.value) and not is_busy():
            await self._sums.put(use.changed(str(total)))
