"""Decides which template is built next.

One template of a tenant is built at a time, and a few on the server. What comes meanwhile waits: the builds of a tenant
in their order, and tenants take turns, whoever was served longest ago first. A tenant has a bound on how many of its
builds are here, running and waiting; all tenants together have one as well, which leaves a place for one that comes
later.
"""

import asyncio
from typing import Final

from warren.http.e2b.errors import wait_for_change
from warren.kernel.fair_share import FairShare, Turns

MAX_AT_ONCE: Final = 2
MAX_OF_TENANT: Final = 10
_MAX_IN_ALL: Final = 100

Turn = asyncio.Future[None]


class BuildQueue:
    """A build joins, waits for its turn, and leaves when it has ended, whether its turn has come or not."""

    def __init__(self) -> None:
        self._here = FairShare(_MAX_IN_ALL, each=MAX_OF_TENANT, of_rest=1)
        self._waiting = Turns[Turn]()
        self._building: set[str] = set()  # tenants

    def __repr__(self) -> str:
        return f"<BuildQueue: {len(self._building)} building, {len(self._waiting)} waiting>"

    def join(self, tenant: str) -> Turn:
        """Returns what is done when the build may begin, perhaps at once. Raises E2bError if too many wait."""
        if not self._here.try_take(tenant):
            held = self._here.held(tenant)
            which = f"{held} templates of yours" if held else "too many templates"
            raise wait_for_change(f"{which} are being built or wait for it; try again when one is done")
        turn: Turn = asyncio.get_running_loop().create_future()
        self._waiting.add(tenant, turn)
        self._begin_next()
        return turn

    def leave(self, tenant: str, turn: Turn) -> None:
        if turn in self._waiting.of(tenant):
            self._waiting.remove(tenant, turn)
        elif not turn.cancelled():
            self._building.discard(tenant)
        self._here.give_back(tenant)
        self._begin_next()

    def _begin_next(self) -> None:
        while len(self._building) < MAX_AT_ONCE:
            try:
                tenant, turn = self._waiting.next(lambda owner: owner not in self._building)
            except KeyError:
                return
            if not turn.done():  # its server is being stopped
                turn.set_result(None)
                self._building.add(tenant)
