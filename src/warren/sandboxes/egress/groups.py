"""Bounds for all sandboxes of one owner, a tenant or a key, together: open connections, and a shared rate.

This process knows an owner only by a name that reveals nothing. A group has the bounds of the last message. A group
without members is kept for a while, so that closing and reopening a network does not start a new rate.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from warren.model.network import EgressBound
from warren.sandboxes.egress.rate import FairBucket

_MAX_KEPT: Final = 1000
_BYTES_S: Final = 125_000  # bytes per second in one megabit per second


class GroupMember(Protocol):
    @property
    def open_connections(self) -> int: ...


class Group:
    def __init__(self, bound: EgressBound) -> None:
        self.bound = bound
        self.members: set[GroupMember] = set()
        self.connections = 0
        self._rate: FairBucket | None = None
        self._set_rate(bound.mbps)

    def set_bound(self, bound: EgressBound) -> None:
        if bound.mbps != self.bound.mbps:
            self._set_rate(bound.mbps)
        self.bound = bound

    def _set_rate(self, mbps: int | None) -> None:
        now, bytes_s = asyncio.get_running_loop().time, (mbps or 0) * _BYTES_S
        self._rate = FairBucket(bytes_s, bytes_s / 4, now) if bytes_s else None

    @property
    def most(self) -> int | None:
        """The most connections of the group; None if there is no bound."""
        return 0 if self.bound.mbps == 0 else self.bound.connections

    @property
    def is_full(self) -> bool:
        return self.most is not None and self.connections >= self.most

    def take(self, member: GroupMember, count: int) -> float:
        return 0.0 if self._rate is None else self._rate.take(member, count)

    def add(self, member: GroupMember) -> None:
        if member not in self.members:
            self.members.add(member)
            self.connections += member.open_connections

    def remove(self, member: GroupMember) -> None:
        self.members.discard(member)
        self.connections -= member.open_connections


class Groups:
    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def join(self, member: GroupMember, before: Sequence[Group], bounds: Sequence[EgressBound]) -> tuple[Group, ...]:
        """Moves a member from the groups `before` to those of the bounds, and returns these."""
        names = {bound.owner for bound in bounds}
        for group in before:
            if group.bound.owner not in names:
                group.remove(member)
        if len(self._groups) > _MAX_KEPT:
            self._groups = {name: group for name, group in self._groups.items() if group.members}
        joined: list[Group] = []
        for bound in bounds:
            if bound.owner not in self._groups:
                self._groups[bound.owner] = Group(bound)
            joined.append(self._groups[bound.owner])
            joined[-1].set_bound(bound)
            joined[-1].add(member)
        return tuple(joined)
