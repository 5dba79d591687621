"""An agent of smolagents whose code runs in a sandbox of Warren, with a tool and a variable of this program.

warren serve &
python examples/adapters/smolagents_agent.py             a scripted model; give CodeAgent any other
"""

from typing import Any

from smolagents import ChatMessage, CodeAgent, Model, tool

from warren.integrations.smolagents import WarrenExecutor


@tool
def price_of(fruit: str) -> int:
    """Returns the price of a fruit in cents.

    Args:
        fruit: its name
    """
    return {"apple": 40, "pear": 55}[fruit]


class Scripted(Model):
    """Looks at the prices first, and uses them in the next step."""

    steps = (
        "prices = {fruit: price_of(fruit) for fruit in basket}\nprint(prices)",
        "final_answer(sum(price * basket[fruit] for fruit, price in prices.items()))",
    )

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        done = sum(message.role == "assistant" for message in messages)
        return ChatMessage(role="assistant", content=f"<code>\n{self.steps[done]}\n</code>")


executor = WarrenExecutor(timeout=60)
with CodeAgent(tools=[price_of], model=Scripted(), executor=executor, verbosity_level=0) as agent:
    cents = agent.run("What does the basket cost?", additional_args={"basket": {"apple": 3, "pear": 2}})
    print(f"The basket costs {cents} cents; its code ran on {executor('import platform; platform.node()').output}.")
