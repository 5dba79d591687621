"""An agent that runs a block of ten minutes."""

import asyncio

from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken

from warren.integrations.autogen import WarrenCodeExecutor


async def main() -> None:
    async with WarrenCodeExecutor(timeout=1000) as executor:
        block = TextMessage(content="```python\nimport time\ntime.sleep(600)\n```", source="user")
        await CodeExecutorAgent("waits", code_executor=executor).on_messages([block], CancellationToken())


asyncio.run(main())
