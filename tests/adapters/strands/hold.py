"""An agent whose command runs for long."""

import asyncio

from scripted import Scripted
from strands import Agent

from warren.integrations.strands import WarrenSandbox


async def main() -> None:
    async with WarrenSandbox() as sandbox:
        model = Scripted("sandbox_shell", {"command": "sleep 600", "timeout": 700})
        await Agent(model, sandbox=sandbox, callback_handler=None).invoke_async("wait")


asyncio.run(main())
