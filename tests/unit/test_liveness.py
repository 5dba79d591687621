"""Workers that fall silent: whoever waits for them hears of it, and nobody else does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from warren.cluster.proxy.liveness import FAILED_PINGS, Liveness
from warren.http.client.errors import Broken
from warren.model.errors import Unavailable

pytestmark = pytest.mark.anyio


class Workers:
    """Those in `silent` give no sign of life."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.asked: list[str] = []

    async def ask(self, address: str) -> None:
        self.asked.append(address)
        if address in self.silent:
            raise Unavailable(f"{address} does not answer")


@contextlib.asynccontextmanager
async def looking(workers: Workers) -> AsyncIterator[Liveness]:
    liveness = Liveness(workers.ask, interval_s=0.01)
    running = asyncio.ensure_future(liveness.run())
    try:
        yield liveness
    finally:
        running.cancel()
        await asyncio.wait([running])


async def waited(liveness: Liveness, address: str) -> None:
    async with liveness.watch(address):
        await asyncio.Event().wait()


async def test_who_waits_for_a_silent_worker_hears_of_it() -> None:
    workers = Workers()
    workers.silent.add("a:1")
    async with looking(workers) as liveness:
        with pytest.raises(Broken, match="stopped responding"):
            await asyncio.wait_for(waited(liveness, "a:1"), 30)
        assert workers.asked == ["a:1"] * FAILED_PINGS
        assert repr(liveness).startswith("<Liveness of 0 workers")


async def test_who_waits_for_another_worker_goes_on_waiting() -> None:
    workers = Workers()
    workers.silent.add("a:1")
    async with looking(workers) as liveness:
        patient = asyncio.ensure_future(waited(liveness, "b:1"))
        with pytest.raises(Broken):
            await asyncio.wait_for(waited(liveness, "a:1"), 30)
        assert not patient.done()
        assert "b:1" in workers.asked
        patient.cancel()
        await asyncio.wait([patient])
        assert patient.cancelled()


async def test_a_worker_that_speaks_now_and_then_is_not_silent() -> None:
    workers = Workers()
    async with looking(workers) as liveness:
        patient = asyncio.ensure_future(waited(liveness, "a:1"))
        while len(workers.asked) < 5 * FAILED_PINGS:
            workers.silent ^= {"a:1"}  # every other time
            seen = len(workers.asked)
            while len(workers.asked) == seen:
                await asyncio.sleep(0)
        assert not patient.done()
        patient.cancel()
        await asyncio.wait([patient])


async def test_a_time_out_inside_is_not_taken_for_silence() -> None:
    async with looking(Workers()) as liveness:
        with pytest.raises(TimeoutError):
            async with liveness.watch("a:1"), asyncio.timeout(0):
                await asyncio.Event().wait()
