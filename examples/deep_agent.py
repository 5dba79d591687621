"""A deep agent that works in the sandbox of its conversation.

warren serve &
python examples/deep_agent.py
"""

import asyncio
import uuid

from deepagents import create_deep_agent
from example_run import run_example
from langgraph.checkpoint.memory import InMemorySaver
from model_choice import choose_model

from warren.integrations.deepagents import ThreadSandbox

SCRIPT = (
    [
        ("write_file", {"file_path": "/workspace/notes/plan.md", "content": "# Plan\n1. count\n2. report\n"}),
        ("execute", {"command": "ls /usr/bin | wc -l"}),
    ],
    [("grep", {"pattern": "report", "path": "/workspace"})],
    "The plan is in /workspace/notes/plan.md, and its second step is the report.",
)


async def main() -> None:
    backend = ThreadSandbox()
    agent = create_deep_agent(model=choose_model(*SCRIPT), backend=backend, checkpointer=InMemorySaver())
    thread_id = f"example-{uuid.uuid4().hex}"
    question = "Make a plan in /workspace/notes/plan.md, then find its step that is a report."
    state = await agent.ainvoke({"messages": [("user", question)]}, {"configurable": {"thread_id": thread_id}})
    for message in state["messages"]:
        print(f"{message.type}: {message.text}")
    await backend.adelete_thread(thread_id)


if __name__ == "__main__":
    run_example(lambda: asyncio.run(main()))
