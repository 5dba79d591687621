"""Finds which session or thread a request names: where the operation's row of the table says.

The router calls it for every request that a worker may have to answer. A request that is not valid names nothing; the
coordinator's own app then answers what is wrong with it.
"""

import contextlib
import re
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.types import Scope

from warren.http.forwarding.http_requests import RequestBody
from warren.http.multipart import read_parts
from warren.http.problems import read_json_body
from warren.http.request import Request
from warren.model.api import Operation, SessionIn
from warren.model.errors import InvalidRequest, TooLarge

_MAX_FORM_READ: Final = 9 * 1024 * 1024  # see flat.upload_file, which keeps as much


@dataclass(frozen=True, slots=True)
class Target:
    """The session or thread that a request names. `values` are the fields of a JSON body."""

    session_id: str = ""
    thread_id: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def concerns_worker(operation: Operation) -> bool:
    """Whether a worker may have to perform it."""
    of_worker = operation.of_machine or operation.of_named_machine or operation.of_artifact
    of_worker = of_worker or operation.of_snapshot or operation.of_volume
    return of_worker or operation.session_in is not SessionIn.NOWHERE


async def read_target(operation: Operation, request: Request, body: RequestBody) -> Target:
    """Reads no more of the body than it needs; the body can still be sent or replayed afterwards."""
    scope = request.scope
    match operation.session_in:
        case SessionIn.PATH:
            return Target(request.params["session_id"])
        case SessionIn.HEADER:
            return target_in_header(scope, operation.session_name, re.compile("(.*)"))
        case SessionIn.HOST:
            return target_in_header(scope, "host", re.compile(operation.session_name))
        case SessionIn.JSON:
            return await target_in_json(await body.fetch_all())
        case SessionIn.QUERY:
            return target_in_query(scope)
        case SessionIn.FORM:
            target = target_in_query(scope)
            if target.session_id or target.thread_id:
                return target
            content_type = request.headers.get(b"content-type", b"").decode("latin-1")
            return await target_in_form(body.fetch_up_to(_MAX_FORM_READ), content_type)
    return Target()


def target_in_header(scope: Scope, name: str, pattern: re.Pattern[str]) -> Target:
    """The first group of the pattern is the session id."""
    value = dict(scope["headers"]).get(name.lower().encode(), b"").decode("latin-1")
    match = pattern.fullmatch(value)
    return Target(session_id=match[1] if match else "")


def target_in_query(scope: Scope) -> Target:
    values = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return Target(values.get("session_id", [""])[-1], values.get("thread_id", [""])[-1])


async def target_in_json(body: bytes) -> Target:
    """Reads it as the app does: in turns with other requests, and not at all if it holds too much."""
    try:
        values = await read_json_body(body) if body else {}
    except (InvalidRequest, TooLarge):
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
