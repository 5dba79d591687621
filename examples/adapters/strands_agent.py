"""An agent of Strands whose tools work in a sandbox.

warren serve &
python examples/adapters/strands_agent.py
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

from strands import Agent
from strands.models import Model

from warren.integrations.strands import WarrenSandbox


class CountsWords(Model):
    """Takes the place of a model: runs a command, and answers with what it has said."""

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        last = messages[-1]["content"][0]
        found = last.get("toolResult", {}).get("content", [{}])[0]
        yield {"messageStart": {"role": "assistant"}}
        if found:
            text = found["json"] if "json" in found else json.loads(found["text"])
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": f"It has {text['output'].strip()} words."}}}
        else:
            given = json.dumps({"command": "printf 'the sea\\nis wide\\n' | wc -w"})
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "1", "name": "sandbox_shell"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": given}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if found else "tool_use"}}


with WarrenSandbox(limits={"memory_mb": 256}) as sandbox:
    print(Agent(CountsWords(), sandbox=sandbox, callback_handler=None)("How many words has the poem?"))
