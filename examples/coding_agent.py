"""A coding agent: it repairs a project with a failing test; afterwards the program runs the tests once more.

warren serve &
python examples/coding_agent.py
"""

from deepagents import create_deep_agent
from example_run import run_example
from model_choice import choose_model

from warren import SandboxClient
from warren.integrations.deepagents import WarrenSandbox

PROJECT = {
    "/workspace/project/prices.py": "def total(prices, discount=0):\n    return sum(prices) * discount\n",
    "/workspace/project/test_prices.py": (
        "import unittest\nfrom prices import total\n\n"
        "class TestTotal(unittest.TestCase):\n"
        "    def test_without_a_discount(self):\n        self.assertEqual(total([1, 2]), 3)\n\n"
        "    def test_with_a_discount(self):\n        self.assertEqual(total([10], discount=0.5), 5)\n"
    ),
}
TEST = "cd /workspace/project && python3 -m unittest"
SCRIPT = (
    [("execute", {"command": TEST})],
    [
        (
            "edit_file",
            {
                "file_path": "/workspace/project/prices.py",
                "old_string": "* discount",
                "new_string": "* (1 - discount)",
            },
        )
    ],
    [("execute", {"command": TEST})],
    "The discount was multiplied instead of taken off. Both tests pass now.",
)


def main() -> None:
    with SandboxClient() as sandbox:
        for path, text in PROJECT.items():
            sandbox.write_file(path, text)
        agent = create_deep_agent(model=choose_model(*SCRIPT), backend=WarrenSandbox(client=sandbox))
        question = f"The project in /workspace/project has a failing test. Repair it. The tests are run by: {TEST}"
        state = agent.invoke({"messages": [("user", question)]})
        print(state["messages"][-1].text)
        print("tests pass" if sandbox.execute(TEST).ok else "tests still fail")


if __name__ == "__main__":
    run_example(main)
