"""The tool that runs code in an interpreter. The model reads its docstring.

It has no structured content: a client that shows its model nothing else would hide the pictures.
"""

from dataclasses import replace
from typing import Annotated

from warren.integrations.aio.commands import run_code
from warren.integrations.mcp.calls import MAX_CHARACTERS, SandboxName, image_content, run_tool, text_result
from warren.integrations.mcp.command_tools import DEFAULT_TIMEOUT_S
from warren.integrations.mcp.sandboxes import Sandbox, Sandboxes
from warren.integrations.mcp.tools import Answer, Call, about


class CodeTools:
    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    async def run_code(
        self,
        call: Call,
        code: Annotated[str, about("The code; may have several lines.", minLength=1)],
        language: Annotated[str, about("python, javascript, bash or r.")] = "python",
        timeout: Annotated[float, about("Seconds until it is interrupted.", exclusiveMinimum=0)] = DEFAULT_TIMEOUT_S,
        sandbox: SandboxName = "",
    ) -> Answer[None]:
        """Run code in an interpreter of the sandbox that keeps its state, as a notebook does.

        Variables, functions and imports are there for the next call. Returns what the code wrote, the value of its
        last expression, and the pictures that it showed (such as charts of matplotlib); or the traceback of its error.
        Files are those that bash sees. For data analysis and anything done step by step this is better than bash.
        """

        async def work(box: Sandbox) -> Answer[None]:
            report = await run_code(box.client, code, language, timeout, MAX_CHARACTERS)
            text = report.text or ("" if report.pictures else "(no output)")
            answer: Answer[None] = text_result(text, data=None, failed=report.execution.reason != "exited")
            pictures = (image_content(picture.data, picture.mime_type) for picture in report.pictures)
            return replace(answer, content=(*answer.content, *pictures))

        return await run_tool(self._sandboxes, call, sandbox, work)
