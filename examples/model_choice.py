"""Chooses the model of the examples.

MODEL=anthropic:claude-sonnet-4-5 with ANTHROPIC_API_KEY, MODEL=google_genai:gemini-2.5-pro with GOOGLE_API_KEY, or any
other name that LangChain's init_chat_model knows, once its package is installed (openai:… needs langchain-openai and
OPENAI_API_KEY). Without MODEL the example replays its script, so it runs without a key and without a network.
"""

import os
from collections.abc import Sequence
from typing import Any

from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

Turn = str | Sequence[tuple[str, dict[str, Any]]]


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> "ScriptedModel":
        return self


def choose_model(*script: Turn) -> BaseChatModel:
    """In a script a text is an answer of the model, and a list of (tool, arguments) are parallel tool calls."""
    if name := os.environ.get("MODEL"):
        return init_chat_model(name)
    return ScriptedModel(messages=iter([_message(turn, number) for number, turn in enumerate(script)]))


def _message(turn: Turn, number: int) -> AIMessage:
    if isinstance(turn, str):
        return AIMessage(turn)
    calls = [
        {"name": name, "args": arguments, "id": f"call-{number}-{index}", "type": "tool_call"}
        for index, (name, arguments) in enumerate(turn)
    ]
    return AIMessage("", tool_calls=calls)
