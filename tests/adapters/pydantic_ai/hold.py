"""An agent whose command runs for long."""

import asyncio

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.test import TestModel

from warren.integrations.pydantic_ai import WarrenBackend

agent = Agent(TestModel())


@agent.tool
async def wait(ctx: RunContext[None]) -> int:
    return (await ctx.workspace.run(["sleep", "600"])).exit_code


async def main() -> None:
    async with WarrenBackend() as sandbox:
        await agent.run("wait", workspace=sandbox)


asyncio.run(main())
