"""An agent of AG2 with a tool for code and one for commands, in the same sandbox of Warren.

warren serve &
python examples/adapters/ag2_agent.py              a scripted model; give the agent any other
"""

import asyncio
import json
from typing import Any

from ag2 import Agent
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig
from ag2.tools import SandboxCodeTool, SandboxShellTool

from warren.integrations.ag2 import WarrenEnvironment

PROGRAM = "open('squares.txt', 'w').writelines(f'{n * n}\\n' for n in range(5))"


def call(name: str, **arguments: Any) -> ToolCallEvent:
    return ToolCallEvent(name=name, arguments=json.dumps(arguments))


async def main() -> None:
    async with WarrenEnvironment(limits={"memory_mb": 256}, timeout=30) as environment:
        script = TestConfig(
            call("run_code", code=PROGRAM, language="python"),
            call("run_shell_command", command="wc -l squares.txt"),
            "The squares are in squares.txt.",
        )
        tools = [SandboxCodeTool(environment), SandboxShellTool(environment)]
        reply = await Agent("writer", config=script, tools=tools).ask("Write the squares below 20 into a file.")
        print(reply.body)
        async with environment.open() as sandbox:
            print((await sandbox.exec(["paste", "-sd", " ", "squares.txt"])).output)


asyncio.run(main())
