"""An evaluation with Inspect AI: each sample has a sandbox of Warren, with the sample's files in it.

warren serve &
python examples/adapters/inspect_eval.py           a scripted model
inspect eval examples/adapters/inspect_eval.py     with --model, any other
"""

from typing import Any

from inspect_ai import Task, eval, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash

POEMS = {"sea.txt": "the sea\nis wide\nand cold\n", "road.txt": "no end\n"}


@task
def count_words() -> Task:
    samples = [
        Sample(
            input=f"How many words does {name} have? Answer with the number.",
            target=str(len(text.split())),
            files={name: text},
            metadata={"file": name},
        )
        for name, text in POEMS.items()
    ]
    return Task(dataset=samples, solver=[use_tools(bash(timeout=30)), generate()], scorer=includes(), sandbox="warren")


def script(messages: list[Any], tools: list[Any], *_: Any) -> ModelOutput:
    """Counts with a command, and answers with what the command has said."""
    if isinstance(messages[-1], ChatMessageTool):
        output = ModelOutput.from_content("mockllm/model", f"It has {messages[-1].text.strip()} words.")
    else:
        name = messages[-1].text.split()[4]
        [argument] = tools[0].parameters.properties  # its name differs between releases
        output = ModelOutput.for_tool_call("mockllm/model", "bash", {argument: f"wc -w < {name}"})
    output.usage = ModelUsage()  # else tokens are counted, with a table from the internet
    return output


if __name__ == "__main__":
    [log] = eval(count_words(), model=get_model("mockllm/model", custom_outputs=script), display="none")
    for sample in log.samples or ():
        print(f"{sample.metadata['file']}: {sample.output.completion}")
    print(log.status, *(f"{name} {metric.value:g}" for name, metric in log.results.scores[0].metrics.items()))
