"""A sandbox of agno that pauses between two turns, and is found again by its session.

warren serve &
python examples/adapters/agno_generations.py
"""

import asyncio

from warren.integrations.agno import WarrenSandbox

sandboxes = WarrenSandbox(limits={"memory_mb": 256})


async def first_turn() -> None:
    box = await sandboxes.acreate("chat-1", agent_id="poet")
    await sandboxes.aexec(box, ["tee", "poem"], stdin=b"the sea\nis wide\n")
    await sandboxes.apause(box)


async def second_turn() -> None:
    box = await sandboxes.afind("chat-1", agent_id="poet")
    assert box is not None
    box = await sandboxes.aresume(box)
    counted = await sandboxes.aexec(box, ["wc", "-w", "poem"])
    print(counted.stdout.strip())
    await sandboxes.adestroy(box)


async def main() -> None:
    await first_turn()
    await second_turn()


asyncio.run(main())
