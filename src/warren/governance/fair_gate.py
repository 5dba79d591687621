"""Lets tenants take turns in starting commands when they want more than the machine can do at once.

The gate has few slots. While one tenant is alone it is always open. As soon as there are others, a tenant that holds no
slot gets one at once, and the other commands wait, tenant by tenant in turn. A command gives its slot back when it has
ended, or after LONG_S: a command that takes longer waits for its own work, not for ours.
"""

import asyncio
import os
from collections import Counter, OrderedDict, deque
from typing import Final

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
        self._slots = slots
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[Turn]]] = OrderedDict()
        self._seen: dict[str, float] = {}

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values()))
        return f"<FairGate: {self._held.total()} of {self._slots} slots held, {waiting} waiting>"

    async def enter(self, tenant: str) -> "Turn | NoTurn":
        if self._is_alone(tenant):
            return _NONE
        if not self._held[tenant] or self._is_free(tenant):
            self._held[tenant] += 1
            return Turn(self, tenant)
        turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            self._give_up(tenant, turn)
            raise

    def left(self, tenant: str) -> None:
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        while self._waiting and self._held.total() < self._slots:
            self._admit_next()

    def _admit_next(self) -> None:
        """Admits a command of the tenant that has waited longest for its turn; then it is the last in turn."""
        tenant, queue = self._waiting.popitem(last=False)
        while queue:
            turn = queue.popleft()
            if not turn.done():
                self._held[tenant] += 1
                turn.set_result(Turn(self, tenant))
                break
        if queue:
            self._waiting[tenant] = queue

    def _give_up(self, tenant: str, turn: asyncio.Future[Turn]) -> None:
        if turn.done() and not turn.cancelled():
            turn.result().leave()

    def _is_free(self, tenant: str) -> bool:
        return self._held.total() < self._slots and tenant not in self._waiting

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
