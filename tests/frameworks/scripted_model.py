"""A chat model that says what it was told to say. It stands in for a real one; agent, tools and sandbox are real."""

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> "ScriptedModel":
        return self


def scripted(*turns: str | Sequence[tuple[str, dict[str, Any]]]) -> ScriptedModel:
    """A text is an answer; a list of (tool, arguments) is calls made at once."""
    return ScriptedModel(messages=iter([_message(turn, number) for number, turn in enumerate(turns)]))


def _message(turn: str | Sequence[tuple[str, dict[str, Any]]], number: int) -> AIMessage:
    if isinstance(turn, str):
        return AIMessage(turn)
    calls = [
        {"name": name, "args": arguments, "id": f"call-{number}-{index}", "type": "tool_call"}
        for index, (name, arguments) in enumerate(turn)
    ]
    return AIMessage("", tool_calls=calls)
