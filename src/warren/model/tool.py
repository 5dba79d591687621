"""A tool for models, as the registry has it: a command in the sandbox, or a tool of an MCP server that runs there.

Arguments never become part of a command line. A command that is a text is a line for bash, which finds each argument in
a variable of its name: `grep -n -- "$pattern" "$path"`. A command that is a list is a program with its arguments, in
which `{pattern}` is replaced; an argument that names a parameter without a value is left out.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from warren.model.entries import MAX_DESCRIPTION, Fields, InvalidEntry, Place, dotted, mistakes_at, read_text
from warren.model.json_schema import read_arguments, read_schema
from warren.model.session import check_seconds
from warren.model.spec import MAX_VARIABLE, check_env, check_env_size
from warren.model.suggestions import suggest

TIMEOUT_S: Final = 120.0
_KEYS: Final = ("name", "description", "command", "mcp", "parameters", "timeout_s")
_PARAMETER: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_PLACEHOLDER: Final = re.compile(r"\{([a-z][a-z0-9_]{0,63})\}")
_URL: Final = re.compile(r"https?://[^\s/?#]+[^\s]*")
_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_TAKEN: Final = frozenset({"http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy"})


@dataclass(frozen=True, slots=True)
class McpServer:
    """`command` starts it in the sandbox, where it speaks on its standard input and output; or it runs elsewhere, at
    `url`. `tool`: the server's name for the tool; empty if it is the entry's name."""

    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    url: str = ""
    tool: str = ""

    @classmethod
    def from_mapping(cls, values: Any, place: Place) -> "McpServer":
        fields = Fields(values, ("command", "env", "url", "tool"), place)
        if ("command" in fields) == ("url" in fields):
            raise InvalidEntry(f"{dotted(place)} needs a command or a url, one of them", place)
        command = fields.items("command", read_text)
        if "command" in fields and not (command and command[0]):
            raise fields.error("command", "is empty")
        env = fields.texts("env")
        for name, value in env.items():
            with mistakes_at(*place, "env", name):
                check_env(name, value)
        url = fields.text("url")
        if "url" in fields and not _URL.fullmatch(url):
            raise fields.error("url", "must begin with http:// or https://")
        return cls(command, env, url, fields.text("tool", 200))

    def as_mapping(self) -> dict[str, Any]:
        where = {"url": self.url} if self.url else {"command": list(self.command), "env": dict(self.env)}
        return {**where, "tool": self.tool}


@dataclass(frozen=True, slots=True)
class ToolCommand:
    """The command that runs for a call of a tool."""

    command: str | tuple[str, ...]
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters` is the JSON schema of the arguments. Exactly one of `command` and `mcp` is set."""

    name: str
    description: str = ""
    command: str | tuple[str, ...] = ""
    mcp: McpServer | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(_NO_PARAMETERS))
    timeout_s: float = TIMEOUT_S

    @classmethod
    def from_mapping(cls, values: Any, place: Place = ()) -> "Tool":
        fields = Fields(values, _KEYS, place)
        fields.require("name")
        if "." in fields.name("name"):
            raise fields.error("name", f"is {fields.name('name')!r}: models take no dots in the names of tools")
        if ("command" in fields) == ("mcp" in fields):
            raise InvalidEntry("a tool needs a command or mcp, one of them", place)
        mcp = McpServer.from_mapping(fields.values["mcp"], (*place, "mcp")) if "mcp" in fields else None
        parameters = read_schema(fields.values.get("parameters", _NO_PARAMETERS), (*place, "parameters"))
        command = "" if mcp else _read_command(fields, parameters)
        return cls(
            fields.name("name"),
            fields.text("description", MAX_DESCRIPTION),
            command,
            mcp,
            parameters,
            fields.seconds("timeout_s", check_seconds) or TIMEOUT_S,
        )

    def as_mapping(self) -> dict[str, Any]:
        command = list(self.command) if isinstance(self.command, tuple) else self.command
        what = {"command": command} if self.mcp is None else {"mcp": self.mcp.as_mapping()}
        return {
            "name": self.name,
            "description": self.description,
            **what,
            "parameters": dict(self.parameters),
            "timeout_s": self.timeout_s,
        }

    def read_arguments(self, given: Any) -> dict[str, Any]:
        """Returns the arguments, with defaults. Raises InvalidRequest if they do not match the schema."""
        return read_arguments(self.parameters, given, self.name)

    def command_for(self, given: Any) -> ToolCommand:
        """Returns the command for a call. Raises InvalidRequest if the arguments do not match the schema, or cannot be
        passed to a program."""
        arguments = self.read_arguments(given)
        known = self.parameters["properties"]
        if isinstance(self.command, tuple):
            texts = {name: _texts(name, arguments[name]) if name in arguments else None for name in known}
            return ToolCommand(tuple(each for part in self.command for each in _fill(part, texts)), {})
        env = {name: _text(arguments[name]) if name in arguments else "" for name in known}
        for name, value in env.items():
            check_env(name, value)
        check_env_size(env)
        return ToolCommand(self.command, env)


def _read_command(fields: Fields, parameters: Mapping[str, Any]) -> str | tuple[str, ...]:
    names, place = parameters["properties"], (*fields.place, "parameters", "properties")
    if parameters["additionalProperties"]:
        raise InvalidEntry(
            f"{dotted(place[:-1])}.additionalProperties cannot be true: a command knows the arguments it uses",
            (*place[:-1], "additionalProperties"),
        )
    for name in names:
        if not _PARAMETER.fullmatch(name):
            raise InvalidEntry(
                f"{name!r} is no name for a parameter",
                (*place, name),
                remedy="a small letter, then small letters, digits and `_`",
            )
    line = fields.values["command"]
    is_line = isinstance(line, str)
    command = fields.text("command") if is_line else fields.items("command", read_text)
    if not command or not command[0]:
        raise fields.error("command", "is empty", remedy="a line for bash, or a list: a program and its arguments")
    text = command if isinstance(command, str) else "\n".join(command)
    for name in names:
        if is_line and name in _TAKEN:
            raise InvalidEntry(
                f"the parameter {name!r} would change what programs do, as a variable of that name has a meaning",
                (*place, name),
                remedy="choose another name, or write the command as a list",
            )
        if not re.search(rf"\b{name}\b" if is_line else rf"\{{{name}\}}", text):
            raise InvalidEntry(
                f"the command does not use the parameter {name!r}",
                (*place, name),
                remedy=f'write "${name}" in it' if is_line else f"write {{{name}}} in it",
            )
    for name in () if is_line else _PLACEHOLDER.findall(text):
        if name not in names and suggest(name, names):
            raise fields.error("command", f"has {{{name}}}, which is no parameter", remedy=suggest(name, names).strip())
    return command


def _fill(part: str, texts: Mapping[str, tuple[str, ...] | None]) -> tuple[str, ...]:
    """Returns an argument of the program with its placeholders replaced. A placeholder that stands alone for a list
    becomes several arguments."""
    alone = _PLACEHOLDER.fullmatch(part)
    if alone and alone[1] in texts:
        return texts[alone[1]] or ()
    if any(texts.get(name, ()) is None for name in _PLACEHOLDER.findall(part)):
        return ()
    return (_PLACEHOLDER.sub(lambda match: " ".join(texts.get(match[1]) or (match[0],)), part),)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    found = tuple(map(_text, value if isinstance(value, list) else [value]))
    for text in found:
        read_text(text, (name,), MAX_VARIABLE)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
