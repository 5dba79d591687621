"""A dictionary of bounded size, for caches. Why not `cachetools`: docs/adr/0039.

Reading an entry is a plain dictionary access and does not count as use: most caches here rewrite an entry every few
seconds anyway, and a read stands in the way of every request. Where reads should count, call `move_to_end`.
"""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """Holds at most `max_entries`. A written entry is the newest; one too many removes the oldest."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._max_entries:
            self.popitem(last=False)
