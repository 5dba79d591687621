"""A model that says what a script says, and runs of agents that have it."""

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

Step = str | tuple[str, dict[str, Any]]


class Scripted(BaseLlm):
    """Each step is a text, or a tool's name and arguments. `seen` has what the model was last told."""

    steps: list[Step]
    seen: list[str]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        for part in (llm_request.contents[-1].parts or [])[-1:]:
            told = part.function_response.response if part.function_response else part.text
            self.seen.append(str(told))
        step = self.steps.pop(0)
        part = (
            types.Part(text=step)
            if isinstance(step, str)
            else types.Part.from_function_call(name=step[0], args=step[1])
        )
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def scripted(*steps: Step) -> Scripted:
    return Scripted(model="scripted", steps=[*steps], seen=[])


def code(text: str) -> str:
    return f"```python\n{text}\n```"


async def run(agent: LlmAgent, *messages: str, session_id: str = "s1") -> InMemoryRunner:
    runner = InMemoryRunner(agent, app_name="works")
    await runner.run_debug([*messages], session_id=session_id, quiet=True)
    return runner
