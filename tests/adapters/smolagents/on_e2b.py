"""The executor for E2B that smolagents has, as it is, with a sandbox of Warren."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from smolagents import ChatMessage, CodeAgent, Model, tool

os.environ |= dict.fromkeys(("E2B_API_URL", "E2B_SANDBOX_URL"), os.environ["WARREN_URL"])
warren = Path(sys.executable).with_name("warren")
os.environ["E2B_API_KEY"] = subprocess.check_output([warren, "keys", "create", "e2b", "--e2b", "-q"], text=True).strip()

# The final answer imports both; pip, which smolagents asks for them, reaches nothing in tests.
PRELUDE = """
import sys, types
PIL, numpy = sys.modules["PIL"], sys.modules["numpy"] = types.ModuleType("PIL"), types.ModuleType("numpy")
PIL.Image = sys.modules["PIL.Image"] = types.SimpleNamespace(Image=())
numpy.ndarray = numpy.integer = numpy.floating = ()
"""


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: the number
    """
    return 2 * number


class Scripted(Model):
    def __init__(self) -> None:
        super().__init__()
        self.codes = [
            "total = double(offset)\nprint('so far', total)",
            "1 / 0",
            "final_answer('é' * 90_000 + str(total))",
        ]
        self.seen: list[Any] = []

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        self.seen.append(messages[-1].content)
        return ChatMessage(role="assistant", content=f"<code>\n{self.codes.pop(0)}\n</code>")


model = Scripted()
with CodeAgent(tools=[double], model=model, executor_type="e2b", verbosity_level=0) as agent:
    agent.python_executor.run_code_raise_errors(PRELUDE)
    answer = agent.run("double", additional_args={"offset": 21})
assert answer == "é" * 90_000 + "42", answer[-100:]
assert "so far 42" in str(model.seen[1])
assert "ZeroDivisionError" in str(model.seen[2])
