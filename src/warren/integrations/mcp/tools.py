"""Tools as the protocol describes them, made from functions.

The signature of an async function says all about a tool: its name, what it takes (`Annotated` with `about`), and what
its structured content has (`ToolAnswer[SomeTypedDict]`). Names of limits are those of JSON Schema.
"""

import inspect
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from warren.model.errors import InvalidRequest

Data = TypeVar("Data")

_KINDS: Final[Mapping[type, tuple[str, str]]] = {
    str: ("string", "a string"),
    int: ("integer", "an integer"),
    float: ("number", "a number"),
    bool: ("boolean", "true or false"),
}
_NOTICE: Final = {"type": "string", "description": "What to know first, such as that the sandbox is a fresh one."}
_SHOWN_CHARACTERS: Final = 40
READS: Final = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
CHANGES: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}
REPEATABLE: Final = {**CHANGES, "idempotentHint": True}


@dataclass(frozen=True)
class About:
    """What a schema says about a value beside its type."""

    description: str
    limits: Mapping[str, float]


def about(description: str, **limits: float) -> About:
    return About(description, limits)


@dataclass(frozen=True)
class ToolCall:
    """What the transport knows about a call: over HTTP the headers of its request."""

    headers: Mapping[str, str] | None = None


@dataclass(frozen=True)
class ToolAnswer(Generic[Data]):
    """The result of a call. `data` repeats all that `content` says: some clients show their model only one of them."""

    content: tuple[Mapping[str, str], ...]
    data: Data | None = None
    failed: bool = False

    def to_json(self) -> dict[str, Any]:
        structured = {} if self.data is None else {"structuredContent": self.data}
        return {"content": list(self.content), **structured, "isError": self.failed}


class McpTool:
    def __init__(
        self, function: Callable[..., Awaitable[ToolAnswer[Any]]], title: str, hints: Mapping[str, bool]
    ) -> None:
        self.function, self.name = function, function.__name__
        self._title, self._hints = title, hints
        types_of = get_type_hints(function, include_extras=True)
        [self._output] = get_args(types_of["return"])
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self._types = {each.name: types_of[each.name] for each in parameters}
        self._required = [each.name for each in parameters if each.default is inspect.Parameter.empty]
        self._defaults = {each.name: each.default for each in parameters if each.name not in self._required}

    def to_json(self) -> dict[str, Any]:
        properties = {
            name: schema_of(kind) | ({"default": self._defaults[name]} if name in self._defaults else {})
            for name, kind in self._types.items()
        }
        described = {
            "name": self.name,
            "title": self._title,
            "description": _unwrap(inspect.getdoc(self.function) or ""),
            "inputSchema": {
                "type": "object",
                "properties": properties,
                "required": self._required,
                "additionalProperties": False,
            },
            "annotations": dict(self._hints),
        }
        if is_typeddict(self._output):
            schema = schema_of(self._output)
            described["outputSchema"] = schema | {"properties": schema["properties"] | {"notice": _NOTICE}}
        return described

    async def call(self, call: ToolCall, arguments: Mapping[str, Any]) -> ToolAnswer[Any]:
        return await self.function(call, **self.read_arguments(arguments))

    def read_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments for the function; null is the same as an optional argument that was left out."""
        if unknown := [name for name in given if name not in self._types]:
            raise InvalidRequest(
                f"the tool {self.name} has no argument {' or '.join(map(_show, unknown))}",
                remedy=f"its arguments are {', '.join(self._types)}",
            )
        present = {name: value for name, value in given.items() if value is not None or name in self._required}
        if missing := [name for name in self._required if name not in present]:
            raise InvalidRequest(
                f"the tool {self.name} needs the argument{'s' * (len(missing) > 1)} {' and '.join(missing)}",
                remedy=f"its arguments are {', '.join(self._types)}",
            )
        return self._defaults | {name: _read_value(name, self._types[name], value) for name, value in present.items()}


def schema_of(kind: Any) -> dict[str, Any]:
    if get_origin(kind) is Annotated:
        inner, note = get_args(kind)
        return {**schema_of(inner), "description": note.description, **note.limits}
    if isinstance(kind, types.UnionType):
        [inner] = [each for each in get_args(kind) if each is not type(None)]
        return {"type": [schema_of(inner)["type"], "null"]}
    if get_origin(kind) is list:
        return {"type": "array", "items": schema_of(get_args(kind)[0])}
    if is_typeddict(kind):
        fields = get_type_hints(kind, include_extras=True)
        properties = {name: schema_of(each) for name, each in fields.items()}
        return {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": _KINDS[kind][0]}


def _read_value(name: str, kind: Any, value: Any) -> Any:
    inner, note = get_args(kind)
    try:
        found = _CONVERSIONS[inner](value)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"the argument {name} must be {_KINDS[inner][1]}, not {_show(value)}") from None
    for limit, bound in note.limits.items():
        is_kept, words = _LIMITS[limit]
        if not is_kept(found, bound):
            raise InvalidRequest(f"the argument {name} must {words.format(bound)}, not {_show(value)}")
    return found


def _to_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    value.encode()  # half a surrogate pair is no text
    return value


def _to_integer(value: Any) -> int:
    number = _to_number(value)
    if number != int(number):
        raise ValueError
    return int(value) if isinstance(value, int | str) else int(number)


def _to_number(value: Any) -> float:
    """Converts a number, also one that a model wrote as a string. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    number = float(value)
    if number - number != 0:
        raise ValueError
    return number


def _to_flag(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError
    return value


_CONVERSIONS: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: _to_text,
    int: _to_integer,
    float: _to_number,
    bool: _to_flag,
}
_LIMITS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "minLength": (lambda value, bound: len(value) >= bound, "have at least {} character"),
    "maxLength": (lambda value, bound: len(value) <= bound, "have at most {} characters"),
    "minimum": (lambda value, bound: value >= bound, "be at least {:.15g}"),
    "maximum": (lambda value, bound: value <= bound, "be at most {:.15g}"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "be more than {:.15g}"),
}


def _show(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = "null" if value is None else ascii(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _unwrap(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
