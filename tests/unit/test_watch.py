"""A watch of the kernel's figures goes on when one look fails, and ends when it is closed."""

import asyncio

import anyio
import pytest

from warren.worker.host.watch import Watch

pytestmark = pytest.mark.anyio


class Failing(Watch):
    name = "a figure"
    retry_s = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.seen = asyncio.Event()

    async def _look(self) -> None:
        self.looks += 1
        if self.looks == 1:
            raise OSError("the figure cannot be read")
        self.seen.set()


async def test_a_look_that_fails_does_not_end_the_watch() -> None:
    watch = Failing()
    watch.start()
    watch.start()
    with anyio.fail_after(20):
        await watch.seen.wait()
    await watch.close()
    looks = watch.looks
    await asyncio.sleep(0.5)
    assert watch.looks == looks
