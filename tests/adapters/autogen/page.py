"""Runs the program of the page with a model that says what a script says."""

import os
import runpy
import sys
import types

from autogen_ext.models.replay import ReplayChatCompletionClient

script = ["```python\nprint(6 * 7)\n```", "It is 42. DONE"]
openai = types.ModuleType("autogen_ext.models.openai")
openai.OpenAIChatCompletionClient = lambda **_: ReplayChatCompletionClient(script)  # type: ignore[attr-defined]
sys.modules[openai.__name__] = openai
os.environ.setdefault("OPENAI_API_KEY", "none")
answer = runpy.run_path(sys.argv[1], run_name="__main__")["answer"]
assert "42\n" in answer, answer
