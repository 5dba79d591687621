"""A model that calls tools in turn, and then says what the last of them has said."""

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Model, ModelResponse, Usage, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

set_tracing_disabled(True)


class Script(Model):
    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self.calls, self.outputs = list(calls), list[str]()

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        if isinstance(input, list) and input[-1].get("type") == "function_call_output":
            self.outputs.append(str(input[-1]["output"]))
        if self.calls:
            name, arguments = self.calls.pop(0)
            number = str(len(self.outputs))
            output: Any = ResponseFunctionToolCall(
                type="function_call", name=name, arguments=json.dumps(arguments), call_id=number, id=number
            )
        else:
            text = ResponseOutputText(type="output_text", text=self.outputs[-1], annotations=[])
            output = ResponseOutputMessage(type="message", role="assistant", status="completed", id="m", content=[text])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
