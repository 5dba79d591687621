"""An agent whose command takes long, to be interrupted."""

import asyncio

from agents import Runner
from agents.run import RunConfig
from agents.run_config import SandboxRunConfig
from agents.sandbox import SandboxAgent
from script import Script

from warren.integrations.openai_agents import WarrenSandboxClient

sleep = ("exec_command", {"cmd": "sleep 600", "yield_time_ms": 30_000})
agent = SandboxAgent(name="sleeper", model=Script(sleep, sleep, sleep))
config = RunConfig(sandbox=SandboxRunConfig(client=WarrenSandboxClient()))
asyncio.run(Runner.run(agent, "Sleep.", run_config=config))
