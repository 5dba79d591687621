"""A LangGraph agent with a sandbox for its conversation: the second turn finds the files of the first.

warren serve &
python examples/langgraph_agent.py
"""

import uuid

from example_run import run_example
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from model_choice import choose_model

from warren import SandboxClient
from warren.integrations.middleware import SandboxMiddleware

PRIMES = "python3 -c 'print([n for n in range(2, 30) if all(n % d for d in range(2, n))])'"
SCRIPT = (
    [("bash", {"command": f"mkdir -p primes && cd primes && {PRIMES} | tee list.txt"})],
    "The primes below 30 are in /workspace/primes/list.txt.",
    [("bash", {"command": "pwd && tr ',' '\\n' < list.txt | wc -l"})],
    "There are 10 of them.",
)


def main() -> None:
    agent = create_agent(choose_model(*SCRIPT), middleware=[SandboxMiddleware()], checkpointer=InMemorySaver())
    thread_id = f"example-{uuid.uuid4().hex}"
    for question in ("Write the primes below 30 into a file.", "How many are in it?"):
        print(f"> {question}")
        state = agent.invoke({"messages": [("user", question)]}, {"configurable": {"thread_id": thread_id}})
        for message in state["messages"][-2:]:
            print(f"{message.type}: {message.text}")
    SandboxClient.delete_thread(thread_id)


if __name__ == "__main__":
    run_example(main)
