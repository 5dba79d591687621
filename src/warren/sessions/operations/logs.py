"""The logs of sessions: read in pages or followed, and deleted."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from warren.kernel.answer_memory import require_room
from warren.model.errors import InvalidRequest
from warren.model.session_log import KINDS, MAX_ON_PAGE, LogLevel, LogPage
from warren.sessions.operations.call import Call, Handler, Values
from warren.sessions.operations.commands import EVENTS
from warren.sessions.output_events import Events, OutputEvent
from warren.sessions.schemas import timestamp

_PAGE_BYTES: Final = 1024 * 1024
_LATE_S: Final = 0.5
_HINT: Final = "nothing is kept of this session: create it with logs commands or output, see docs/logs.md"
_Number = Annotated[int, Field(ge=0, lt=1 << 62)]


class LogEntryView(BaseModel):
    """What happened, or what was written. Which of the fields it has depends on its kind and event."""

    id: int = Field(description="Its number in the log")
    at: str
    kind: str = Field(description="command, cell, terminal, output or note")
    event: str | None = Field(
        None, description="started, ended or failed (it was not run); of a terminal opened and closed"
    )
    command_id: str | None = Field(
        None, description="The same in all entries of a command: its process id if it has one"
    )
    process_id: str | None = None
    command: str | None = Field(None, description="What ran, without what looks like a secret; of a cell its code")
    cwd: str | None = None
    user: str | None = None
    key_id: str | None = Field(None, description="The key that asked for it")
    background: bool | None = None
    context_id: str | None = None
    language: str | None = None
    exit_code: int | None = None
    reason: str | None = Field(None, description="As in the result of a command; if it was not run, the error's code")
    signal: int | None = None
    duration_ms: float | None = None
    cpu_ms: float | None = None
    bytes_total: int | None = Field(None, description="What it wrote")
    execution_count: int | None = None
    error: str | None = Field(None, description="The name of what a cell raised")
    detail: str | None = Field(None, description="Why a policy refused it")
    stream: str | None = Field(None, description="stdout, stderr, terminal, or of a cell result")
    text: str | None = Field(None, description="What was written, or the note")
    missing: int | None = Field(None, description="So many bytes before it were not kept")
    until: int | None = Field(None, description="Where it ends in the output of the command, in bytes")


class LogView(BaseModel):
    session_id: str
    level: str = Field(description="off, commands or output")
    entries: list[LogEntryView] = Field(description="The oldest first")
    next: int = Field(description="Give it as `after` for the next page, or later for what came since")
    more: bool = Field(description="There are further entries now")
    ended: bool = Field(description="The session has ended, so nothing more comes")
    bytes: int = Field(description="About what the log takes on the disk")
    expires_at: str | None = Field(description="When it is deleted; null while the session lives")
    hint: str | None = Field(None, description="Why there is nothing")


class LogsQuery(BaseModel):
    after: Annotated[_Number, Field(description="`next` of the page before")] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_ON_PAGE, description="So many at most; fewer if they are long")] = 100
    last: Annotated[int | None, Field(ge=1, le=MAX_ON_PAGE, description="Instead: the newest so many")] = None
    kinds: str = Field("", max_length=64, description=f"Only these: {', '.join(KINDS)}, separated by commas")
    follow: bool = Field(False, description="As a stream: go on until the session has ended")

    @property
    def stream(self) -> bool:
        return self.follow


async def read_logs(call: Call, query: LogsQuery) -> Values:
    """While the session runs and after its end, until the log expires. Reading does not count as use.

    As a stream (`Accept: text/event-stream`, or `follow`): an event `entry` for each entry there is, then for each that
    comes, and `end` when the session has ended. Its ids are numbers of entries: `Last-Event-ID` goes on after one.
    A session that keeps no log has an empty page, and a stream that ends at once.
    """
    page = await _page(call, query, query.after, query.last)
    require_room(_PAGE_BYTES)
    record = page.record
    values: Values = {
        "session_id": call.session_id,
        "level": str(page.level),
        "entries": list(page.entries),
        "next": page.next,
        "more": page.more,
        "ended": page.ended,
        "bytes": record.bytes if record else 0,
        "expires_at": timestamp(record.expires_at) if record and record.expires_at else None,
    }
    return {**values, "hint": _HINT} if page.level is LogLevel.OFF and not page.entries else values


async def follow_logs(call: Call, query: LogsQuery) -> Events:
    after, last, is_late = _after(call, query), None if call.last_event_id else query.last, False
    keepalive_s = call.context.keepalive_s
    while True:
        page = await _page(call, query, after, last)
        after, last = max(after, page.next), None
        for entry in page.entries:
            yield OutputEvent("entry", entry, entry["id"])
        if page.more:
            continue
        if page.level is LogLevel.OFF and not after:
            yield OutputEvent("end", {"next": after, "hint": _HINT})
            return
        if page.ended and is_late:
            yield OutputEvent("end", {"next": after})
            return
        # What ends with its session is logged a moment after the session.
        is_late = page.ended
        yield None
        await call.logs.wait(call.tenant, call.session_id, after, _LATE_S if is_late else keepalive_s)


def _after(call: Call, query: LogsQuery) -> int:
    if not call.last_event_id:
        return query.after
    if not call.last_event_id.isdecimal() or len(call.last_event_id) > 18:
        raise InvalidRequest(
            f"the Last-Event-ID {call.last_event_id[:80]!r} is not from this stream",
            remedy="send the `id` of the last event that came, or leave the header out",
        )
    return int(call.last_event_id)


async def _page(call: Call, query: LogsQuery, after: int, last: int | None) -> LogPage:
    kinds: Any = tuple(kind for kind in query.kinds.split(",") if kind)
    if unknown := set(kinds).difference(KINDS):
        raise InvalidRequest(f"there is no kind {min(unknown)!r}", remedy=f"there are: {', '.join(KINDS)}")
    return await call.logs.read(call.tenant, call.session_id, after=after, limit=query.limit, kinds=kinds, last=last)


async def delete_logs(call: Call) -> None:
    """What was logged so far. A session that lives goes on with an empty log, whose numbers go on."""
    await call.logs.delete(call.tenant, call.session_id)


HANDLERS: Final = (
    Handler(
        "read_logs",
        read_logs,
        follow_logs,
        query=LogsQuery,
        result=LogView,
        other_results={200: EVENTS},
        headers=("accept", "last_event_id"),
    ),
    Handler("delete_logs", delete_logs),
)
