"""The memory of long answers: half for one tenant, room for those who come later, and nobody waits for ever."""

import asyncio

import pytest

from warren.kernel.answer_memory import AnswerMemory, AnswerRoom

pytestmark = pytest.mark.anyio


async def holding(memory: AnswerMemory, tenant: str, count: int, size: int = 10) -> int:
    return sum([memory.take_now(tenant, size) for _ in range(count)])


async def test_a_tenant_may_hold_as_much_as_it_leaves_free() -> None:
    memory = AnswerMemory(120)
    assert await holding(memory, "a", 100) == 6
    assert await holding(memory, "b", 100) == 3
    assert await holding(memory, "c", 100) == 1
    assert repr(memory) == "<AnswerMemory: 100 of 120 bytes held by 3, 0 waiting>"


async def test_who_waits_gets_room_in_turn_and_those_who_hold_least_first() -> None:
    memory, came = AnswerMemory(40, wait_s=5), list[str]()

    async def wait_for(tenant: str, name: str) -> None:
        assert await memory.take(tenant, 10)
        came.append(name)

    assert await holding(memory, "a", 2) == 2
    memory.count("c", 10)
    waiting = [asyncio.create_task(wait_for(*who)) for who in (("a", "a1"), ("a", "a2"), ("b", "b1"))]
    await asyncio.sleep(0)
    assert not memory.take_now("a", 1), "it would overtake those who wait"
    memory.give_back("c", 10)
    await asyncio.sleep(0.01)
    assert came == ["b1"]
    memory.give_back("b", 10)
    memory.give_back("a", 10)
    memory.give_back("a", 10)
    await asyncio.gather(*waiting)
    assert came == ["b1", "a1", "a2"]


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    memory = AnswerMemory(40, wait_s=0.02)
    assert await holding(memory, "a", 2) == 2
    assert not await memory.take("a", 10)
    gone = asyncio.create_task(memory.take("a", 10))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert repr(memory) == "<AnswerMemory: 20 of 40 bytes held by 1, 0 waiting>"
    room = AnswerRoom(memory, "b")
    assert await room.make(5)
    room.release()
    room.release()
    assert not await room.make(5), "its request is over"
    assert repr(memory) == "<AnswerMemory: 20 of 40 bytes held by 1, 0 waiting>"
