"""An agent of Pydantic AI whose tool works in a sandbox, over two turns of a conversation.

warren serve &
python examples/adapters/pydantic_ai_agent.py
"""

import asyncio

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from warren.integrations.pydantic_ai import WarrenWorkspace

COMMANDS = {"Write a poem.": "printf 'the sea\\nis wide\\n' > poem; echo done", "How long is it?": "wc -w < poem"}


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Takes the place of a model: runs a command, and answers with what it has said."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(str(last.content))])
    return ModelResponse(parts=[ToolCallPart("run", {"command": COMMANDS[str(last.content)]})])


workspace = WarrenWorkspace(limits={"memory_mb": 256})
agent = Agent(FunctionModel(script), capabilities=[workspace])


@agent.tool
async def run(ctx: RunContext[None], command: str) -> str:
    """Runs a line of shell."""
    result = await ctx.workspace.run(command, shell=True, timeout=30)
    return (result.stdout + result.stderr).strip()


async def main() -> None:
    first = await agent.run("Write a poem.")
    second = await agent.run("How long is it?", message_history=first.all_messages())
    print(f"{first.output}, {second.output} words")
    if second.workspace.ref is not None:
        await workspace.destroy(second.workspace.ref)


asyncio.run(main())
