"""Every route of the server with a request that works, and from each the requests that must not.

The routes come from the app itself; a route that has no good request here fails the tests. A bad request differs
from the good one in one thing, so what is refused is refused for that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from tarfile import TarInfo
from typing import Any

import jsonschema_rs
from fastapi.routing import APIRoute, APIWebSocketRoute

from warren.http.app import ROUTERS

TAR_END = bytes(1024)
TAR_OF_ONE = TarInfo("one").tobuf() + TAR_END
UNKNOWN_ID = "ses_00000000000000000000000000000000"
FORM = (
    b'--cut\r\nContent-Disposition: form-data; name="session_id"\r\n\r\n{session_id}\r\n'
    b'--cut\r\nContent-Disposition: form-data; name="file"; filename="up.txt"\r\n\r\nhello\r\n--cut--\r\n'
)
NOBODY = "http://127.0.0.1:9/nobody"  # a port that nothing listens on
FORM_TYPE = "multipart/form-data; boundary=cut"


@dataclass(frozen=True)
class Request:
    """`{session_id}`, `{process_id}` and the like in it are filled in when it is sent. `raw` wins over `json`.

    `alone` is the status on a server that runs by itself, if that is another than in a cluster.
    """

    method: str
    path: str
    status: int = 200
    query: dict[str, str] = field(default_factory=dict)
    json: Any = None
    raw: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = False
    what: str = "as it should be"
    alone: int = 0

    def __str__(self) -> str:
        return f"{self.method} {self.path}, {self.what}"

    def status_in(self, cluster: bool) -> int:
        return self.status if cluster or not self.alone else self.alone


_S = "/api/sessions/{session_id}"
_P = f"{_S}/processes/{{process_id}}"
_CTX = f"{_S}/contexts/{{context_id}}"
_A = "/api/artifacts/{artifact_id}"
_SN = "/api/snapshots/{snapshot}"
_V = "/api/volumes/{volume}"
_W = "/api/webhooks/{webhook_id}"
_SE = "/api/secrets/{name}"
_K = "/api/admin/keys/{key_id}"
_T = "/api/admin/tenants/{name}"
_C = "/api/cluster"
_PAGE = {"X-Warren-Page": "1"}
_ID = {"session_id": "{session_id}"}
GOOD = [
    Request("POST", "/api/sessions", 201, json={}),
    Request("GET", "/api/sessions"),
    Request("GET", _S),
    Request("DELETE", _S),
    Request("PATCH", _S, json={"metadata": {"a": "b"}}),
    Request("POST", f"{_S}/keep-alive"),
    Request("POST", f"{_S}/pause", json={"max_paused_s": 60}),
    Request("POST", f"{_S}/resume"),
    Request("GET", f"{_S}/network"),
    Request("GET", f"{_S}/metrics"),
    Request("GET", "/api/metrics", query={"session_ids": "{session_id}"}),
    Request("PUT", f"{_S}/network", json={"allow": []}),
    Request("POST", f"{_S}/exec", json={"command": "echo hello"}),
    Request("POST", f"{_S}/processes", 201, json={"command": "sleep 1000"}),
    Request("GET", f"{_S}/processes"),
    Request("GET", _P),
    Request("DELETE", _P, 204),
    Request("GET", f"{_P}/output"),
    Request("GET", f"{_P}/wait", 202, {"timeout_s": "0.01"}),
    Request("POST", f"{_P}/stdin", 204, json={"data": "x"}),
    Request("POST", f"{_P}/signal", 204, json={"signal": "CONT"}),
    Request("POST", f"{_P}/resize", 204, json={"rows": 10, "columns": 20}),
    Request("POST", f"{_P}/kill", json={"grace_s": 0}),
    Request("POST", f"{_S}/kill-all"),
    Request("POST", f"{_S}/contexts", 201, json={"language": "bash"}),
    Request("GET", f"{_S}/contexts"),
    Request("DELETE", _CTX, 204),
    Request("POST", f"{_CTX}/restart"),
    Request("POST", f"{_CTX}/interrupt"),
    Request("POST", f"{_S}/code", json={"code": "echo hello", "language": "bash"}),
    Request("GET", f"{_S}/code/{{execution_id}}", 404),  # its result was read
    Request("GET", f"{_S}/ports"),
    Request("PUT", f"{_S}/ports/{{port}}", json={"host_header": "localhost"}),
    Request("POST", f"{_S}/links", 201, json={"port": 3000}),
    Request("DELETE", f"{_S}/links"),
    Request("GET", f"{_S}/files"),
    Request("DELETE", f"{_S}/files", 204, {"path": "kept.txt"}),
    Request("GET", f"{_S}/files/stat", query={"path": "kept.txt"}),
    Request("GET", f"{_S}/files/realpath", query={"path": "kept.txt"}),
    Request("GET", f"{_S}/files/content", query={"path": "kept.txt"}),
    Request("PUT", f"{_S}/files/content", 201, {"path": "new.txt"}, raw=b"new"),
    Request("POST", f"{_S}/files/mkdir", 201, json={"path": "folder"}),
    Request("POST", f"{_S}/files/move", json={"source": "kept.txt", "target": "moved.txt"}),
    Request("GET", f"{_S}/files/archive"),
    Request("PUT", f"{_S}/files/archive", 201, raw=TAR_END),
    Request("GET", f"{_S}/files/watch"),
    Request("GET", f"{_S}/files/search", query={"glob": "*"}),
    Request("POST", f"{_S}/artifacts", 201, json={"paths": ["kept.txt"]}),
    Request("GET", f"{_S}/logs"),
    Request("DELETE", f"{_S}/logs", 204),
    Request("GET", "/api/artifacts"),
    Request("GET", _A),
    Request("GET", f"{_A}/content"),
    Request("DELETE", _A, 204),
    Request("POST", f"{_S}/snapshots", 201, json={"name": "kept"}),
    Request("POST", f"{_S}/fork", 201, json={"count": 1}),
    Request("GET", "/api/snapshots"),
    Request("PUT", "/api/snapshots", 201, {"name": "kept"}, raw=TAR_OF_ONE),
    Request("GET", _SN),
    Request("GET", f"{_SN}/content"),
    Request("DELETE", _SN, 204),
    Request("POST", "/api/volumes", 201, json={"name": "{fresh}", "size_mb": 16}),
    Request("GET", "/api/volumes"),
    Request("GET", _V),
    Request("PATCH", _V, json={"metadata": {"a": "b"}}),
    Request("POST", f"{_V}/copy", 201, json={"name": "{fresh}"}),
    Request("DELETE", _V, 204),
    Request("POST", f"{_S}/volumes", 201, json={"name": "{fresh}", "path": "/workspace/{fresh}", "size_mb": 16}),
    Request("DELETE", f"{_S}/volumes", 404, {"path": "/workspace/none"}),
    Request("POST", "/create_session", json={}),
    Request("POST", "/execute", json={**_ID, "command": "echo hello"}),
    Request("POST", "/upload_file", raw=FORM, headers={"Content-Type": FORM_TYPE}),
    Request("GET", "/download_file", query={**_ID, "path": "kept.txt"}),
    Request("GET", "/list_files", query=_ID),
    Request("POST", "/cleanup", json=_ID),
    Request("GET", "/sessions"),
    Request("GET", "/api/environments"),
    Request("GET", "/api/images"),
    Request("GET", "/api/registry/{kind}"),
    Request("GET", "/api/registry/{kind}/{entry}"),
    Request("POST", "/api/registry/prompts/{entry}/render", json={"variables": {"language": "Go"}}),
    Request("GET", "/health"),
    Request("POST", "/api/e2b/execute", json={**_ID, "code": "echo hello", "language": "bash"}),
    Request("GET", "/api/e2b/files/{session_id}"),
    Request("GET", "/api/e2b/files", query=_ID),
    Request("POST", "/api/e2b/files", 201, json={**_ID, "path": "e2b.txt", "content": "x"}),
    Request("POST", "/api/e2b/files/{session_id}", 201, json={"path": "e2b.txt", "content": "x"}),
    Request("DELETE", "/api/e2b/files/{session_id}", 204, {"path": "kept.txt"}),
    Request("DELETE", "/api/e2b/files", 204, {**_ID, "path": "kept.txt"}),
    Request("POST", "/api/webhooks", 201, json={"url": NOBODY, "events": ["quota.reached"]}),
    Request("GET", "/api/webhooks"),
    Request("GET", _W),
    Request("DELETE", _W, 204),
    Request("POST", f"{_W}/rotate"),
    Request("POST", f"{_W}/test"),
    Request("GET", f"{_W}/deliveries"),
    Request("PUT", _SE, json={"value": "bad-input", "hosts": ["api.example.com"], "header": "X-Key"}),
    Request("GET", "/api/secrets"),
    Request("GET", _SE),
    Request("DELETE", _SE, 204),
    Request("POST", f"{_S}/tickets", 201, json={"process_id": "{process_id}", "origins": ["https://app.example"]}),
    Request("GET", "/api/ui/session"),
    Request("POST", "/api/ui/sign-in", json={"key": "any"}, headers=_PAGE),
    Request("POST", "/api/ui/sign-out", 204, headers=_PAGE),
    Request("POST", "/api/ui/sign-out-everywhere", 204),
    Request("POST", "/api/ui/links", 201),
    Request("POST", "/api/ui/tickets/redeem", json={"ticket": "{ticket}"}),
    Request("GET", "/api/whoami"),
    Request("GET", "/api/audit"),
    Request("GET", "/api/usage"),
    Request("GET", "/api/events"),
    Request("GET", "/api/quotas"),
    Request("GET", "/api/admin/quotas", query={"of": "kept"}),
    Request("GET", "/api/admin/doctor"),
    Request("GET", "/api/history"),
    Request("GET", "/api/admin/builds"),
    Request("POST", "/api/admin/builds", 422, json={"environment": "host"}),
    Request("DELETE", "/api/admin/builds", 404, {"image": "host"}),
    Request("GET", "/api/admin/audit"),
    Request("GET", "/api/admin/usage"),
    Request("POST", "/api/admin/keys", 201, json={"name": "bad input"}),
    Request("GET", "/api/admin/keys"),
    Request("DELETE", _K, 204),
    Request("POST", f"{_K}/rotate"),
    Request("POST", "/api/admin/revocations", 201, json={"token_id": "bad input"}),
    Request("GET", "/api/admin/revocations"),
    Request("DELETE", "/api/admin/revocations/{revocation_id}", 204),
    Request("GET", "/api/admin/tenants"),
    Request("GET", _T),
    Request("PUT", _T, json={"quota": {"sessions": 1000}}),
    Request("DELETE", _T, 204),
    Request("GET", _C, alone=404),
    Request("GET", f"{_C}/demand", alone=404),
    Request("PATCH", f"{_C}/workers/{{worker_id}}", json={"draining": True}, alone=404),
    Request("DELETE", f"{_C}/workers/{{worker_id}}", 204, alone=404),
    Request("GET", "/ready"),
    Request("GET", "/version"),
    Request("GET", "/api/stats"),
    Request("GET", "/metrics"),
]

BAD_IDS = [
    UNKNOWN_ID, "x", "%C3%BC%F0%9F%92%A5", "%00", "%00ses_0", "%FF%FE", "x" * 5000, "'%20OR%201=1%20--", "*", "%2e%2e",
    "a%2Fb", "..%2F..%2Fetc%2Fpasswd", "%0d%0aX-Evil:%201", "%7Bsession_id%7D", "%20", "null", "-1", "%25s%25n",
]  # fmt: skip
NOT_NUMBERS = ["abc", "-1", "nan", "inf", "-inf", "1e999", "9" * 30, "9" * 5000, "0x10", "", "1,5", "%00"]
_OTHER_VALUES: list[Any] = [None, True, 7, -1, 10**30, 1.5, "text", "", [], [None], [[1]], {}, {"a": 1}, {"a": None}]
_LARGEST = 4 * 1024 * 1024
_BROKEN_JSON = {
    "not JSON": b"{",
    "plain text": b"hello",
    "two values": b"{} {}",
    "NaN": b'{"x": NaN}',
    "infinite": b'{"x": 1e999}',
    "a number of 5,000 digits": b'{"x": ' + b"9" * 5000 + b"}",
    "deep": b'{"x":' * 5000 + b"1" + b"}" * 5000,
    "deep lists": b"[" * 50_000,
    "not UTF-8": b'{"x": "\xff\xfe"}',
    "half a surrogate pair": b'{"x": "\\ud800"}',
    "a bare NUL": b'{"x": "\0"}',
}


def http_routes() -> set[tuple[str, str]]:
    routes = [route for module in ROUTERS for route in module.router.routes if isinstance(route, APIRoute)]
    return {(method, route.path) for route in routes for method in route.methods or ()}


def socket_paths() -> set[str]:
    routes = [route for module in ROUTERS for route in module.router.routes]
    return {route.path for route in routes if isinstance(route, APIWebSocketRoute)}


def with_bad_ids() -> Iterator[Request]:
    for good in GOOD:
        for bad in BAD_IDS:
            if "{session_id}" in good.path:
                yield replace(good, path=good.path.replace("{session_id}", bad), what="bad session id")
            for name in (
                "{process_id}",
                "{context_id}",
                "{execution_id}",
                "{artifact_id}",
                "{volume}",
                "{snapshot}",
                "{webhook_id}",
                "{key_id}",
                "{revocation_id}",
                "{worker_id}",
                "{kind}",
                "{entry}",
            ):
                if name in good.path:
                    yield replace(good, path=good.path.replace(name, bad), what=f"bad {name[1:-1]}")


def with_wrong_methods() -> Iterator[Request]:
    allowed: dict[str, set[str]] = {}
    for method, path in http_routes():
        allowed.setdefault(path, set()).add(method)
    for path, methods in allowed.items():
        for method in sorted({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - methods):
            yield Request(method, path, what="wrong method")


def with_broken_json(document: dict[str, Any]) -> Iterator[Request]:
    for good in with_json(document):
        for what, raw in _BROKEN_JSON.items():
            yield replace(good, raw=raw, what=what)


def with_huge_bodies(document: dict[str, Any]) -> Iterator[Request]:
    for good in with_json(document):
        raw = b'{"x": "' + b"x" * _LARGEST + b'"}'
        yield replace(good, raw=raw, what="huge")
        yield replace(good, raw=raw, chunked=True, what="huge, of unknown length")


def with_wrong_values(document: dict[str, Any]) -> Iterator[Request]:
    """Whole bodies and single fields that do not fit the schema the server gives for them."""
    for good in with_json(document):
        schema = {**_body(document, good)["schema"], "components": document["components"]}
        required = _body_required(document, good)
        fits = jsonschema_rs.validator_for(schema).is_valid
        bodies = [value for value in _OTHER_VALUES if not fits(value)] + [{**good.json, "unknown": 1}]
        bodies += [{**good.json, name: value} for name in _properties(schema) for value in _OTHER_VALUES]
        bodies += [{n: v for n, v in good.json.items() if n != name} for name in good.json]
        yield from (replace(good, json=body, what=f"body {body!r:.80}") for body in bodies if not fits(body))
        if required:
            yield replace(good, json=None, raw=b"", what="no body")


def with_wrong_parameters(document: dict[str, Any]) -> Iterator[Request]:
    for good in GOOD:
        for parameter in _operation(document, good).get("parameters", []):
            name, kind, schema = parameter["name"], parameter["in"], parameter["schema"]
            for value in _wrong_texts(schema):
                if kind == "query":
                    yield replace(good, query={**good.query, name: value}, what=f"{name}={value[:40]}")
                elif kind == "header":
                    yield replace(good, headers={**good.headers, name: value}, what=f"{name}: {value[:40]}")
            if kind == "query" and parameter.get("required"):
                yield replace(good, query={}, what=f"without {name}")


def with_json(document: dict[str, Any]) -> Iterator[Request]:
    yield from (good for good in GOOD if good.json is not None and _body(document, good) is not None)


def _wrong_texts(schema: dict[str, Any]) -> list[str]:
    options = schema.get("anyOf", [schema])
    if any(option.get("type") in ("integer", "number") for option in options):
        return NOT_NUMBERS
    if any(option.get("type") == "boolean" for option in options):
        return ["maybe", "2"]
    if any("enum" in option for option in options):
        return ["nothing", "TEXT"]
    if "maxLength" in schema:
        return ["x" * (schema["maxLength"] + 1)]
    return []


def _operation(document: dict[str, Any], request: Request) -> dict[str, Any]:
    operation: dict[str, Any] = document["paths"][request.path][request.method.lower()]
    return operation


def _body(document: dict[str, Any], request: Request) -> Any:
    return _operation(document, request).get("requestBody", {}).get("content", {}).get("application/json")


def _body_required(document: dict[str, Any], request: Request) -> bool:
    return bool(_operation(document, request)["requestBody"].get("required"))


def _properties(schema: dict[str, Any]) -> list[str]:
    options = schema.get("anyOf", [schema])
    names = [option["$ref"].rsplit("/", 1)[-1] for option in options if "$ref" in option]
    return [name for model in names for name in schema["components"]["schemas"][model]["properties"]]
