"""Entries that wait to be written: a bounded queue in which no tenant can take the place of the others.

While there is room a tenant may use all of it. When the queue is full, the newest entry of the tenant that uses most
makes room for one of a tenant that uses less than its share. Entries are taken from the tenants in turn. The writer
holds its lock during every call.
"""

from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from warren.kernel.fair_share import FairShare, Turns

_MAX_LOOKS: Final = 8  # how often one `put` looks for the largest tenant: that takes a while


class OfTenant(Protocol):
    @property
    def tenant(self) -> str: ...


E = TypeVar("E", bound=OfTenant)


class WaitingEntry(NamedTuple, Generic[E]):
    """An entry in the queue. `size` counts the characters of its texts, and something for the rest of it."""

    entry: E
    secrets: tuple[str, ...] | None
    size: int
    number: int = 0


class FairQueue(Generic[E]):
    """Holds at most `most` entries, whose texts have at most `held_most` characters together."""

    def __init__(self, most: int, held_most: int) -> None:
        self._most = most
        self._entries = Turns[WaitingEntry[E]]()
        self._characters = FairShare(held_most)
        self._largest = ""
        self.last_number = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest_number(self) -> int:
        """The number of the oldest entry; if there is none, the number that the next one will get."""
        return min((item.number for item in self._entries.firsts()), default=self.last_number + 1)

    def put(self, entries: Iterable[WaitingEntry[E]]) -> list[WaitingEntry[E]]:
        """Adds entries. Returns those for which there is no room, of the new ones and of those that waited."""
        lost: list[WaitingEntry[E]] = []
        looks = _MAX_LOOKS
        for item in entries:
            tenant = tenant_of(item.entry)
            while self._is_full(item.size) and self._is_within_share(tenant, item.size):
                if not self._is_larger(self._largest, tenant, item.size):
                    looks -= 1
                    self._largest = max(self._entries, key=self._part_of) if looks > 0 else tenant
                if not self._is_larger(self._largest, tenant, item.size):
                    break
                lost.append(self._forget(self._largest, self._entries.take(self._largest, newest=True)))
            if self._is_full(item.size):
                lost.append(item)
            else:
                self._append(tenant, item)
        return lost

    def take(self, most: int) -> list[WaitingEntry[E]]:
        """Takes the oldest entry of each tenant in turn."""
        return [self._forget(*self._entries.next()) for _ in range(min(most, len(self._entries)))]

    def _is_full(self, size: int) -> bool:
        return len(self._entries) >= self._most or not self._characters.may_take("", size)

    def _is_within_share(self, tenant: str, size: int) -> bool:
        tenants = self._entries.owners + (tenant not in self._entries)
        return self._part_of(tenant, size) * tenants <= 1

    def _is_larger(self, one: str, other: str, size: int) -> bool:
        return one != other and self._part_of(one) > self._part_of(other, size)

    def _part_of(self, tenant: str, size: int = 0) -> float:
        """Which part of the queue the tenant uses, or would use with another entry of this size."""
        entries = len(self._entries.of(tenant)) + bool(size)
        return max(entries / self._most, (self._characters.held(tenant) + size) / self._characters.total)

    def _append(self, tenant: str, item: WaitingEntry[E]) -> None:
        self.last_number += 1
        self._entries.add(tenant, item._replace(number=self.last_number))
        self._characters.take(tenant, item.size)

    def _forget(self, tenant: str, item: WaitingEntry[E]) -> WaitingEntry[E]:
        self._characters.give_back(tenant, item.size)
        return item


def tenant_of(entry: OfTenant) -> str:
    return entry.tenant if isinstance(entry.tenant, str) else ""
