"""An agent in the registry: the environment, tools and prompt that somebody's program works with.

Warren runs no agent. An entry describes the sessions of an agent, and the integrations make tools from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from warren.model.entries import MAX_DESCRIPTION, Fields, InvalidEntry, Place, dotted, mistakes_at, shown, size_of
from warren.model.errors import TooLarge
from warren.model.prompt import Prompt, names_in, render
from warren.model.session import check_metadata, check_seconds
from warren.model.spec import Limits, check_env, check_env_size
from warren.model.tool import Tool

MAX_INLINE: Final = 64 * 1024
_KEYS: Final = (
    *("name", "description", "environment", "prompt", "tools", "limits", "env"),
    *("idle_timeout_s", "max_lifetime_s", "metadata", "type"),
)
_LIMITS: Final = tuple(each.name for each in fields(Limits))


@dataclass(frozen=True, slots=True)
class AgentPrompt:
    """The name of a prompt, or a template of the agent's own. `variables` are values for it; the caller must give the
    others when it renders the prompt."""

    name: str = ""
    template: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_value(cls, value: Any, place: Place) -> "AgentPrompt":
        if isinstance(value, str):
            value = {"name": value}
        given = Fields(value, ("name", "template", "variables"), place)
        if ("name" in given) == ("template" in given):
            raise InvalidEntry(f"{dotted(place)} needs a name or a template, one of them", place)
        name, template, variables = given.name("name"), given.text("template"), given.texts("variables")
        if "name" in given and not name:
            raise given.error("name", "is empty")
        for each in variables if template else ():
            if each not in names_in(template):
                raise InvalidEntry(f"the template has no variable {each!r}", (*place, "variables", each))
        return cls(name, template, variables)

    def as_mapping(self) -> dict[str, Any]:
        which = {"name": self.name} if self.name else {"template": self.template}
        return {**which, "variables": dict(self.variables)}

    def render(self, find: Callable[[str], Prompt], given: Mapping[str, str]) -> str:
        """Returns the text. Raises InvalidRequest for a variable that is unknown or has no value, and whatever `find`
        raises."""
        values = {**self.variables, **given}
        if self.name:
            return find(self.name).render(values)
        return render(self.template, values, names_in(self.template))


@dataclass(frozen=True, slots=True)
class Agent:
    """`tools`: names of tools in the registry, or tools of the agent's own. `limits`: override those of the
    environment. `env`: the values may be secrets, so only the names are ever shown. `type` and `metadata`: for readers
    of the entry, such as the kind of agent or the model it is meant for."""

    name: str = ""
    description: str = ""
    environment: str = ""
    prompt: AgentPrompt | None = None
    tools: tuple[str | Tool, ...] = ()
    limits: dict[str, float] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    type: str = ""

    @classmethod
    def from_mapping(cls, values: Any) -> "Agent":
        """Reads an entry. Raises InvalidEntry."""
        given = Fields(values, _KEYS)
        tools = given.items("tools", _read_tool)
        _check_names(tools)
        return cls(
            given.name("name"),
            given.text("description", MAX_DESCRIPTION),
            given.text("environment", 255),
            None if (prompt := given.values.get("prompt")) is None else AgentPrompt.from_value(prompt, ("prompt",)),
            tools,
            _read_limits(given),
            _read_env(given),
            given.seconds("idle_timeout_s", check_seconds),
            given.seconds("max_lifetime_s", check_seconds),
            _read_metadata(given),
            given.text("type", 255),
        )

    @classmethod
    def inline(cls, values: Mapping[str, Any]) -> "Agent":
        """Reads an agent that came with a request. Raises InvalidEntry, or TooLarge."""
        if size_of(values, MAX_INLINE) > MAX_INLINE:
            raise TooLarge(f"an agent_config may have {MAX_INLINE} bytes", remedy="put it into the registry")
        try:
            return cls.from_mapping(values)
        except InvalidEntry as exc:
            raise InvalidEntry(f"agent_config: {exc.message}", exc.place, remedy=exc.remedy) from exc

    def as_mapping(self) -> dict[str, Any]:
        """Returns the agent as JSON shows it, with `env_names` in place of the variables' values."""
        return {
            "name": self.name,
            "description": self.description,
            "type": self.type,
            "environment": self.environment,
            "prompt": None if self.prompt is None else self.prompt.as_mapping(),
            "tools": [each if isinstance(each, str) else each.as_mapping() for each in self.tools],
            "limits": dict(self.limits),
            "env_names": sorted(self.env),
            "idle_timeout_s": self.idle_timeout_s,
            "max_lifetime_s": self.max_lifetime_s,
            "metadata": dict(self.metadata),
        }

    @classmethod
    def of_shown(cls, values: Mapping[str, Any]) -> "Agent":
        """Makes an agent from what `as_mapping` returned, without its environment variables."""
        return cls.from_mapping({key: value for key, value in values.items() if key in _KEYS and value is not None})


def _read_tool(value: Any, place: Place) -> str | Tool:
    if isinstance(value, str):
        return Fields({"name": value}, ("name",), place).name("name")
    return Tool.from_mapping(value, place)


def _check_names(tools: tuple[str | Tool, ...]) -> None:
    seen = set[str]()
    for position, tool in enumerate(tools):
        name = tool if isinstance(tool, str) else tool.name
        if name in seen:
            raise InvalidEntry(f"the agent has two tools {name!r}", ("tools", position), remedy="remove one of them")
        seen.add(name)


def _read_limits(given: Fields) -> dict[str, float]:
    values = Fields(given.mapping("limits"), _LIMITS, ("limits",)).values
    for key, value in values.items():
        place = ("limits", key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidEntry(f"limits.{key} is {shown(value)}, it must be a number", place)
        if key != "cpus" and not isinstance(value, int):
            raise InvalidEntry(f"limits.{key} is {value}, it must be a whole number", place)
        with mistakes_at(*place):
            Limits(**{key: value})  # type: ignore[arg-type]
    return dict(values)


def _read_env(given: Fields) -> dict[str, str]:
    env = given.texts("env")
    for name, value in env.items():
        with mistakes_at("env", name):
            check_env(name, value)
    with mistakes_at("env"):
        check_env_size(env)
    return env


def _read_metadata(given: Fields) -> dict[str, str]:
    with mistakes_at("metadata"):
        return check_metadata(given.texts("metadata"))
