"""Shares something between tenants, or between other owners.

`FairShare` decides how much one owner may hold: memory, connections, slots. `Turns` decides whose turn it is: items
wait in a queue for each owner, and owners are served one after the other. Both only decide and count. The caller's
docstring says what happens at the bound (refuse, wait, make room).

Rates, such as bytes a second, are another matter: sandboxes/egress/rate.py.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, KeysView
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")


class FairShare:
    """How much of `total` each owner holds.

    One owner may hold at most `each`, and at most `of_rest` times what it leaves free. With `of_rest=1` a single owner
    gets a half, two get a third each, and an owner that comes later always finds something.
    """

    __slots__ = ("_held", "_of_rest", "each", "in_all", "total")

    def __init__(self, total: float = inf, *, each: float = inf, of_rest: float | None = None) -> None:
        self.total = total
        self.in_all = 0
        self.each = each
        self._of_rest = of_rest
        self._held: dict[str, int] = {}  # without owners that hold nothing

    def __repr__(self) -> str:
        return f"<FairShare: {self.in_all} of {self.total:g} held by {len(self._held)}>"

    @property
    def owners(self) -> KeysView[str]:
        return self._held.keys()

    def held(self, owner: str) -> int:
        return self._held.get(owner, 0)

    def may_take(self, owner: str, amount: int = 1) -> bool:
        held, rest = self._held.get(owner, 0) + amount, self.total - self.in_all - amount
        return rest >= 0 and held <= self.each and (self._of_rest is None or held <= self._of_rest * rest)

    def try_take(self, owner: str, amount: int = 1) -> bool:
        """Takes the amount if the owner may; returns whether."""
        if not self.may_take(owner, amount):
            return False
        self.take(owner, amount)
        return True

    def take(self, owner: str, amount: int = 1) -> None:
        """Counts the amount, whether the owner may take it or not."""
        self._held[owner] = self._held.get(owner, 0) + amount
        self.in_all += amount

    def give_back(self, owner: str, amount: int = 1) -> None:
        """Counts the amount no more. Raises ValueError if the owner holds less: a share below zero would let it take
        more than the others."""
        left = self._held.get(owner, 0) - amount
        if left < 0:
            raise ValueError(f"{owner!r} gives back {amount} and holds {left + amount}")
        self.in_all -= amount
        if left:
            self._held[owner] = left
        else:
            self._held.pop(owner, None)

    def largest(self, among: Iterable[str] | None = None) -> str:
        """Returns the owner that holds the most, which should give something up first."""
        return max(self._held if among is None else among, key=self.held)

    def smallest_first(self, among: Iterable[str]) -> list[str]:
        """Returns the owners, those that hold the least first."""
        return sorted(among, key=self.held)

    def has_more_than_others(self, owner: str) -> bool:
        """Returns whether the owner holds more than an equal part of what is held; a single owner counts as one of
        two."""
        return self.held(owner) * max(2, len(self._held)) > self.in_all


class Turns(Generic[T]):
    """Waiting items, by owner. The owner that was served longest ago is next; its items are served in order."""

    __slots__ = ("_count", "_queues")

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()  # never an empty queue; the first owner is next
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, owner: str) -> bool:
        return owner in self._queues

    def __iter__(self) -> Iterator[str]:
        return iter(self._queues)

    @property
    def owners(self) -> int:
        return len(self._queues)

    def of(self, owner: str) -> deque[T]:
        """Returns the items of one owner. They must not be changed."""
        return self._queues.get(owner) or deque()

    def firsts(self) -> Iterable[T]:
        return (queue[0] for queue in self._queues.values())

    def add(self, owner: str, item: T) -> None:
        if (queue := self._queues.get(owner)) is None:
            queue = self._queues[owner] = deque()
        queue.append(item)
        self._count += 1

    def put_back(self, owner: str, item: T) -> None:
        """Adds an item that `next` has returned before the other items of its owner, which comes last."""
        self._queues.setdefault(owner, deque()).appendleft(item)
        self._count += 1

    def next(self, may: Callable[[str], bool] | None = None) -> tuple[str, T]:
        """Removes and returns the first item of the owner whose turn it is, which then comes last. Owners that `may`
        refuses keep their place. Raises KeyError if none waits."""
        owner = next((each for each in self._queues if may is None or may(each)), None)
        if owner is None:
            raise KeyError("nobody waits")
        queue = self._queues.pop(owner)
        item = queue.popleft()
        self._count -= 1
        if queue:
            self._queues[owner] = queue
        return owner, item

    def take(self, owner: str, *, newest: bool = False) -> T:
        """Removes and returns an item of this owner, out of turn."""
        queue = self._queues[owner]
        item = queue.pop() if newest else queue.popleft()
        self._taken(owner, queue)
        return item

    def remove(self, owner: str, item: T) -> None:
        queue = self._queues[owner]
        queue.remove(item)
        self._taken(owner, queue)

    def _taken(self, owner: str, queue: deque[T]) -> None:
        self._count -= 1
        if not queue:
            del self._queues[owner]
