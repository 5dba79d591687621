"""A model of Strands that calls one tool, and answers with what the tool has said."""

import json
from collections.abc import AsyncGenerator
from typing import Any

from strands.models import Model


class Scripted(Model):
    """`call` is the name of a tool and its input."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        name, given = self.call
        last = messages[-1]["content"][0]
        is_answer = "toolResult" in last
        yield {"messageStart": {"role": "assistant"}}
        if is_answer:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": str(last["toolResult"]["content"])}}}
        else:
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "1", "name": name}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(given)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if is_answer else "tool_use"}}
