"""Two agents of AutoGen: one writes code, the other runs it in a sandbox of Warren.

warren serve &
python examples/adapters/autogen_agent.py          a scripted model; give the writer any other
"""

import asyncio

from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.replay import ReplayChatCompletionClient

from warren.integrations.autogen import WarrenCodeExecutor

SCRIPT = (
    "```python\nprimes = [n for n in range(2, 50) if all(n % d for d in range(2, n))]\nprint(len(primes))\n```",
    "```python\nprint(sum(primes))\n```\n```sh\nuname -s\n```",  # the variable is still there
    "That is all. DONE",
)


async def main() -> None:
    async with WarrenCodeExecutor(timeout=30, limits={"memory_mb": 256}) as executor:
        writer = AssistantAgent("writer", ReplayChatCompletionClient([*SCRIPT]))
        runner = CodeExecutorAgent("runner", code_executor=executor)
        team = RoundRobinGroupChat([writer, runner], termination_condition=TextMentionTermination("DONE"))
        result = await team.run(task="Count the primes below 50, and add them.")
        for message in result.messages:
            if message.source == "runner":
                print(str(message.content).strip())


asyncio.run(main())
