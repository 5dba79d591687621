"""The Python blocks of the integration guide are run, in their order, in one program."""

import re
from pathlib import Path
from typing import Any

import pytest
from frameworks.scripted_model import ScriptedModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

_GUIDE = Path(__file__).parents[2] / "docs" / "integration-guide.md"
_SHELL = {"bash", "execute"}


class OneCommand(ScriptedModel):
    """Answers a question with one command in whatever shell it was given, and the command's output with an end."""

    shell: str = ""

    def bind_tools(self, tools: Any, **options: Any) -> "OneCommand":
        [name] = {tool.name for tool in tools} & _SHELL
        return OneCommand(messages=iter(()), shell=name)

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        call = {"name": self.shell, "args": {"command": "echo hello"}, "id": "1", "type": "tool_call"}
        said = AIMessage("done") if messages[-1].type == "tool" else AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=said)])


def test_the_python_blocks_of_the_guide_run_in_their_order(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARREN_API_KEY", raising=False)
    blocks = re.findall(r"^```python\n(.*?)^```", _GUIDE.read_text(), flags=re.M | re.S)
    names: dict[str, Any] = {"model": OneCommand(messages=iter(()))}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:8000", url), str(_GUIDE), "exec"), names)  # noqa: S102
    assert len(blocks) >= 8
    names["backend"].close()


def test_the_guide_names_what_there_is() -> None:
    from warren.integrations import deepagents, langgraph_tools, middleware, prompt

    text = _GUIDE.read_text()
    for module, name in (
        (deepagents, "ThreadSandbox"),
        (deepagents, "WarrenSandbox"),
        (langgraph_tools, "sandbox_tools"),
        (middleware, "SandboxMiddleware"),
        (prompt, "SANDBOX_PROMPT"),
    ):
        assert name in text
        assert hasattr(module, name)
