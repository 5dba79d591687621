"""Agents, tools and prompts: what their files may say, and what a mistake in one says."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from warren.config.registry import Registry, packaged_registry
from warren.doctor.check import Level
from warren.doctor.parts import check_registry
from warren.model.agent import Agent, AgentPrompt
from warren.model.errors import InvalidRequest, TooLarge, Unavailable, UnknownEntry
from warren.model.prompt import MAX_RENDERED, Prompt
from warren.model.tool import Tool


def write(directory: Path, kind: str, name: str, text: str) -> Registry:
    (directory / kind).mkdir(exist_ok=True)
    (directory / kind / f"{name}.yaml").write_text(text)
    return Registry(packaged_registry(), directory)


GREP = """
name: find
command: [grep, -n, "--include={files}", -e, "{pattern}", "{more}", --]
parameters:
  type: object
  properties:
    pattern: {type: string, minLength: 1}
    files: {type: string}
    more: {type: array, items: {type: string}}
  required: [pattern]
"""
LINE = """
name: say
command: printf '%s|%s|%s' "$word" "$count" "$rest"
parameters:
  type: object
  properties:
    word: {type: string, maxLength: 20}
    count: {type: integer, default: 3, minimum: 0}
    rest: {type: object}
  required: [word]
timeout_s: 1.5m
"""


def test_the_packaged_entries_are_right_and_fit_together() -> None:
    registry = Registry(packaged_registry())
    assert {name: problem for name, problem in registry.all_problems().items() if problem} == {}
    assert [one.name for one in registry.agents.list()] == ["coder"]
    assert [one.name for one in registry.tools.list()] == ["find_in_files", "run_tests"]
    coder = registry.agents.get("coder")
    assert coder.prompt is not None
    text = coder.prompt.render(registry.prompts.get, {"rules": "Write little."})
    assert "programs in Python" in text
    assert text.rstrip().endswith("Write little.")
    everything: list[Any] = [*registry.agents.list(), *registry.tools.list(), *registry.prompts.list()]
    assert all(one.description for one in everything)


def test_entries_survive_the_way_through_json(tmp_path: Path) -> None:
    registry = write(tmp_path, "tools", "find", GREP)
    for tool in registry.tools.list():
        assert Tool.from_mapping(json.loads(json.dumps(tool.as_mapping()))) == tool
    for prompt in registry.prompts.list():
        assert Prompt.from_mapping(json.loads(json.dumps(prompt.as_mapping()))) == prompt
    for agent in registry.agents.list():
        assert Agent.of_shown(json.loads(json.dumps(agent.as_mapping()))) == agent


def test_a_list_is_filled_in_argument_by_argument(tmp_path: Path) -> None:
    tool = write(tmp_path, "tools", "find", GREP).tools.get("find")
    hostile = "$(touch /tmp/x) `id`; {files} '\" -rf"
    assert tool.command_for({"pattern": hostile}).command == ("grep", "-n", "-e", hostile, "--")
    assert tool.command_for({"pattern": "x", "files": "*.py", "more": ["a", "b c"]}).command == (
        "grep", "-n", "--include=*.py", "-e", "x", "a", "b c", "--",
    )  # fmt: skip
    assert tool.command_for({"pattern": "x", "files": None}).command == ("grep", "-n", "-e", "x", "--")


def test_a_line_finds_its_arguments_in_variables(tmp_path: Path) -> None:
    tool = write(tmp_path, "tools", "say", LINE).tools.get("say")
    hostile = "\"; id $(id) 'x"
    call = tool.command_for({"word": hostile, "rest": {"a": [1]}})
    assert call.command == tool.command
    assert call.env == {"word": hostile, "count": "3", "rest": '{"a": [1]}'}
    said = subprocess.run(["bash", "-c", str(call.command)], env=call.env, capture_output=True, text=True, check=True)
    assert said.stdout == hostile + '|3|{"a": [1]}'
    assert tool.command_for({"word": "x"}).env["rest"] == ""
    assert tool.timeout_s == 90


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "the tool say needs the argument word"),
        ({"word": 3}, "the argument word is 3, it must be of the type string"),
        ({"word": "x" * 21}, "has 21 characters, at most 20"),
        ({"word": "x", "count": -1}, "the argument count is -1, it must be at least 0"),
        ({"word": "x", "count": True}, "it must be of the type integer"),
        ({"word": "x", "count": float("nan")}, "it must be of the type integer"),
        ({"word": "x", "rest": []}, "it must be of the type object"),
        ({"word": "x", "PATH": "/tmp"}, "has no argument 'PATH' (its arguments are word, count, rest)"),
        ({"word": "a\0b"}, "NUL byte"),
        ([], "must be an object"),
    ],
)
def test_arguments_are_checked_before_anything_runs(arguments: Any, said: str, tmp_path: Path) -> None:
    tool = write(tmp_path, "tools", "say", LINE).tools.get("say")
    with pytest.raises(InvalidRequest) as caught:
        tool.command_for(arguments)
    assert said in str(caught.value)


_T = "name: x\ncommand: [x, '{a}']\nparameters:\n  type: object\n  properties:\n    a: "
_P = "name: x\ntemplate: |\n  Hi {{who}}\nvariables:\n  "


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("tools", "name: x", "a tool needs a command or mcp, one of them"),
        ("tools", "name: x\ncommand: ls\nmcp: {command: [x]}", "a command or mcp, one of them"),
        ("tools", "name: x.y\ncommand: ls", "line 1: name is 'x.y': models take no dots"),
        ("tools", "name: y\ncommand: ls", "line 1: name is 'y', the file's name says 'x'"),
        ("tools", "name: x\ncomand: ls", "line 2: there is no key 'comand' (did you mean command? "),
        ("tools", "name: x\ncommand: ''", "line 2: command is empty"),
        ("tools", "name: x\ncommand: []", "line 2: command is empty"),
        ("tools", "name: x\ncommand: [ls, 3]", "line 2: command.1 is 3, it must be a text"),
        ("tools", "name: x\ncommand: {a: b}", "line 2: command is dict, it must be a list"),
        ("tools", 'name: x\ncommand: "a\\0b"', "line 2: command has characters that no text has"),
        ("tools", "name: x\ncommand: ls\ntimeout_s: 0", "line 3: timeout_s is 0"),
        ("tools", "name: x\ncommand: ls\nparameters: {type: array}", "line 3: parameters.type must be object"),
        ("tools", "name: x\ncommand: ls\nparameters: 3", "line 3: parameters must be keys and values, this is int"),
        ("tools", _T + "{type: text}", "line 6: parameters.properties.a.type is 'text' (there are: string"),
        ("tools", _T + "{type: string, patern: x}", "line 6: there is no key 'parameters.properties.a.patern'"),
        ("tools", _T + "{$ref: '#/x'}", "line 6: there is no key 'parameters.properties.a.$ref'"),
        ("tools", _T + "{type: integer, default: x}", "line 6: parameters.properties.a: default is 'x'"),
        ("tools", _T + "{type: integer, minimum: .nan}", "line 6: "),
        ("tools", _T + "{enum: [2026-01-01]}", "which JSON has not"),
        ("tools", _T + "{type: string}\n    b: {}", "line 7: the command does not use the parameter 'b'"),
        ("tools", _T + "{type: string}\n  required: [c]", "line 7: parameters.required names 'c'"),
        ("tools", _T.replace("{a}", "{patern}").replace("a:", "pattern:") + "{}", "command does not use the parameter"),
        ("tools", "name: x\ncommand: echo\nparameters: {type: object, properties: {A-b: {}}}",
         "no name for a parameter"),
        ("tools", "name: x\ncommand: echo $http_proxy\nparameters: {type: object, properties: {http_proxy: {}}}",
         "would change what programs do"),
        ("tools", "name: x\ncommand: ls\nparameters: {type: object, additionalProperties: true}", "cannot be true"),
        ("tools", "name: x\nmcp: {}", "line 2: mcp needs a command or a url, one of them"),
        ("tools", "name: x\nmcp:\n  command: [a]\n  env: {A: 1}", "line 4: mcp.env.A is 1, it must be a text"),
        ("tools", "name: x\nmcp: {url: 'file:///etc/passwd'}", "line 2: mcp.url must begin with http"),
        ("prompts", "name: x", "the key 'template' is missing"),
        ("prompts", _P + "whom: {}", "line 2: template has the variable 'who', which variables do not have"),
        ("prompts", _P + "who: {}\n  more: {}", "line 6: variables.more is not in the template"),
        ("prompts", _P + "who: {default: 3}", "line 5: variables.who.default is 3, it must be a text"),
        ("prompts", _P + "who: {default: a, required: true}", "line 5: variables.who.required is true, and"),
        ("prompts", _P + "who: {required: 1}", "line 5: variables.who.required must be true or false"),
        ("prompts", "name: x\ntemplate: " + "x" * 70_000, "has 70000 characters"),
        ("agents", "name: x\ntools: ls", "line 2: tools is 'ls', it must be a list"),
        ("agents", "name: x\ntools:\n- ok\n- 3", "line 4: tools.1 must be keys and values, this is int"),
        ("agents", "name: x\ntools:\n- ../../etc/passwd", "line 3: tools.0.name is '../../etc/passwd', wh"),
        ("agents", "name: x\ntools:\n- name: a\n  comand: ls", "line 4: there is no key 'tools.0.comand' (did you"),
        ("agents", "name: x\ntools: [a, a]", "line 2: the agent has two tools 'a'"),
        ("agents", "name: x\nprompt: {}", "line 2: prompt needs a name or a template"),
        ("agents", "name: x\nprompt: {name: a, template: b}", "line 2: prompt needs a name or a template, one of them"),
        ("agents", "name: x\nprompt: {template: b, variables: {c: d}}", "line 2: the template has no variable 'c'"),
        ("agents", "name: x\nlimits: {memory: 3}", "line 2: there is no key 'limits.memory' (did you mean memory_mb? "),
        ("agents", "name: x\nlimits:\n  memory_mb: 1", "line 3: the limit memory_mb is 1, it must be between 64"),
        ("agents", "name: x\nlimits: {pids: yes}", "line 2: limits.pids is True, it must be a number"),
        ("agents", "name: x\nenv: {A B: c}", "line 2: 'A B' is not a name for an environment variable"),
        ("agents", "name: x\nidle_timeout_s: soon", "line 2: idle_timeout_s is soon"),
        ("agents", "name: x\nmetadata: {model: 3}", "line 2: metadata.model is 3, it must be a text"),
        ("agents", "description: x", "the key 'name' is missing"),
        ("agents", "- x", "keys and values are expected"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_file_line_and_key(kind: str, text: str, said: str, tmp_path: Path) -> None:
    registry = write(tmp_path, kind, "x", text)
    files = registry.kinds[kind]
    with pytest.raises(InvalidRequest) as caught:
        files.read("x")
    assert said in str(caught.value)
    assert caught.value.message.startswith(str(tmp_path / kind / "x.yaml"))
    with pytest.raises(Unavailable) as told:
        files.get("x")
    assert str(tmp_path) not in str(told.value)
    assert registry.all_problems()[kind, "x"] == str(caught.value)
    assert registry.agents.get("coder")


def test_what_an_agent_names_must_be_there(tmp_path: Path) -> None:
    text = "name: x\nenvironment: {}\nprompt: {}\ntools:\n- run_tests\n- {}\n"
    registry = write(tmp_path, "agents", "x", text.format("basis", "coding", "find_in_files"))
    assert (
        registry.all_problems()["agents", "x"]
        .partition("x.yaml")[2]
        .startswith(", line 2: there is no environment 'basis' (there are: base")
    )
    write(tmp_path, "agents", "x", text.format("base", "codnig", "find_in_files"))
    assert ", line 3: there is no prompt 'codnig' (did you mean coding? " in registry.all_problems()["agents", "x"]
    write(tmp_path, "agents", "x", text.format("base", "coding", "find_in_file"))
    assert (
        ", line 6: there is no tool 'find_in_file' (did you mean find_in_files? "
        in (registry.all_problems()["agents", "x"])
    )
    with pytest.raises(UnknownEntry, match="there is no tool 'find_in_file'"):
        registry.check_agent(registry.agents.get("x"))
    write(tmp_path, "agents", "x", text.format("base", "{name: coding, variables: {langage: Go}}", "find_in_files"))
    assert (
        ", line 3: the prompt 'coding' has no variable 'langage' (did you mean language? "
        in (registry.all_problems()["agents", "x"])
    )
    write(tmp_path, "agents", "x", text.format("base", "coding", "find_in_files"))
    assert registry.all_problems()["agents", "x"] == ""


def test_rendering_replaces_variables_and_nothing_else() -> None:
    values = {"name": "x", "template": "{{ a }}{{b}} {c} \\{{a}} {{}} {% if %}", "variables": {"a": None, "b": "B"}}
    prompt = Prompt.from_mapping(values)
    assert prompt.render({"a": "{{b}}"}) == "{{b}}B {c} {{a}} {{}} {% if %}"
    for given, said in (
        ({}, "the prompt needs a value for a"),
        ({"a": "1", "c": "2"}, "the prompt has no variable 'c'"),
        ({"a": 3}, "variables.a is 3, it must be a text"),
        ({"a": "\0"}, "characters that no text has"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            prompt.render(given)  # type: ignore[arg-type]
    bomb = Prompt.from_mapping({"name": "x", "template": "{{a}}" * 1000, "variables": {"a": None}})
    with pytest.raises(InvalidRequest, match=f"at most {MAX_RENDERED}"):
        bomb.render({"a": "x" * 60_000})


def test_an_inline_agent_is_read_by_the_same_reader_and_bounded() -> None:
    agent = Agent.inline({"environment": "base", "tools": ["a"], "env": {"KEY": "secret"}, "limits": {"pids": 9}})
    assert agent.as_mapping()["env_names"] == ["KEY"]
    assert "secret" not in json.dumps(agent.as_mapping())
    with pytest.raises(InvalidRequest, match="agent_config: there is no key 'tool'"):
        Agent.inline({"tool": "code_executor"})
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for large in ({"description": "x" * 70_000}, {"tools": ["x"] * 70_000}, {"tools": deep}):
        with pytest.raises(TooLarge):
            Agent.inline(large)


def test_no_text_of_a_schema_is_half_a_character() -> None:
    for part in (
        {"\ud800": {}},
        {"a": {"default": "\ud800"}},
        {"a": {"enum": ["a\0"]}},
        {"a": {"description": "\ud800"}},
    ):
        tool = {"name": "x", "mcp": {"command": ["x"]}, "parameters": {"type": "object", "properties": part}}
        with pytest.raises(InvalidRequest, match="characters that no text has"):
            Agent.inline({"tools": [tool]})


def test_doctor_shows_what_is_wrong_in_the_registry(tmp_path: Path) -> None:
    checks = list(check_registry(write(tmp_path, "tools", "x", "name: x\ncomand: ls").all_problems()))
    assert [check.name for check in checks if check.level is Level.FAIL] == ["tool x"]
    assert {"environments", "agents", "tools", "prompts"} <= {check.name for check in checks}


def test_what_a_packaged_tool_runs(tmp_path: Path) -> None:
    tools = Registry(packaged_registry()).tools
    (tmp_path / "test_it.py").write_text("import unittest\nclass T(unittest.TestCase):\n  def test_a(self): pass\n")
    found = tools.get("find_in_files").command_for({"pattern": "def \\w+", "directory": str(tmp_path), "files": "*.py"})
    said = subprocess.run(found.command, capture_output=True, text=True, check=True)
    assert said.stdout.endswith("test_it.py:3:  def test_a(self): pass\n")
    tests = tools.get("run_tests").command_for({"directory": str(tmp_path), "only": "test_a"})
    env = {"PATH": "/usr/bin:/bin", **tests.env}
    ran = subprocess.run(["bash", "-c", str(tests.command)], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_entries_that_the_documents_show_are_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/registry.md").read_text()
    blocks = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    for block in blocks:
        file = tmp_path / block.partition("\n")[0].removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        file.write_text(block)
    registry = Registry(packaged_registry(), tmp_path)
    assert {name: problem for name, problem in registry.all_problems().items() if problem} == {}
    assert {"count_words", "head", "lookup"} <= {one.name for one in registry.tools.list()}
    assert registry.tools.get("head").command_for({"file": "a b"}).command == ("head", "--lines=10", "--", "a b")
    text = tmp_path / "text"
    text.write_text("b a b")
    call = registry.tools.get("count_words").command_for({"file": str(text), "most": 1})
    said = subprocess.run(
        ["bash", "-c", str(call.command)], env={"PATH": "/usr/bin:/bin", **call.env}, capture_output=True
    )
    assert said.stdout.split() == [b"2", b"b"]
    assert "about weather" in AgentPrompt("analysis", variables={"subject": "weather"}).render(registry.prompts.get, {})
