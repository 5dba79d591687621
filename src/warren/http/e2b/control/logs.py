"""What a sandbox did, in E2B's words: the log of its session (sessions/operations/logs.py).

A line of the older route is JSON, as E2B's command line reads it. Times of the queries are in milliseconds, and the
bounds belong to what is asked for.
"""

import json
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.bodies import bad, whole_in_query
from warren.http.e2b.control.sandboxes import sandbox_in
from warren.http.e2b.errors import E2bError
from warren.interfaces.session_logs import SessionLogs
from warren.kernel.answer_memory import require_room
from warren.model.session_log import MAX_ON_PAGE

_LEVELS: Final = ("debug", "info", "warn", "error")
_LATEST_MS: Final = 1 << 46
_PAGE_BYTES: Final = 2 * 1024 * 1024
_OF_ENTRY: Final = frozenset({"id", "at", "text"})

Values = dict[str, Any]


async def show_logs(call: E2bCall) -> Response:
    start = whole_in_query(call.parameter("start"), "start", 0, _LATEST_MS) or 0
    shown = await _chosen(call, start, _LATEST_MS, backward=False)
    lines = [{"timestamp": one["timestamp"], "line": _line(one)} for one in shown]
    return answer_json({"logs": lines, "logEntries": shown})


async def show_logs_v2(call: E2bCall) -> Response:
    cursor = whole_in_query(call.parameter("cursor"), "cursor", 0, _LATEST_MS)
    direction, level = call.parameter("direction") or "forward", call.parameter("level") or _LEVELS[0]
    if direction not in ("forward", "backward"):
        raise bad("direction can be forward or backward")
    if level not in _LEVELS:
        raise bad(f"level can be {', '.join(_LEVELS)}")
    backward = direction == "backward"
    first, last = (0, cursor or _LATEST_MS) if backward else (cursor or 0, _LATEST_MS)
    shown = await _chosen(call, first, last, backward=backward, least=_LEVELS.index(level))
    return answer_json({"logs": shown})


async def _chosen(call: E2bCall, first_ms: int, last_ms: int, *, backward: bool, least: int = 0) -> list[Values]:
    limit = min(whole_in_query(call.parameter("limit"), "limit", 0, 1 << 31) or MAX_ON_PAGE, MAX_ON_PAGE)
    text = call.parameter("search")
    require_room(_PAGE_BYTES)
    found = deque[Values](maxlen=limit)
    size = 0
    async with aclosing(_entries(call, first_ms, last_ms)) as entries:
        async for entry in entries:
            shown = _view(entry)
            if _LEVELS.index(shown["level"]) < least or text not in shown["message"]:
                continue
            size += len(shown["message"])
            if not backward and (len(found) == limit or size > _PAGE_BYTES):
                break
            if len(found) == limit:
                size -= len(found[0]["message"])
            found.append(shown)
            while size > _PAGE_BYTES and len(found) > 1:
                size -= len(found.popleft()["message"])
    return list(reversed(found)) if backward else list(found)


async def _entries(call: E2bCall, first_ms: int, last_ms: int) -> AsyncGenerator[Values, None]:
    """Yields the entries of this time, the oldest first. Clients that follow a log ask for its end again and again: it
    is looked for there first."""
    logs, name = _logs_of(call), (call.tenant, sandbox_in(call))
    page = await logs.read(*name, last=MAX_ON_PAGE) if first_ms else None
    if page is None or (page.entries and page.entries[0]["id"] > 1 and _ms_of(page.entries[0]) >= first_ms):
        page = await logs.read(*name, limit=MAX_ON_PAGE)
    while True:
        for entry in page.entries:
            if _ms_of(entry) > last_ms:
                return
            if _ms_of(entry) >= first_ms:
                yield entry
        if not page.more:
            return
        page = await logs.read(*name, after=page.next, limit=MAX_ON_PAGE)


def _logs_of(call: E2bCall) -> SessionLogs:
    if call.context.logs is None:
        raise E2bError(501, "logs are not supported: this server keeps none")
    return call.context.logs


def _ms_of(entry: Values) -> int:
    return int(datetime.fromisoformat(entry["at"]).timestamp() * 1000)


def _view(entry: Values) -> Values:
    kind, event = entry["kind"], entry.get("event", "")
    message = entry.get("text") or " ".join(filter(None, (kind, event, entry.get("command"))))
    fields = {name: _text(value) for name, value in entry.items() if name not in _OF_ENTRY and value is not None}
    return {
        "timestamp": entry["at"],
        "message": message,
        "level": _level_of(entry),
        "fields": {"logger": "process" if kind in ("command", "output") else kind, **fields},
    }


def _level_of(entry: Values) -> str:
    if entry.get("event") == "failed" or entry.get("error"):
        return "error"
    return "warn" if entry["kind"] == "note" or entry.get("exit_code") else "info"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _line(shown: Values) -> str:
    return json.dumps({**shown["fields"], "level": shown["level"], "message": shown["message"]})


HANDLERS: Mapping[str, Run] = {"e2b_get_logs": show_logs, "e2b_get_logs_v2": show_logs_v2}
