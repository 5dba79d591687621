"""Turns the errors that pydantic finds in arguments into sentences for people."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from warren.model.errors import InvalidRequest
from warren.model.strict_json import shortened

M = TypeVar("M", bound=BaseModel)


MANY = 100  # errors


def many_errors(model: type[BaseModel], values: Any) -> dict[str, Any] | None:
    """Returns one error instead of very many, else None: pydantic finds and describes each, which takes long for
    thousands."""
    if not isinstance(values, dict):
        return None
    if len(values) > MANY and len(values) > len(model.model_fields):
        unknown = next(name for name in values if name not in model.model_fields)
        return {"type": "extra_forbidden", "loc": (unknown,)}
    for name, value in values.items():
        if isinstance(value, dict | list) and len(value) > MANY:
            items = value.values() if isinstance(value, dict) else value
            if not all(item is None or isinstance(item, str) for item in items):
                return {"type": "string_type", "loc": (name, "*"), "input": []}
    return None


def validated(kind: type[M], values: Any) -> M:
    """Raises InvalidRequest with one sentence for each field that is wrong."""
    if many := many_errors(kind, values):
        raise validation_error([many])
    try:
        return kind.model_validate(values)
    except ValidationError as exc:
        raise validation_error(exc.errors()) from None


def summary(errors: Sequence[Mapping[str, str]]) -> str:
    detail = "; ".join(error["message"] for error in errors[:5])
    return f"{detail}; and {len(errors) - 5} more" if len(errors) > 5 else detail


def validation_error(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Returns the error for values that did not come as the body of an HTTP request."""
    return InvalidRequest(
        summary([{"message": describe_error({**error, "loc": ("body", *error["loc"])})} for error in errors])
    )


def field_name(loc: Sequence[str | int]) -> str:
    steps = list(loc[1:]) if len(loc) > 1 else list(loc)
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return shortened(text.removeprefix("."))


_RULE_TEXTS: dict[str, str] = {
    "int_": "must be a whole number",
    "float_": "must be a number",
    "bool_": "must be true or false",
    "string_type": "must be a string",
    "string_unicode": "must be text in valid Unicode",
    "list_type": "must be a list",
    "dict_type": "must be a JSON object",
    "model_": "must be a JSON object",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
}


def describe_error(error: Mapping[str, Any]) -> str:
    field, kind = f"`{field_name(error['loc'])}`", str(error["type"])
    if kind == "missing":
        return "the request needs a JSON body" if tuple(error["loc"]) == ("body",) else f"{field} is missing"
    if kind == "extra_forbidden":
        return f"{field} is not known here"
    return f"{field} {_describe_rule(kind, error)}{_describe_input(error)}"


def _describe_rule(kind: str, error: Mapping[str, Any]) -> str:
    context = error.get("ctx") or {}
    for start, words in _RULE_TEXTS.items():
        if kind == start or (start.endswith("_") and kind.startswith(start)):
            return words.format_map(
                {name: f"{value:.15g}" if isinstance(value, float) else value for name, value in context.items()}
            )
    message = str(error["msg"])
    if kind == "value_error":
        return f"is not possible: {context.get('error', message)}"
    return message.replace("Input should be", "must be") if "Input should be" in message else f"is wrong: {message}"


def _describe_input(error: Mapping[str, Any]) -> str:
    """Returns the value that was sent, unless it is long or may be a secret, as headers and environment variables
    may."""
    value = error.get("input")
    secret = error["loc"][0] in ("header", "cookie") or "env" in error["loc"]
    if secret or not isinstance(value, str | int | float | bool | None):
        return ""
    return f", got {shortened(json.dumps(value) if value is None or isinstance(value, bool) else repr(value))}"
