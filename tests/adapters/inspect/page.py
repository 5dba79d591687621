"""Runs the task of the page with a model that looks into the file."""

import runpy
import sys
from typing import Any

from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model


def script(messages: list[Any], tools: list[Any], *_: Any) -> ModelOutput:
    if messages[-1].role == "tool":
        output = ModelOutput.from_content("mockllm/model", messages[-1].text)
    else:
        [argument] = tools[0].parameters.properties  # its name differs between releases
        output = ModelOutput.for_tool_call("mockllm/model", "bash", {argument: "cat word.txt"})
    output.usage = ModelUsage()  # else tokens are counted, with a table from the internet
    return output


task = runpy.run_path(sys.argv[1])["secret_word"]()
[log] = eval(task, model=get_model("mockllm/model", custom_outputs=script), display="none", log_dir=".")
print(log.error, [score.value for sample in log.samples or () for score in (sample.scores or {}).values()])
