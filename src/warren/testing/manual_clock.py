"""A clock that stands still until a test advances it."""

import asyncio
import heapq
import itertools


class ManualClock:
    """Time passes only in `advance`; sleepers wake in the order of their deadlines."""

    def __init__(self, now: float = 1000.0, *, epoch: str = "boot-1", wall: float = 1_800_000_000.0) -> None:
        self._now = now
        self._wall = wall
        self._epoch = epoch
        self._count = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now}, {len(self._sleepers)} asleep>"

    @property
    def epoch(self) -> str:
        return self._epoch

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def wall_at(self, moment: float) -> float:
        return self._wall + moment - self._now

    def set_wall(self, wall: float) -> None:
        self._wall = wall

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._count), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Moves time forward, wakes sleepers one by one, and lets each run until it waits again."""
        end = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, woken = heapq.heappop(self._sleepers)
            self._wall += at - self._now
            self._now = at
            if not woken.done():
                woken.set_result(None)
            for _ in range(20):
                await asyncio.sleep(0)
        self._wall += end - self._now
        self._now = end
        for _ in range(20):
            await asyncio.sleep(0)
