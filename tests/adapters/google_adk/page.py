"""Runs the program of the page with a model that writes the code."""

import runpy
import sys

import scripted
from google.adk.models import registry

model = scripted.scripted(scripted.code("print(6 * 7)"), "It is 42.")
registry.LLMRegistry.new_llm = staticmethod(lambda *_, **__: model)  # type: ignore[method-assign]
answer = runpy.run_path(sys.argv[1], run_name="__main__")["answer"]
assert answer == "It is 42.", answer
assert "42" in model.seen[-1]
