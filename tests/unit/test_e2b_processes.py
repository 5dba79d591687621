"""What happens to the output of a command whose client leaves at a bad moment."""

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

from warren.http.e2b.envd.processes import ask_for_output
from warren.model.operations import Chunk, OutputStream

pytestmark = pytest.mark.anyio


async def test_who_leaves_while_the_first_output_is_asked_for_leaves_no_reader() -> None:
    is_closed = asyncio.Event()

    async def output() -> AsyncIterator[Chunk]:
        try:
            await asyncio.sleep(60)
            yield Chunk(OutputStream.STDOUT, 0, b"")
        finally:
            is_closed.set()

    others = asyncio.all_tasks()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await ask_for_output(output())
        pytest.fail("it was not cancelled")
    assert asyncio.all_tasks() == others
    assert is_closed.is_set()
