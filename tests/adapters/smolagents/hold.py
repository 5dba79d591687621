"""An agent whose first step takes ten minutes."""

from typing import Any

from smolagents import ChatMessage, CodeAgent, Model

from warren.integrations.smolagents import WarrenExecutor


class Waiting(Model):
    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        return ChatMessage(role="assistant", content="<code>\nimport os\nos.system('sleep 600')\n</code>")


with CodeAgent(tools=[], model=Waiting(), executor=WarrenExecutor(), verbosity_level=0) as agent:
    agent.run("wait")
