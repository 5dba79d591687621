"""The gate: open for who is alone, in turns for several."""

import asyncio

import pytest

from warren.governance.fair_gate import LONG_S, FairGate, Turn

pytestmark = pytest.mark.anyio


async def entered(gate: FairGate, tenant: str, count: int) -> list[asyncio.Task[Turn]]:
    tasks = [asyncio.create_task(gate.enter(tenant)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


def inside(tasks: list[asyncio.Task[Turn]]) -> int:
    return sum(task.done() for task in tasks)


async def test_a_tenant_alone_never_waits() -> None:
    gate = FairGate(2)
    assert inside(await entered(gate, "a", 50)) == 50


async def test_with_others_about_places_are_few_but_nobody_is_without() -> None:
    gate = FairGate(2)
    (await gate.enter("b")).leave()
    many = await entered(gate, "a", 10)
    assert inside(many) == 2
    assert inside(await entered(gate, "b", 1)) == 1
    assert repr(gate) == "<FairGate: 3 of 2 slots held, 8 waiting>"
    for task in many:
        task.cancel()


async def test_who_waits_comes_in_turn() -> None:
    gate = FairGate(1)
    (await gate.enter("b")).leave()
    (await gate.enter("c")).leave()
    order: list[str] = []

    async def visit(tenant: str) -> None:
        place = await gate.enter(tenant)
        order.append(tenant)
        await asyncio.sleep(0)
        place.leave()

    await asyncio.gather(*(visit(tenant) for tenant in "aaaabbbcc"))
    assert sorted(order) == sorted("aaaabbbcc")
    assert order.index("c") < 4
    last_a = len(order) - 1 - order[::-1].index("a")
    assert last_a == len(order) - 1


async def test_a_place_is_given_up_after_a_while_whatever_takes_so_long() -> None:
    gate = FairGate(1)
    (await gate.enter("b")).leave()
    held = await gate.enter("a")
    waiting = await entered(gate, "a", 1)
    async with asyncio.timeout(LONG_S * 100):
        await waiting[0]
    held.leave()
    assert "held, 0 waiting" in repr(gate)


async def test_who_gives_up_waiting_loses_no_place() -> None:
    gate = FairGate(1)
    (await gate.enter("b")).leave()
    held = await gate.enter("a")
    waiting = await entered(gate, "a", 3)
    waiting[0].cancel()
    held.leave()
    waiting[1].cancel()  # it has its place already, and never learns of it
    await asyncio.wait(waiting)
    assert (waiting[0].cancelled(), waiting[1].cancelled(), waiting[2].cancelled()) == (True, True, False)
    waiting[2].result().leave()
    assert repr(gate) == "<FairGate: 0 of 1 slots held, 0 waiting>"
