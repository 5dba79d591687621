"""Runs the program of the page with a model that says what a script says."""

import json
import runpy
import sys

import ag2.config
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig

arguments = json.dumps({"code": "print(6 * 7)", "language": "python"})
script = TestConfig(ToolCallEvent(name="run_code", arguments=arguments), "It is 42.")
ag2.config.OpenAIConfig = lambda **_: script  # type: ignore[misc, assignment]
answer = runpy.run_path(sys.argv[1], run_name="__main__")["answer"]
assert answer == "It is 42.", answer
