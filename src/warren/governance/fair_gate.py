"""Lets tenants take turns in starting commands when they want more than the machine can do at once.

The gate has few slots. A tenant that is alone may start as many commands as it likes. As soon as there are others, a
tenant that holds no slot gets one at once, and the other commands wait, tenant by tenant in turn. A command gives its
slot back when it has ended, or after LONG_S: a command that takes longer waits for its own work, not for ours.
"""

import asyncio
import os
from typing import Final

from warren.kernel.fair_share import FairShare, Turns

LONG_S: Final = 0.05
ALONE_S: Final = 2.0
SLOTS: Final = max(1, (os.cpu_count() or 1) // 2)


class Turn:
    __slots__ = ("_gate", "_timer", "tenant")

    def __init__(self, gate: "FairGate", tenant: str) -> None:
        self._gate = gate
        self.tenant = tenant
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(LONG_S, self.leave)

    def leave(self) -> None:
        """May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._gate.left(self.tenant)


class NoTurn:
    """What a tenant gets while it is alone: it holds no slot."""

    def leave(self) -> None:
        pass


_NONE: Final = NoTurn()


class FairGate:
    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = FairShare(slots)
        self._waiting = Turns[asyncio.Future[Turn]]()
        self._seen: dict[str, float] = {}

    def __repr__(self) -> str:
        slots = self._slots
        return f"<FairGate: {slots.in_all} of {slots.total:g} slots held, {len(self._waiting)} waiting>"

    async def enter(self, tenant: str) -> "Turn | NoTurn":
        if self._is_alone(tenant):
            return _NONE
        if not self._slots.held(tenant) or (tenant not in self._waiting and self._slots.may_take(tenant)):
            self._slots.take(tenant)
            return Turn(self, tenant)
        turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiting.add(tenant, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            # The turn may have come in the moment of the cancellation: pass it on.
            if turn.done() and not turn.cancelled():
                turn.result().leave()
            raise

    def left(self, tenant: str) -> None:
        self._slots.give_back(tenant)
        while self._waiting and self._slots.in_all < self._slots.total:
            self._admit_next()

    def _admit_next(self) -> None:
        """Admits a command of the tenant whose turn it is, unless all of its callers have given up."""
        tenant, turn = self._waiting.next()
        while turn.done() and tenant in self._waiting:
            turn = self._waiting.take(tenant)
        if not turn.done():
            self._slots.take(tenant)
            turn.set_result(Turn(self, tenant))

    def _is_alone(self, tenant: str) -> bool:
        """Whether no other tenant has been here lately."""
        now = asyncio.get_running_loop().time()
        self._seen[tenant] = now
        if len(self._seen) == 1:
            return True
        for other, at in list(self._seen.items()):
            if now - at > ALONE_S:
                del self._seen[other]
        return len(self._seen) == 1 and not self._waiting
