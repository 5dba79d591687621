"""The part of JSON Schema that describes the parameters of tools.

Reading a schema refuses keywords that are not known here: an unchecked rule would be worse than none. Arguments that a
schema does not name are refused too, unless it says `additionalProperties: true`.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from warren.model.entries import MAX_DESCRIPTION, MAX_ITEMS, Fields, InvalidEntry, Place, dotted, read_text, shown
from warren.model.errors import InvalidRequest

_MAX_DEPTH: Final = 8
_MAX_NAME: Final = 200
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_SIZES: Final = ("minLength", "maxLength", "minItems", "maxItems")
_WORDS: Final = ("title", "description", "$schema")
_KEYWORDS: Final = (
    *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "default", "examples"),
    *_BOUNDS,
    *_SIZES,
    *_WORDS,
)


def read_schema(values: Any, place: Place) -> dict[str, Any]:
    """Reads the schema of an object. Raises InvalidEntry."""
    found = _read(values, place)
    if found.get("type") != "object":
        raise InvalidEntry(f"{dotted(place)}.type must be object: a tool takes named arguments", (*place, "type"))
    return {"properties": {}, "additionalProperties": False, **found}


def _read(values: Any, place: Place, depth: int = 0) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise InvalidEntry(f"{dotted(place)} lies too deep: {_MAX_DEPTH} schemas within each other at most", place)
    fields = Fields(values, _KEYWORDS, place)
    found = dict(fields.values)
    _check_type(fields)
    for key in _WORDS:
        if key in fields:
            fields.text(key, MAX_DESCRIPTION)
    if "properties" in fields:
        found["properties"] = {
            _read_name(name, place): _read(each, (*place, "properties", str(name)), depth + 1)
            for name, each in fields.mapping("properties").items()
        }
    if "items" in fields:
        found["items"] = _read(found["items"], (*place, "items"), depth + 1)
    _check_required(fields, found)
    for key in (*_BOUNDS, *_SIZES):
        if key in fields and not (_is_kind(found[key], "number")):
            raise fields.error(key, f"is {shown(found[key])}, it must be a number")
    if not isinstance(found.get("additionalProperties", False), bool):
        raise fields.error("additionalProperties", "must be true or false")
    for key in ("enum", "examples"):
        if key in fields and not (isinstance(found[key], list) and 0 < len(found[key]) <= MAX_ITEMS):
            raise fields.error(key, f"must be a list of 1 to {MAX_ITEMS} values")
    for key in ("enum", "const", "default", "examples"):
        if key in fields:
            _check_json(found[key], (*place, key))
    if "default" in fields:
        try:
            check_value(found, found["default"], "default")
        except InvalidRequest as exc:
            raise InvalidEntry(f"{dotted(place)}: {exc.message}", (*place, "default")) from exc
    return found


def _read_name(name: Any, place: Place) -> str:
    return read_text(name, (*place, "properties"), _MAX_NAME)


def _check_type(fields: Fields) -> None:
    kinds = fields.values.get("type", [])
    names = kinds if isinstance(kinds, list) else [kinds]
    for kind in names:
        if not isinstance(kind, str) or kind not in _KINDS:
            raise fields.error("type", f"is {shown(kind)}", remedy=f"there are: {', '.join(_KINDS)}")


def _check_required(fields: Fields, found: dict[str, Any]) -> None:
    names = found.get("required", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fields.error("required", "must be a list of names")
    for name in names:
        if name not in found.get("properties", {}):
            raise fields.error("required", f"names {shown(name)}, which properties do not have")


def _check_json(value: Any, place: Place, depth: int = 0) -> None:
    """Raises InvalidEntry for a value that JSON does not have: YAML, for example, has dates."""
    if depth > _MAX_DEPTH or not isinstance(value, str | int | float | list | dict | type(None)):
        raise InvalidEntry(f"{dotted(place)} has the value {shown(value)}, which JSON has not", place)
    if isinstance(value, str):
        read_text(value, place)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidEntry(f"{dotted(place)} has the value {value}, which JSON has not", place)
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_json(each, place, depth + 1)
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        raise InvalidEntry(f"{dotted(place)} has a key that is no text", place)


def read_arguments(schema: Mapping[str, Any], given: Any, tool: str) -> dict[str, Any]:
    """Returns the arguments of a call, with defaults; null stands for an optional argument that was left out. Raises
    InvalidRequest with a message that the caller, often a model, can act on."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"the arguments of the tool {tool} must be an object")
    defaults = {name: each["default"] for name, each in schema["properties"].items() if "default" in each}
    is_given = {name: value for name, value in given.items() if value is not None or name in schema.get("required", ())}
    arguments = {**defaults, **is_given}
    check_value(schema, arguments, f"the tool {tool}")
    return arguments


def check_value(schema: Mapping[str, Any], value: Any, name: str) -> None:
    kinds = schema.get("type", [])
    names = kinds if isinstance(kinds, list) else [kinds]
    if names and not any(_is_kind(value, kind) for kind in names):
        raise InvalidRequest(f"{name} is {shown(value)}, it must be of the type {' or '.join(names)}")
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        raise InvalidRequest(f"{name} is {shown(value)}", remedy=f"it must be one of {shown(str(schema['enum']))}")
    if "const" in schema and not _same(value, schema["const"]):
        raise InvalidRequest(f"{name} is {shown(value)}, it must be {shown(schema['const'])}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_bounds(schema, value, name)
    elif isinstance(value, str):
        _check_size(schema, len(value), name, "Length", "characters")
    elif isinstance(value, list):
        _check_size(schema, len(value), name, "Items", "items")
        for place, item in enumerate(value):
            check_value(schema.get("items", {}), item, f"{name}[{place}]")
    elif isinstance(value, Mapping):
        _check_object(schema, value, name)


def _check_object(schema: Mapping[str, Any], value: Mapping[str, Any], name: str) -> None:
    known = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            raise InvalidRequest(f"{name} needs the argument {key}")
    for key, each in value.items():
        if key in known:
            check_value(known[key], each, f"the argument {key}")
        elif not schema.get("additionalProperties", bool(not known)):
            raise InvalidRequest(
                f"{name} has no argument {shown(key)}", remedy=f"its arguments are {', '.join(known) or 'none'}"
            )


def _check_bounds(schema: Mapping[str, Any], value: float, name: str) -> None:
    broken = (
        ("minimum" in schema and value < schema["minimum"], f"at least {schema.get('minimum')}"),
        ("maximum" in schema and value > schema["maximum"], f"at most {schema.get('maximum')}"),
        (
            "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"],
            f"more than {schema.get('exclusiveMinimum')}",
        ),
        (
            "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"],
            f"less than {schema.get('exclusiveMaximum')}",
        ),
    )
    for is_broken, words in broken:
        if is_broken:
            raise InvalidRequest(f"{name} is {value}, it must be {words}")


def _check_size(schema: Mapping[str, Any], size: int, name: str, what: str, words: str) -> None:
    if size < schema.get(f"min{what}", 0):
        raise InvalidRequest(f"{name} has {size} {words}, it needs at least {schema[f'min{what}']}")
    if size > schema.get(f"max{what}", size):
        raise InvalidRequest(f"{name} has {size} {words}, at most {schema[f'max{what}']} are taken")


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, _KINDS[kind])


def _same(one: Any, other: Any) -> bool:
    """Returns whether two values are equal in JSON. In Python True equals 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
