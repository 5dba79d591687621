"""Runs the agent of the page with a model that looks into the file."""

import runpy
import sys

from openhands.sdk import Message, TextContent
from openhands.sdk.llm import MessageToolCall
from openhands.sdk.testing import TestLLM

call = MessageToolCall(id="1", name="warren_terminal", arguments='{"command": "wc -w notes.txt"}', origin="completion")
answers = [
    Message(role="assistant", content=[TextContent(text="")], tool_calls=[call]),
    Message(role="assistant", content=[TextContent(text="It has four.")]),
]
program = runpy.run_path(sys.argv[1])
assert program["ask"](TestLLM.from_messages(answers)) == "It has four."
