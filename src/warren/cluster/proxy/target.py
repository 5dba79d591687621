"""Finds which session or thread a request names: in its path, its query, or the beginning of its body.

The router calls it for every request that a worker may have to answer. A request that is not valid names nothing; the
coordinator's own app then answers what is wrong with it.
"""

import contextlib
import json
import re
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.types import Scope

from warren.cluster.proxy.http_requests import RequestBody
from warren.http.multipart import read_parts
from warren.model.errors import InvalidRequest, TooLarge

_MAX_FORM_READ: Final = 9 * 1024 * 1024  # see flat.upload_file, which keeps as much
_IN_PATH: Final = re.compile(r"/api/(?:sessions|e2b/files)/([^/]+)(?:/.*)?", re.DOTALL)


class SessionLocation(Enum):
    """Where a request names its session. NOWHERE: it concerns no single session."""

    NOWHERE = "nowhere"
    PATH = "path"
    QUERY = "query"
    JSON = "json"
    FORM = "form"


_FLAT: Final = {
    ("POST", "/api/sessions"): SessionLocation.JSON,
    ("POST", "/create_session"): SessionLocation.JSON,
    ("POST", "/execute"): SessionLocation.JSON,
    ("POST", "/cleanup"): SessionLocation.JSON,
    ("POST", "/api/e2b/execute"): SessionLocation.JSON,
    ("POST", "/api/e2b/files"): SessionLocation.JSON,
    ("GET", "/download_file"): SessionLocation.QUERY,
    ("GET", "/list_files"): SessionLocation.QUERY,
    ("POST", "/upload_file"): SessionLocation.FORM,
}
CREATING: Final = frozenset({"/api/sessions", "/create_session"})
MAKING: Final = frozenset({*CREATING, "/execute", "/upload_file"})
"""Requests that create a session for a thread that has none."""


@dataclass(frozen=True, slots=True)
class Target:
    """The session or thread that a request names. `values` are the fields of a JSON body."""

    session_id: str = ""
    thread_id: str = ""
    values: dict[str, Any] = field(default_factory=dict)


async def read_target(location: SessionLocation, scope: Scope, body: RequestBody) -> Target:
    """Reads no more of the body than it needs; the body can still be sent or replayed afterwards."""
    if location is SessionLocation.PATH:
        return target_in_path(scope)
    if location is SessionLocation.JSON:
        return target_in_json(await body.fetch_all())
    target = target_in_query(scope)
    if location is SessionLocation.QUERY or target.session_id or target.thread_id:
        return target
    content_type = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
    return await target_in_form(body.fetch_up_to(_MAX_FORM_READ), content_type)


def locate_session(scope: Scope) -> SessionLocation:
    if scope["type"] not in ("http", "websocket"):
        return SessionLocation.NOWHERE
    path = scope["path"]
    if scope["type"] == "http" and (location := _FLAT.get((scope["method"], path))) is not None:
        return location
    return SessionLocation.PATH if _IN_PATH.fullmatch(path) else SessionLocation.NOWHERE


def target_in_path(scope: Scope) -> Target:
    match = _IN_PATH.fullmatch(scope["path"])
    return Target(session_id=match[1] if match else "")


def target_in_query(scope: Scope) -> Target:
    values = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return Target(values.get("session_id", [""])[-1], values.get("thread_id", [""])[-1])


def target_in_json(body: bytes) -> Target:
    try:
        values = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        return Target()
    if not isinstance(values, dict):
        return Target()
    return Target(_text(values.get("session_id")), _text(values.get("thread_id")), values)


async def target_in_form(pieces: AsyncIterable[bytes], content_type: str) -> Target:
    """Reads as much of a form as it takes, with the parser that the app uses. A form whose `pieces` end before it
    names a session names nothing."""
    fields = {"session_id": "", "thread_id": ""}
    with contextlib.suppress(InvalidRequest, TooLarge):
        async for part in read_parts(pieces, content_type):
            is_file = part.filename is not None or part.name == "file"
            if not is_file and part.name in fields:
                fields[part.name] = await part.text()
            if fields["session_id"] or (is_file and fields["thread_id"]):
                break
    return Target(fields["session_id"], fields["thread_id"])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
