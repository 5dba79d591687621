"""An agent that runs code of ten minutes."""

import asyncio
import json

from ag2 import Agent
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig
from ag2.tools import SandboxCodeTool

from warren.integrations.ag2 import WarrenEnvironment


async def main() -> None:
    async with WarrenEnvironment(timeout=1000) as environment:
        waits = json.dumps({"code": "sleep 600", "language": "bash"})
        model = TestConfig(ToolCallEvent(name="run_code", arguments=waits), "done")
        await Agent("waits", config=model, tools=[SandboxCodeTool(environment)]).ask("wait")


asyncio.run(main())
