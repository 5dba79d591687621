"""The Python blocks of the integration guide are run, in their order, in one program."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.conftest import NewState
from frameworks.scripted_model import ScriptedModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from server_process import running_server

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


@pytest.fixture
def own_url(new_state: NewState, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that wants keys and has left one for this user."""
    with running_server(new_state(), WARREN_AUTH="true") as server:
        monkeypatch.delenv("WARREN_API_KEY", raising=False)
        monkeypatch.setenv("WARREN_CREDENTIALS", str(server.credentials))
        yield server.url


def test_the_python_blocks_of_the_guide_run_in_their_order(own_url: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", _GUIDE.read_text(), flags=re.M | re.S)
    names: dict[str, Any] = {"model": OneCommand(messages=iter(()))}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:8000", own_url), str(_GUIDE), "exec"), names)  # noqa: S102
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
