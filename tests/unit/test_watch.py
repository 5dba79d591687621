"""Watches of the kernel's figures: one task for all, one action at a time, and a rest after a failure."""

import asyncio

import pytest

from warren.sandboxes.host.watch import Watch, Watches

pytestmark = pytest.mark.anyio


class Figure(Watch):
    name = "a figure of a test"
    retry_s = 0.25

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.looks = self.acts = 0
        self.is_high, self.fails = False, fails
        self.may_end = asyncio.Event()

    def _is_too_much(self) -> bool:
        self.looks += 1
        if self.fails:
            raise OSError("it cannot be read")
        return self.is_high

    async def _act(self) -> None:
        self.acts += 1
        await self.may_end.wait()


async def looked(figure: Figure, times: int) -> None:
    async with asyncio.timeout(10):
        while figure.looks < times:
            await asyncio.sleep(0.01)


async def test_what_takes_long_is_done_once_at_a_time_and_holds_up_no_other() -> None:
    slow, other = Figure(), Figure()
    watches = Watches(slow, other)
    watches.start()
    watches.start()
    await looked(slow, 2)
    slow.is_high = True
    await looked(slow, slow.looks + 1)
    seen = slow.looks
    await looked(other, other.looks + 3)
    assert (slow.acts, slow.looks) == (1, seen)
    slow.is_high = False
    slow.may_end.set()
    await looked(slow, seen + 1)
    assert slow.acts == 1
    await watches.close()


async def test_one_that_cannot_be_read_is_tried_again_later() -> None:
    broken, other = Figure(fails=True), Figure()
    watches = Watches(broken, other)
    watches.start()
    await looked(broken, 2)
    assert other.looks >= broken.looks + 1
    await watches.close()


async def test_closing_ends_what_is_being_done() -> None:
    figure = Figure()
    figure.is_high = True
    watches = Watches(figure)
    watches.start()
    await looked(figure, 1)
    await watches.close()
    seen = figure.looks
    await asyncio.sleep(0.2)
    assert (figure.looks, figure.acts) == (seen, 1)
    assert not [task for task in asyncio.all_tasks() if task.get_name() in (figure.name, "kernel-watches")]
