"""What a caller's quotas allow, and how much of each is used now. GET /api/quotas shows it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from warren.governance.quotas import Quotas
from warren.interfaces.store import Held, SessionStore
from warren.model.access import Caller, Quota
from warren.model.spec import MIB

NOW: Final = "now"
MINUTE: Final = "minute"
DAY: Final = "day"
_HELD: Final = ("sessions", "paused_sessions", "disk_mb", "gpus")
_A_MINUTE: Final = ("requests_per_minute", "creates_per_minute")
_A_DAY: Final = ("exec_seconds_per_day", "bytes_out_per_day", "egress_bytes_per_day")
_UNCOUNTED: Final = ("egress_connections", "egress_mbps")  # workers enforce them, and nobody adds them up


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """`of` is tenant or key. `bound` is None if there is none. `used` is None if it is not counted: requests and
    creates are counted only where they are bounded."""

    name: str
    of: str
    per: str
    bound: int | None
    used: int | None


class QuotaReader:
    """`spent_today` returns what a tenant has used of something today, `artifact_bytes` what its artifacts take, and
    `snapshot_bytes` and `log_bytes` what its snapshots and the logs of its sessions
    take, `volumes_used` how many volumes it has, and of what size."""

    def __init__(
        self,
        store: SessionStore,
        quotas: Quotas,
        spent_today: Callable[[str, str], Awaitable[float]],
        artifact_bytes: Callable[[str], Awaitable[int]],
        snapshot_bytes: Callable[[str], Awaitable[int]],
        log_bytes: Callable[[str], Awaitable[int]],
        volumes_used: Callable[[str], Awaitable[Mapping[str, int]]],
    ) -> None:
        self._store = store
        self._quotas = quotas
        self._spent_today = spent_today
        self._stored = {"artifacts_mb": artifact_bytes, "snapshots_mb": snapshot_bytes, "logs_mb": log_bytes}
        self._volumes_used = volumes_used

    async def read(self, caller: Caller) -> list[QuotaUse]:
        """Returns all quotas of the tenant, and those of the key that bound it."""
        held, held_by_key = await self._store.held(caller.tenant, caller.key_id)
        stored = {name: -(-await count(caller.tenant) // MIB) for name, count in self._stored.items()}
        stored |= await self._volumes_used(caller.tenant)
        rows: list[QuotaUse] = []
        for (whose, quota), holds in zip(caller.quota_levels, (held_by_key, held), strict=True):
            of = whose.partition(":")[0]
            async for name, per, used in self._level(caller.tenant, whose, quota, holds, stored):
                bound: int | None = getattr(quota, name)
                if of == "tenant" or bound is not None:
                    rows.append(QuotaUse(name, of, per, bound, used))
        return sorted(rows, key=lambda row: row.of, reverse=True)  # the tenant's first

    async def _level(
        self, tenant: str, whose: str, quota: Quota, held: Held, stored: Mapping[str, int]
    ) -> AsyncIterator[tuple[str, str, int | None]]:
        for name in _HELD:
            yield name, NOW, getattr(held, name)
        for name in _A_MINUTE:
            bound = getattr(quota, name)
            yield name, MINUTE, None if bound is None else await self._quotas.minute_use(whose, name)
        for name in _A_DAY:
            yield name, DAY, await self._day_use(tenant, whose, name, getattr(quota, name))
        for name, used in stored.items():
            yield name, NOW, used
        for name in _UNCOUNTED:
            yield name, NOW, None

    async def _day_use(self, tenant: str, whose: str, name: str, bound: int | None) -> int:
        """Returns the larger of two figures: the usage book knows what came before a restart, the counter what is not
        yet written there."""
        what = name.removesuffix("_per_day")
        counted = 0 if bound is None else await self._quotas.day_use(whose, what)
        return max(counted, int(await self._spent_today(tenant, what))) if whose.startswith("tenant:") else counted
