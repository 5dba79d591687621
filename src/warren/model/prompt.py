"""A prompt in the registry: a text in which `{{name}}` is replaced by a variable. Nothing else in it has a meaning."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from warren.model.entries import MAX_DESCRIPTION, MAX_TEXT, Fields, InvalidEntry, Place, dotted, read_text
from warren.model.errors import InvalidRequest
from warren.model.suggestions import suggest

MAX_RENDERED: Final = 1024 * 1024
_VARIABLE: Final = re.compile(r"(\\?)\{\{[ \t]*([A-Za-z_][A-Za-z0-9_]{0,63})[ \t]*\}\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KEYS: Final = ("name", "description", "template", "variables")


@dataclass(frozen=True, slots=True)
class Variable:
    """If `default` is None, the caller must give a value of a `required` variable, and others are empty."""

    description: str = ""
    default: str | None = None
    required: bool = True

    def as_mapping(self) -> dict[str, Any]:
        return {"description": self.description, "default": self.default, "required": self.required}


@dataclass(frozen=True, slots=True)
class Prompt:
    name: str
    template: str
    description: str = ""
    variables: dict[str, Variable] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, values: Any, place: Place = ()) -> "Prompt":
        fields = Fields(values, _KEYS, place)
        for key in ("name", "template"):
            fields.require(key)
        template = fields.text("template")
        variables = {
            str(name): _read_variable(each, (*place, "variables", str(name)))
            for name, each in fields.mapping("variables").items()
        }
        check_variables(template, variables, place)
        return cls(fields.name("name"), template, fields.text("description", MAX_DESCRIPTION), variables)

    def as_mapping(self) -> dict[str, Any]:
        variables = {name: each.as_mapping() for name, each in self.variables.items()}
        return {
            "name": self.name,
            "description": self.description,
            "template": self.template,
            "variables": variables,
        }

    def render(self, given: Mapping[str, str]) -> str:
        """Returns the text. Raises InvalidRequest for a variable that is unknown, or required and missing."""
        defaults = {name: each.default or "" for name, each in self.variables.items() if not each.required}
        return render(self.template, {**defaults, **given}, tuple(self.variables))


def _read_variable(values: Any, place: Place) -> Variable:
    if not _NAME.fullmatch(str(place[-1])):
        raise InvalidEntry(
            f"{dotted(place)} is no name for a variable", place, remedy="letters, digits and `_`, 64 at most"
        )
    if isinstance(values, str):
        return Variable(default=read_text(values, place), required=False)
    fields = Fields({} if values is None else values, ("description", "default", "required"), place)
    default = None if fields.values.get("default") is None else fields.text("default")
    required = fields.values.get("required", default is None)
    if not isinstance(required, bool):
        raise fields.error("required", "must be true or false")
    if required and default is not None:
        raise fields.error("required", "is true, and there is a default", remedy="remove one of them")
    return Variable(fields.text("description", MAX_DESCRIPTION), default, required)


def names_in(template: str) -> tuple[str, ...]:
    """Returns the names of a template's variables, each once."""
    return tuple(dict.fromkeys(match[2] for match in _VARIABLE.finditer(template) if not match[1]))


def check_variables(template: str, known: Mapping[str, object], place: Place) -> None:
    """Raises InvalidEntry for a variable of the template that is not described, or a described one that is not used."""
    used = names_in(template)
    for name in used:
        if name not in known:
            raise InvalidEntry(
                f"{dotted((*place, 'template'))} has the variable {name!r}, which variables do not have",
                (*place, "template"),
                remedy=f"{suggest(name, known)}describe it, or write \\{{{{{name}}}}} if the braces are meant",
            )
    for name in known:
        if name not in used:
            raise InvalidEntry(
                f"{dotted((*place, 'variables', name))} is not in the template",
                (*place, "variables", name),
                remedy=f"{suggest(name, used)}write {{{{{name}}}}} there",
            )


def render(template: str, values: Mapping[str, str], known: tuple[str, ...]) -> str:
    for name, value in values.items():
        if name not in known:
            remedy = f"{suggest(name, known)}its variables are {', '.join(known) or 'none'}"
            raise InvalidRequest(f"the prompt has no variable {str(name)[:100]!r}", remedy=remedy)
        read_text(value, ("variables", name), MAX_TEXT)
    if missing := [name for name in known if name not in values]:
        raise InvalidRequest(f"the prompt needs a value for {', '.join(missing)}")
    size = len(template) + sum(len(values[match[2]]) for match in _VARIABLE.finditer(template) if not match[1])
    if size > MAX_RENDERED:
        raise InvalidRequest(f"the prompt would have {size} characters, at most {MAX_RENDERED} are made")
    return _VARIABLE.sub(lambda match: match[0][1:] if match[1] else values[match[2]], template)
