"""/, /openapi.json and /docs: what this server is, its API as a document, and as one page that is made from it.

Nothing is loaded from elsewhere. The one script, for the search and "try it", is allowed by its hash.
"""

import asyncio
import base64
import hashlib
import json
import re
from html import escape
from importlib import resources
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from warren.http.context import Context

_PAGES: Final = resources.files("warren.http") / "pages"
_STYLE: Final = (_PAGES / "page.css").read_text()
_SCRIPT: Final = (_PAGES / "docs.js").read_text()
_HOME: Final = (_PAGES / "home.html").read_text()
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_SCRIPT_HASH: Final = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_DOCS_POLICY: Final = f"{_POLICY}; script-src 'sha256-{_SCRIPT_HASH}'; connect-src 'self'"
_KEY: Final = "Every request needs a key, as <code>Authorization: Bearer KEY</code> or <code>X-API-Key: KEY</code>."
_HOME_KEY: Final = f"""<p>{_KEY} The server left its first key on its own machine, in
<code>~/.config/warren/credentials.json</code> of the user who started it, where the client and <code>warren</code> find
it. Whoever has that key makes more: <code>warren keys create NAME</code>.</p>"""
_NO_KEY: Final = "This server asks for no key: only its own machine can reach it."

Values = dict[str, Any]


def add_pages(app: FastAPI, version: str) -> None:
    async def home(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            about = {"name": "warren", "version": version, "docs": "/docs", "openapi": "/openapi.json"}
            return JSONResponse(about, headers={"Vary": "Accept"})
        values = {"style": _STYLE, "version": escape(version), "url": escape(str(request.base_url).rstrip("/"))}
        values["key"] = _HOME_KEY if _with_key(request) else f"<p>{_NO_KEY}</p>"
        values["set_key"] = " WARREN_API_KEY=…" if _with_key(request) else ""
        page = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], _HOME)
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY, "Vary": "Accept"})

    making, made = asyncio.Lock(), list[str]()

    async def texts() -> list[str]:
        """Returns the document and the page. They are made once, in a thread: it takes a good part of a second."""
        async with making:
            if not made:
                made.extend(await asyncio.to_thread(_write, app))
        return made

    async def document(_: Request) -> Response:
        return Response((await texts())[0], media_type="application/json")

    async def docs(_: Request) -> Response:
        return HTMLResponse((await texts())[1], headers={"Content-Security-Policy": _DOCS_POLICY})

    for path, page in (("/", home), ("/openapi.json", document), ("/docs", docs)):
        app.add_api_route(path, page, methods=["GET", "HEAD"], include_in_schema=False, response_model=None)


def _with_key(request: Request) -> bool:
    context: Context = request.app.state.context
    return context.with_key


def _write(app: FastAPI) -> tuple[str, str]:
    document = app.openapi()
    return json.dumps(document, separators=(",", ":")), render(document)


def render(document: Values) -> str:
    info, groups = document["info"], _by_tag(document)
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])} API</title>',
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><body class="with-nav">',
            '<nav><a href="/">Warren</a><input id="search" type="search" placeholder="Search" aria-label="Search">',
            *(_links(tag, operations) for tag, operations in groups.items()),
            f"</nav><main><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
            _paragraphs(info.get("description", "")),
            '<p>For programs: <a href="/openapi.json">openapi.json</a></p>',
            _key_box(document),
            *(_group(document, tag, operations) for tag, operations in groups.items()),
            f"</main><script>{_SCRIPT}</script>",
        ]
    )


def _by_tag(document: Values) -> dict[str, list[Values]]:
    found: dict[str, list[Values]] = {}
    for path, methods in document["paths"].items():
        for method, values in methods.items():
            operation = {**values, "method": method.upper(), "path": path}
            found.setdefault((values.get("tags") or ["other"])[0], []).append(operation)
    return found


def _links(tag: str, operations: list[Values]) -> str:
    links = "".join(f'<a href="#{_id(each)}">{escape(str(each.get("summary", "")))}</a>' for each in operations)
    return f"<div data-group><h3>{escape(tag)}</h3>{links}</div>"


def _id(operation: Values) -> str:
    return escape(str(operation.get("operationId", "")))


def _key_box(document: Values) -> str:
    if not document.get("security"):
        return f"<p>{_NO_KEY}</p>"
    return (
        f'<div class="key"><p>{_KEY} Paste yours here to try requests; it stays in this page.</p>'
        '<input id="key" type="password" autocomplete="off" placeholder="wk_…" aria-label="API key"></div>'
    )


def _group(document: Values, tag: str, operations: list[Values]) -> str:
    shown = "".join(_operation(document, each) for each in operations)
    return f"<div data-group><h2>{escape(tag)}</h2>{shown}</div>"


