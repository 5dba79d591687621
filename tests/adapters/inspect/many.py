"""A hundred samples at once, each with a sandbox of its own. Prints what came of them."""

import sys
from collections import Counter
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash

COUNT, SECONDS = int(sys.argv[1]), sys.argv[2]


def script(messages: list[Any], tools: list[Any], *_: Any) -> ModelOutput:
    if messages[-1].role == "tool":
        output = ModelOutput.from_content("mockllm/model", messages[-1].text)
    else:
        command = f"sleep {SECONDS}; cat number; ls | wc -l"
        [argument] = tools[0].parameters.properties  # its name differs between releases
        output = ModelOutput.for_tool_call("mockllm/model", "bash", {argument: command})
    output.usage = ModelUsage()  # else tokens are counted, with a table from the internet
    return output


samples = [
    Sample(input="which?", target=f"<{number}>\n1", files={"number": f"<{number}>\n"}) for number in range(COUNT)
]
[log] = eval(
    Task(dataset=samples, solver=[use_tools(bash()), generate()], scorer=includes(), sandbox="warren"),
    model=get_model("mockllm/model", custom_outputs=script),
    max_samples=COUNT, max_sandboxes=COUNT, max_subprocesses=COUNT, display="plain", log_dir=sys.argv[3],
)  # fmt: skip
print(log.status, Counter(score.value for sample in log.samples or () for score in (sample.scores or {}).values()))
