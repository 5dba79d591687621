"""Cleaning up goes to its end."""

import asyncio

import pytest

from warren.kernel.shielding import run_shielded

pytestmark = pytest.mark.anyio


async def test_a_cancellation_waits_for_the_work_and_then_goes_on() -> None:
    begun, may_end, done = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        begun.set()
        await may_end.wait()
        done.append("work")

    task = asyncio.ensure_future(run_shielded(work()))
    await begun.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["work"]


async def test_the_result_and_the_error_are_handed_on() -> None:
    async def seven() -> int:
        return 7

    async def fails() -> None:
        raise ValueError("no")

    assert await run_shielded(seven()) == 7
    with pytest.raises(ValueError, match="no"):
        await run_shielded(fails())
