"""The quota and the command policy of each tenant, as the operator has set them.

A tenant without a record has those of the record `*`; if there is none either, nothing bounds it. Records are cached
for CACHED_S, and for TRUSTED_S while the store is away.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from warren.interfaces.records import Record, RecordStore
from warren.kernel.clock import Clock
from warren.model.access import ANY_TENANT, NO_QUOTA, Quota, check_tenant
from warren.model.errors import InvalidRequest, NotFound, Unavailable
from warren.model.policy import Policy
from warren.model.session_log import read_level

KIND: Final = "tenant"
NO_POLICY: Final = Policy()
CACHED_S: Final = 2.0
TRUSTED_S: Final = 600.0
MAX_TENANTS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Tenant:
    """`logs`: how much is kept, at least, of what its sessions do; empty for what the server says."""

    name: str
    quota: Quota = NO_QUOTA
    policy: Policy = NO_POLICY
    logs: str = ""


class _CachedTenant(NamedTuple):
    """A tenant that was read at the time `read`; it is read again after `until`."""

    tenant: Tenant
    until: float
    read: float


class Tenants:
    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._cache: dict[str, _CachedTenant] = {}

    def __repr__(self) -> str:
        return f"<Tenants: {len(self._cache)} cached>"

    async def of(self, name: str) -> Tenant:
        """Returns the settings that apply to this tenant: its own, or those of `*`."""
        known = self._cache.get(name)
        if known is not None and self._clock.now() < known.until:
            return known.tenant
        try:
            tenant = await self._read_current(name)
        except Unavailable:
            if known is None or self._clock.now() >= known.read + TRUSTED_S:
                raise
            return self._put_in_cache(known.tenant, known.read)
        return self._put_in_cache(tenant, self._clock.now())

    async def _read_current(self, name: str) -> Tenant:
        record = await self._records.get(KIND, name) or await self._records.get(KIND, ANY_TENANT)
        return Tenant(name) if record is None else _read(record, name)

    def _put_in_cache(self, tenant: Tenant, read: float) -> Tenant:
        if len(self._cache) >= MAX_TENANTS:
            self._cache.clear()
        until = min(self._clock.now() + CACHED_S, read + TRUSTED_S)
        self._cache[tenant.name] = _CachedTenant(tenant, until, read)
        return tenant

    def _forget(self, name: str) -> None:
        """Forgets the tenant; for `*` all of them, because its record may have applied to any of them."""
        if name == ANY_TENANT:
            self._cache.clear()
        else:
            self._cache.pop(name, None)

    async def get(self, name: str) -> Tenant:
        record = await self._records.get(KIND, name)
        if record is None:
            raise NotFound(f"nothing is set for the tenant {name[:80]!r}", remedy="`warren tenants set NAME` sets it")
        return _read(record, name)

    async def list(self) -> list[Tenant]:
        return [_read(record, record.id) for record in await self._records.list(KIND, limit=MAX_TENANTS)]

    async def put(self, tenant: Tenant) -> Tenant:
        if tenant.name != ANY_TENANT:
            check_tenant(tenant.name)
        if await self._records.count(KIND) >= MAX_TENANTS:
            raise InvalidRequest(f"there are {MAX_TENANTS} tenants already")
        value = json.dumps({name: value for name, value in tenant_view(tenant).items() if name != "name"})
        while True:
            known = await self._records.get(KIND, tenant.name)
            if await self._records.put(Record(KIND, tenant.name, value, known.version + 1 if known else 1)):
                self._forget(tenant.name)
                return tenant

    async def delete(self, name: str) -> None:
        """Deletes the record of the tenant; its keys and sessions stay."""
        await self.get(name)
        await self._records.delete(KIND, name)
        self._forget(name)


def tenant_view(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "quota": tenant.quota.as_mapping(),
        "policy": _policy_view(tenant.policy),
        "logs": tenant.logs,
    }


def _policy_view(policy: Policy) -> dict[str, Any]:
    return {} if policy == NO_POLICY else policy.as_mapping()


def read_tenant(name: str, quota: Mapping[str, Any], policy: Mapping[str, Any], logs: str = "") -> Tenant:
    """Reads a tenant from JSON values."""
    read_level(logs)
    return Tenant(name, Quota.from_mapping(quota), Policy.from_mapping(policy) if policy else NO_POLICY, logs)


def _read(record: Record, name: str) -> Tenant:
    values = json.loads(record.value)
    return read_tenant(name, values["quota"], values["policy"], values.get("logs", ""))