def _operation(document: Values, operation: Values) -> str:
    summary = operation.get("summary", "")
    words = f"{operation['method']} {operation['path']} {summary} {operation.get('description', '')}".lower()
    fields = [(each, each["in"], each.get("required", False)) for each in operation.get("parameters", [])]
    media, body = _body(document, operation)
    rows = [_row(document, each["name"], place, required, each) for each, place, required in fields]
    required_names = body.get("required", [])
    rows += [
        _row(document, name, "body", name in required_names, {"schema": field, **field})
        for name, field in body.get("properties", {}).items()
    ]
    if media and not body.get("properties"):
        rows.append(f"<tr><td><code>{escape(media)}</code><td>body<td>bytes<td><td>The content")
    head = "<tr><th>name<th>in<th>type<th>default<th>meaning"
    table = f'<div class="wide"><table>{head}{"".join(rows)}</table></div>' if rows else ""
    return (
        f'<section id="{_id(operation)}" data-words="{escape(words)}">'
        f'<h3><span class="method">{operation["method"]}</span> '
        f"<code>{escape(operation['path'])}</code> {escape(summary)}</h3>"
        f"{_paragraphs(operation.get('description', ''))}"
        f"{table}"
        f"{_answers(document, operation)}{_try_it(document, operation, media, body)}</section>"
    )


def _body(document: Values, operation: Values) -> tuple[str, Values]:
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        return media, _resolved(document, content.get("schema", {}))
    return "", {}


def _row(document: Values, name: str, place: str, required: bool, field: Values) -> str:
    schema = field.get("schema", {})
    default = "required" if required else _default(schema)
    return (
        f"<tr><td><code>{escape(name)}</code><td>{place}<td>{escape(_type(document, schema))}"
        f"<td>{escape(default)}<td>{_inline(field.get('description', ''))}"
    )


def _default(schema: Values) -> str:
    default = schema.get("default")
    return "" if default in (None, "", {}, []) else json.dumps(default)


def _answers(document: Values, operation: Values) -> str:
    lines = []
    for status, answer in operation.get("responses", {}).items():
        for media, content in answer.get("content", {}).items():
            if status.startswith("2"):
                names = _resolved(document, content.get("schema", {})).get("properties", {})
                shown = ", ".join(f"<code>{escape(name)}</code>" for name in names)
                lines.append(f"<p>{status} {escape(media)} {shown}</p>")
    return "".join(lines)


def _try_it(document: Values, operation: Values, media: str, body: Values) -> str:
    inputs = [
        f'<label>{escape(each["name"])} <input name="{escape(each["name"])}" data-in="{each["in"]}" '
        f'value="{escape(str(_example(document, each.get("schema", {})) or ""))}"></label>'
        for each in operation.get("parameters", [])
        if each["in"] in ("path", "query") or each["name"] != "accept"
    ]
    if media:
        example = json.dumps(_example(document, body), indent=2) if body.get("properties") else ""
        inputs.append(f'<textarea data-media="{escape(media)}" aria-label="body">{escape(example)}</textarea>')
    return (
        f'<details class="try" data-method="{operation["method"]}" data-path="{escape(operation["path"])}">'
        f'<summary>Try it</summary>{"".join(inputs)}<button type="button">Send</button>'
        '<button type="button" hidden>Stop</button><pre hidden></pre></details>'
    )


def _example(document: Values, schema: Values) -> Any:
    """Returns the example of a field; of an object, those fields that are required or have an example."""
    if schema.get("examples"):
        return schema["examples"][0]
    resolved = _resolved(document, schema)
    if resolved.get("examples"):
        return resolved["examples"][0]
    fields = resolved.get("properties")
    if fields is None:
        return {"string": "", "array": [], "object": {}, "boolean": False}.get(resolved.get("type", ""), 0)
    required = resolved.get("required", ())
    named = {name: field for name, field in fields.items() if name in required} or {
        name: field for name, field in fields.items() if field.get("examples")
    }
    return {name: _example(document, field) for name, field in named.items()}


def _type(document: Values, schema: Values) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(document, each) for each in schema["anyOf"] if each.get("type") != "null")
    if "$ref" in schema:
        target = _resolved(document, schema)
        return ", ".join(map(str, target["enum"])) if "enum" in target else _type(document, target)
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type(document, schema.get('items', {}))}"
    if schema.get("properties"):
        return f"object with {', '.join(schema['properties'])}"
    return f"{schema.get('type', 'any')}{_bounds(schema)}"


def _bounds(schema: Values) -> str:
    """The range of a number, or the length of a text."""
    least = schema.get("minimum", schema.get("exclusiveMinimum", schema.get("minLength")))
    most = schema.get("maximum", schema.get("exclusiveMaximum", schema.get("maxLength")))
    if least is None and most is None:
        return ""
    what = " characters" if "maxLength" in schema or "minLength" in schema else ""
    above = "more than " if "exclusiveMinimum" in schema else ""
    parts = [f"{above}{least:,}" if least is not None else "", f"up to {most:,}" if most is not None else ""]
    return f", {', '.join(part for part in parts if part)}{what}"


def _resolved(document: Values, schema: Values) -> Values:
    if "anyOf" in schema:
        return _resolved(document, schema["anyOf"][0])
    if "$ref" not in schema:
        return schema
    found: Values = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    return found


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_inline(part)}</p>" for part in text.strip().split("\n\n") if part.strip())


def _inline(text: str) -> str:
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked)
