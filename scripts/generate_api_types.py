"""Generates the dashboard's types from the OpenAPI document: `python scripts/generate_api_types.py [--check]`.

Every schema that an operation below /api/ sends or takes becomes an interface of web/src/api/schemas.ts. With --check
nothing is written, and the exit code is 1 if the file is not up to date.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warren.http.app import new_fastapi_app
from warren.http.openapi import openapi_builder

TARGET = Path(__file__).parents[1] / "web" / "src" / "api" / "schemas.ts"
NOTE = "// Made from the OpenAPI document by scripts/generate_api_types.py: edit the models of the server instead.\n"
OTHER_APIS = {"flat", "e2b"}
PRIMITIVES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
Schema = dict[str, Any]


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    text = generate(openapi_builder(new_fastapi_app("0"), with_key=False)())
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    if check:
        sys.stderr.write(f"{TARGET.name} is not up to date; run python scripts/generate_api_types.py\n")
        return 1
    TARGET.write_text(text)
    return 0


def generate(document: Schema) -> str:
    schemas: dict[str, Schema] = document["components"]["schemas"]
    used = find_used(document["paths"], schemas)
    parts = [declare(key, schemas[key]) for key in sorted(used)]
    return NOTE + "".join(f"\n{part}" for part in parts)


def find_used(paths: dict[str, Schema], schemas: dict[str, Schema]) -> set[str]:
    """Returns the schemas of the dashboard's API, including those that others refer to."""
    operations = [
        operation
        for path, methods in paths.items()
        if path.startswith("/api/")
        for operation in methods.values()
        if not OTHER_APIS.intersection(operation["tags"])
    ]
    used: set[str] = set()
    left = list(references(operations))
    while left:
        key = left.pop()
        if key not in used:
            used.add(key)
            left.extend(references(schemas[key]))
    return used


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield key_of(value["$ref"])
        for child in value.values():
            yield from references(child)
    elif isinstance(value, list):
        for child in value:
            yield from references(child)


def key_of(reference: str) -> str:
    return reference.removeprefix("#/components/schemas/")


def declare(name: str, schema: Schema) -> str:
    if "properties" not in schema:
        return f"export type {name} = {type_of(schema)};\n"
    lines = fields(schema)
    if schema.get("additionalProperties") is True:
        lines.append("[name: string]: unknown")
    body = "".join(f"    {line};\n" for line in lines)
    return f"export interface {name} {{\n{body}}}\n"


def fields(schema: Schema) -> list[str]:
    required = schema.get("required", ())
    return [f"{key}{'' if key in required else '?'}: {type_of(value)}" for key, value in schema["properties"].items()]


def type_of(schema: Schema) -> str:
    if "$ref" in schema:
        return key_of(schema["$ref"])
    if "anyOf" in schema:
        return " | ".join(type_of(option) for option in schema["anyOf"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    match schema.get("type"):
        case "array":
            item = type_of(schema.get("items", {}))
            return f"({item})[]" if " | " in item else f"{item}[]"
        case "object" if "properties" in schema:
            return f"{{ {'; '.join(fields(schema))} }}"
        case "object":
            values = schema.get("additionalProperties")
            return f"Record<string, {type_of(values) if isinstance(values, dict) else 'unknown'}>"
        case kind:
            return PRIMITIVES.get(str(kind), "unknown")


if __name__ == "__main__":
    sys.exit(main())
