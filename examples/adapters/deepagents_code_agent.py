"""Deep Agents Code with a sandbox of Warren: what `dcode --sandbox warren` opens, and an agent with a scripted model.

warren serve &
python examples/adapters/deepagents_code_agent.py
"""

from collections.abc import Sequence
from typing import Any

from deepagents import create_deep_agent
from deepagents_code.integrations.sandbox_factory import create_sandbox
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall

COMMANDS = ["printf 'cold\\nwide\\n' > sea.txt", "sort -r sea.txt"]


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Sequence[Any], **_: Any) -> "Scripted":
        return self


calls = [
    AIMessage(content="", tool_calls=[ToolCall(name="execute", args={"command": command}, id=command)])
    for command in COMMANDS
]
model = Scripted(messages=iter([*calls, AIMessage(content="The poem is turned around.")]))
with create_sandbox("warren", params={"limits": {"memory_mb": 512}}) as sandbox:
    agent = create_deep_agent(model=model, backend=sandbox)
    for message in agent.invoke({"messages": [("user", "Turn the poem around.")]})["messages"]:
        print(message.content)
