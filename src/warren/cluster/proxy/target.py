"""Which session a request is about: read from its path, its query, or the beginning of its body. Pure, but for the
reading of the body."""

import contextlib
import json
import re
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.types import Scope

from warren.http.multipart import read_parts
from warren.model.errors import InvalidRequest, TooLarge

_IN_PATH: Final = re.compile(r"/api/(?:sessions|e2b/files)/([^/]+)(?:/.*)?", re.DOTALL)


class SessionLocation(Enum):
    """Where a request says which session it is about. NOWHERE: it is about none, or about many."""

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
MAKING: Final = frozenset({*CREATING, "/execute", "/upload_file"})  # what makes a session for a thread that has none


@dataclass(frozen=True, slots=True)
class Target:
    """What a request says. `values` are the fields of a JSON body."""

    session_id: str = ""
    thread_id: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def where(scope: Scope) -> SessionLocation:
    path = scope["path"]
    if scope["type"] == "http" and (found := _FLAT.get((scope["method"], path))) is not None:
        return found
    return SessionLocation.PATH if _IN_PATH.fullmatch(path) else SessionLocation.NOWHERE


def from_path(scope: Scope) -> Target:
    found = _IN_PATH.fullmatch(scope["path"])
    return Target(session_id=found[1] if found else "")


def from_query(scope: Scope) -> Target:
    values = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return Target(values.get("session_id", [""])[-1], values.get("thread_id", [""])[-1])


def from_json(body: bytes) -> Target:
    """A body that is not right names nothing: the app says what is wrong with it."""
    try:
        values = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        return Target()
    if not isinstance(values, dict):
        return Target()
    return Target(_text(values.get("session_id")), _text(values.get("thread_id")), values)


async def from_form(pieces: AsyncIterable[bytes], content_type: str) -> Target:
    """Reads as much of a form as it takes to know, with what the app reads it with. One that is not right, or says it
    later than `pieces` go, names nothing."""
    found = {"session_id": "", "thread_id": ""}
    with contextlib.suppress(InvalidRequest, TooLarge):
        async for part in read_parts(pieces, content_type):
            is_file = part.filename is not None or part.name == "file"
            if not is_file and part.name in found:
                found[part.name] = await part.text()
            if found["session_id"] or (is_file and found["thread_id"]):
                break
    return Target(found["session_id"], found["thread_id"])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
