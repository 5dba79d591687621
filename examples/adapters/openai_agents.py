"""An agent of the OpenAI Agents SDK that works in a sandbox of Warren, with a scripted model.

warren serve &
python examples/adapters/openai_agents.py
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.run import RunConfig
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from agents.sandbox.entries import File
from agents.sandbox.snapshot import NoopSnapshotSpec
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from warren.integrations.openai_agents import WarrenSandboxClient, WarrenSandboxClientOptions

COMMANDS = ["wc -w *.txt", "sort -r sea.txt > turned.txt; cat turned.txt"]


class Scripted(Model):
    """Runs the commands in turn, and says what the last one has written."""

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        outputs = [] if isinstance(input, str) else [item for item in input if "output" in item]
        if len(outputs) < len(COMMANDS):
            arguments = json.dumps({"cmd": COMMANDS[len(outputs)]})
            call_id = f"call-{len(outputs)}"
            output: Any = ResponseFunctionToolCall(
                type="function_call", name="exec_command", arguments=arguments, call_id=call_id
            )
        else:
            text = ResponseOutputText(type="output_text", text=outputs[-1]["output"], annotations=[])
            output = ResponseOutputMessage(
                type="message", role="assistant", status="completed", id="answer", content=[text]
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


async def main() -> None:
    set_tracing_disabled(True)
    files = Manifest(entries={"sea.txt": File(content=b"cold\nwide\n"), "road.txt": File(content=b"no end\n")})
    agent = SandboxAgent(name="reader", model=Scripted(), default_manifest=files)
    sandbox = SandboxRunConfig(
        client=WarrenSandboxClient(),
        options=WarrenSandboxClientOptions(environment="base"),
        snapshot=NoopSnapshotSpec(),  # else the workspace is kept in the user's directory
    )
    result = await Runner.run(agent, "Turn the poem around.", run_config=RunConfig(sandbox=sandbox))
    print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main())
