"""/openapi.json, and /docs: the API as one page of HTML, made from it, with nothing loaded from elsewhere."""

import asyncio
import json
import re
from html import escape
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
code{font:13px ui-monospace,monospace;background:#f2f3f5;padding:.1em .3em;border-radius:3px}
details{border:1px solid #d8dce2;border-radius:6px;margin:.4rem 0;padding:.4rem .8rem}
summary{cursor:pointer} b{display:inline-block;min-width:4.5rem} table{border-collapse:collapse;margin:.5rem 0}
td,th{border:1px solid #d8dce2;padding:.2rem .6rem;text-align:left;vertical-align:top}
@media(prefers-color-scheme:dark){body{background:#14171b;color:#dfe3e8}code{background:#23272e}
details,td,th{border-color:#363c45}}
"""
_CONTENT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def add_documents(app: FastAPI) -> None:
    """Both are made once, when somebody asks, and in a thread: it takes a good part of a second."""
    making, made = asyncio.Lock(), list[str]()

    async def texts() -> list[str]:
        async with making:
            if not made:
                made.extend(await asyncio.to_thread(_write, app))
        return made

    async def document(_: Request) -> Response:
        return Response((await texts())[0], media_type="application/json")

    async def page(_: Request) -> Response:
        return HTMLResponse((await texts())[1], headers={"Content-Security-Policy": _CONTENT_POLICY})

    app.add_route("/openapi.json", document, include_in_schema=False)
    app.add_route("/docs", page, include_in_schema=False)


def _write(app: FastAPI) -> tuple[str, str]:
    document = app.openapi()
    return json.dumps(document, separators=(",", ":")), render(document)


def render(document: dict[str, Any]) -> str:
    info = document["info"]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])} API</title>",
        f"<style>{_STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        _paragraphs(info.get("description", "")),
        "<p>For programs: <a href=/openapi.json>openapi.json</a></p>",
    ]
    for tag, operations in _by_tag(document).items():
        parts.append(f"<h2>{escape(tag)}</h2>")
        parts += [_operation(document, method, path, values) for method, path, values in operations]
    return "\n".join(parts)


def _by_tag(document: dict[str, Any]) -> dict[str, list[tuple[str, str, dict[str, Any]]]]:
    found: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, values in methods.items():
            found.setdefault((values.get("tags") or ["other"])[0], []).append((method, path, values))
    return found


def _operation(document: dict[str, Any], method: str, path: str, values: dict[str, Any]) -> str:
    rows = [
        (parameter["name"], parameter["in"], parameter.get("schema", {}), parameter.get("description", ""))
        for parameter in values.get("parameters", [])
    ]
    for media, content in values.get("requestBody", {}).get("content", {}).items():
        schema = _resolved(document, content.get("schema", {}))
        fields = schema.get("properties", {})
        rows += [(name, "body", field, field.get("description", "")) for name, field in fields.items()]
        if not fields:
            rows.append((media, "body", schema, "the bytes"))
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> "
        f"{escape(values.get('summary', ''))}</summary>{_paragraphs(values.get('description', ''))}"
        f"{_table(document, rows)}{_answers(document, values)}</details>"
    )


def _table(document: dict[str, Any], rows: list[tuple[str, str, dict[str, Any], str]]) -> str:
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{place}<td>{escape(_type(document, schema))}<td>{_inline(text)}"
        for name, place, schema, text in rows
    )
    return f"<table><tr><th>name<th>in<th>type<th>meaning{cells}</table>"


def _answers(document: dict[str, Any], values: dict[str, Any]) -> str:
    lines = []
    for status, answer in values.get("responses", {}).items():
        for media, content in answer.get("content", {}).items():
            if status.startswith("2"):
                names = _resolved(document, content.get("schema", {})).get("properties", {})
                shown = ", ".join(f"<code>{escape(name)}</code>" for name in names)
                lines.append(f"<p>{status} {escape(media)} {shown}</p>")
    return "".join(lines)


def _type(document: dict[str, Any], schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(document, each) for each in schema["anyOf"] if each.get("type") != "null")
    if "$ref" in schema:
        target = _resolved(document, schema)
        return ", ".join(map(str, target["enum"])) if "enum" in target else str(schema["$ref"]).rsplit("/", 1)[-1]
    if schema.get("type") == "array":
        return f"list of {_type(document, schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return _resolved(document, schema["anyOf"][0])
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    return found


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_inline(part)}</p>" for part in text.strip().split("\n\n") if part.strip())


def _inline(text: str) -> str:
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked)
