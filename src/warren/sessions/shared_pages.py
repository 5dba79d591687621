"""Keeps pages of the list of sessions for a moment, for others who ask for the same: open dashboards do.

A page is returned again only while nothing was written to the store, so nobody sees less than before.
"""

import time
from collections.abc import Callable, Hashable
from typing import Any, Final

from warren.kernel.bounded_dict import BoundedDict

KEPT_S: Final = 1.0
_MAX_PAGES: Final = 16


class SharedPages:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pages = BoundedDict[Hashable, tuple[float, Hashable, dict[str, Any]]](_MAX_PAGES)

    def find(self, name: Hashable, revision: Hashable | None) -> dict[str, Any] | None:
        if revision is None or (known := self._pages.get(name)) is None:
            return None
        made_at, at_revision, page = known
        return page if at_revision == revision and self._now() - made_at < KEPT_S else None

    def keep(self, name: Hashable, revision: Hashable | None, page: dict[str, Any]) -> None:
        """`revision` is that of the store before the page was made."""
        if revision is None:
            return
        self._pages[name] = self._now(), revision, page
