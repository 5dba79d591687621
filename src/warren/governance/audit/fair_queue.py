"""Entries that wait to be written: a bounded queue in which no tenant can take the place of the others.

While there is room a tenant may use all of it. When the queue is full, the newest entry of the tenant that uses most
makes room for one of a tenant that uses less than its share. Entries are taken from the tenants in turn. Used with the
writer's lock held.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from warren.model.audit import AuditEntry, RequestRecord

_LOOKS_MOST: Final = 8  # so often is the largest tenant looked for while some entries are put in: it takes a while


class Waiting(NamedTuple):
    """An entry in the queue. `size` counts the characters of its texts, and something for the rest of it."""

    entry: AuditEntry | RequestRecord
    secrets: tuple[str, ...] | None
    size: int
    number: int = 0


class _Tenant:
    __slots__ = ("held", "items", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: deque[Waiting] = deque()
        self.held = 0


class FairQueue:
    """Holds at most `most` entries, whose texts have at most `held_most` characters together."""

    def __init__(self, most: int, held_most: int) -> None:
        self._most = most
        self._held_most = held_most
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._largest: _Tenant | None = None
        self._count = self._held = 0
        self.last_number = 0

    def __len__(self) -> int:
        return self._count

    @property
    def oldest_number(self) -> int:
        """The number of the oldest entry; if there is none, the number that the next one will get."""
        return min((tenant.items[0].number for tenant in self._tenants.values()), default=self.last_number + 1)

    def put(self, entries: Iterable[Waiting]) -> list[Waiting]:
        """Gives the entries for which there is no room."""
        lost: list[Waiting] = []
        looks = _LOOKS_MOST
        for item in entries:
            name = tenant_of(item.entry)
            tenant = self._tenants.get(name) or _Tenant(name)
            while self._is_full(item.size) and self._is_within_share(tenant, item.size):
                if not self._is_larger(self._largest, tenant, item.size):
                    looks -= 1
                    self._largest = max(self._tenants.values(), key=self._weight) if looks > 0 else None
                if self._largest is None or not self._is_larger(self._largest, tenant, item.size):
                    break
                lost.append(self._remove_newest(self._largest))
            if self._is_full(item.size):
                lost.append(item)
            else:
                self._append(tenant, item)
        return lost

    def take(self, most: int) -> list[Waiting]:
        """Takes the oldest entry of each tenant in turn."""
        taken: list[Waiting] = []
        while self._tenants and len(taken) < most:
            name, tenant = self._tenants.popitem(last=False)
            item = tenant.items.popleft()
            self._forget(tenant, item)
            if tenant.items:
                self._tenants[name] = tenant
            taken.append(item)
        return taken

    def _is_full(self, size: int) -> bool:
        return self._count >= self._most or self._held + size > self._held_most

    def _is_within_share(self, tenant: _Tenant, size: int) -> bool:
        return self._weight(tenant, size) * (len(self._tenants) + (not tenant.items)) <= 1

    def _is_larger(self, one: _Tenant | None, other: _Tenant, size: int) -> bool:
        return one is not None and one is not other and self._weight(one) > self._weight(other, size)

    def _weight(self, tenant: _Tenant, size: int = 0) -> float:
        """Which part of the queue the tenant uses, or would use with another entry of this size."""
        return max((len(tenant.items) + bool(size)) / self._most, (tenant.held + size) / self._held_most)

    def _append(self, tenant: _Tenant, item: Waiting) -> None:
        self._tenants[tenant.name] = tenant
        self.last_number += 1
        tenant.items.append(item._replace(number=self.last_number))
        tenant.held += item.size
        self._held += item.size
        self._count += 1

    def _remove_newest(self, tenant: _Tenant) -> Waiting:
        item = tenant.items.pop()
        self._forget(tenant, item)
        if not tenant.items:
            del self._tenants[tenant.name]
        return item

    def _forget(self, tenant: _Tenant, item: Waiting) -> None:
        tenant.held -= item.size
        self._held -= item.size
        self._count -= 1
        if not tenant.items and tenant is self._largest:
            self._largest = None


def tenant_of(entry: AuditEntry | RequestRecord) -> str:
    return entry.tenant if isinstance(entry.tenant, str) else ""
