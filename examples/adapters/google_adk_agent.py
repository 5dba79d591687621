"""An agent of Google's ADK with tools for the commands and files of a sandbox of Warren.

warren serve &
python examples/adapters/google_adk_agent.py       a scripted model; `model="gemini-flash-latest"` is one of Google's
"""

import asyncio
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types

from warren.integrations.google_adk import WarrenEnvironment

PROGRAM = "print(sum(number for number in range(100) if number % 7 == 0))\n"


class Scripted(BaseLlm):
    """Writes a program, runs it, and answers with what it has said."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        answers = [part.function_response for content in llm_request.contents for part in content.parts or ()]
        told = [each.response for each in answers if each is not None]
        if not told:
            part = types.Part.from_function_call(name="WriteFile", args={"path": "sum.py", "content": PROGRAM})
        elif len(told) == 1:
            part = types.Part.from_function_call(name="Execute", args={"command": "python3 sum.py"})
        else:
            part = types.Part(text=f"The sum is {told[-1]['stdout'].strip()}.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def main() -> None:
    toolset = EnvironmentToolset(environment=WarrenEnvironment(limits={"memory_mb": 256}))
    agent = LlmAgent(name="sums", model=Scripted(model="scripted"), tools=[toolset])
    try:
        events = await InMemoryRunner(agent).run_debug("Add the multiples of 7 below 100.", quiet=True)
        print(events[-1].content.parts[0].text)
    finally:
        await toolset.close()


asyncio.run(main())
