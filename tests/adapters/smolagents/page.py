"""Runs the program of the page with a model that writes the code."""

import runpy
import sys
from typing import Any

import smolagents
from smolagents import ChatMessage, Model


class Scripted(Model):
    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.codes = iter(("numbers = [2, 3, 5]\nprint(sum(numbers))", "final_answer(sum(numbers) + double(16))"))

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        return ChatMessage(role="assistant", content=f"<code>\n{next(self.codes)}\n</code>")


smolagents.InferenceClientModel = Scripted
assert runpy.run_path(sys.argv[1])["answer"] == 42
