"""An agent that waits for ten minutes in its environment."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.tools.environment import EnvironmentToolset
from scripted import run, scripted

from warren.integrations.google_adk import WarrenCodeExecutor, WarrenEnvironment


async def main() -> None:
    environment, executor = WarrenEnvironment(), WarrenCodeExecutor()
    waiting = scripted("```python\nimport time\ntime.sleep(600)\n```")
    try:
        await environment.initialize()
        tools = [EnvironmentToolset(environment=environment)]
        await run(LlmAgent(name="waits", model=waiting, tools=tools, code_executor=executor), "wait")
    finally:
        executor.close()
        await environment.close()


asyncio.run(main())
