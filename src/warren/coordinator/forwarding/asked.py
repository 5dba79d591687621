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

from warren.coordinator.api.multipart import read_parts
from warren.model.errors import InvalidRequest, TooLarge

_IN_PATH: Final = re.compile(r"/api/(?:sessions|e2b/files)/([^/]+)(?:/.*)?", re.DOTALL)


class Where(Enum):
    """Where a request says which session it is about. NOWHERE: it is about none, or about many."""

    NOWHERE = "nowhere"
    PATH = "path"
    QUERY = "query"
    JSON = "json"
    FORM = "form"


_FLAT: Final = {
    ("POST", "/api/sessions"): Where.JSON,
    ("POST", "/create_session"): Where.JSON,
    ("POST", "/execute"): Where.JSON,
    ("POST", "/cleanup"): Where.JSON,
    ("POST", "/api/e2b/execute"): Where.JSON,
    ("POST", "/api/e2b/files"): Where.JSON,
    ("GET", "/download_file"): Where.QUERY,
    ("GET", "/list_files"): Where.QUERY,
    ("POST", "/upload_file"): Where.FORM,
}
CREATING: Final = frozenset({"/api/sessions", "/create_session"})
MAKING: Final = frozenset({*CREATING, "/execute", "/upload_file"})  # what makes a session for a thread that has none


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says. `values` are the fields of a JSON body."""

    session_id: str = ""
    thread_id: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def where(scope: Scope) -> Where:
    path = scope["path"]
    if scope["type"] == "http" and (found := _FLAT.get((scope["method"], path))) is not None:
        return found
    return Where.PATH if _IN_PATH.fullmatch(path) else Where.NOWHERE


def from_path(scope: Scope) -> Asked:
    found = _IN_PATH.fullmatch(scope["path"])
    return Asked(session_id=found[1] if found else "")


def from_query(scope: Scope) -> Asked:
    values = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return Asked(values.get("session_id", [""])[-1], values.get("thread_id", [""])[-1])


def from_json(body: bytes) -> Asked:
    """A body that is not right names nothing: the app says what is wrong with it."""
    try:
        values = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        return Asked()
    if not isinstance(values, dict):
        return Asked()
    return Asked(_text(values.get("session_id")), _text(values.get("thread_id")), values)


async def from_form(pieces: AsyncIterable[bytes], content_type: str) -> Asked:
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
    return Asked(found["session_id"], found["thread_id"])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
