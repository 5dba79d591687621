"""The events of sessions as they happen, for whoever keeps GET /api/events open.

The feed keeps the last events of each tenant in a ring, and those of all tenants in one more. A stream holds no queue:
it knows the number of the last event that it has sent, and reads on from there. If the ring has moved past that
number, because the reader is slow or comes back late, the stream says `gap`, and its reader must look at everything
again. An event is encoded once, when the first stream sends it, however many streams there are. After it has sent
something a stream rests for a moment, the longer the more streams there are, and sends then what has come together: a
tenant that makes events all the time must not keep the process busy with telling them.

A tenant's ring holds its own events only, so a busy tenant pushes out nobody else's. When all rings together hold too
many, the tenant without an event for the longest time loses its ring.

On one machine `publish` numbers the events. In a cluster Redis does, see shared_events.py.
"""

import asyncio
import json
import random
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from warren.kernel.fair_share import FairShare
from warren.model.access import ANY_TENANT
from warren.model.errors import RateLimited, Stopping
from warren.model.events import Event, EventKind

RING: Final = 1000  # events of a tenant
ALL_RINGS: Final = 20_000
MAX_STREAMS: Final = 128  # of a tenant
REST_S: Final = 0.002  # of a stream that has sent something, for each stream that is open
_LONGEST_REST_S: Final = 0.5
KINDS: Final = tuple(kind for kind in EventKind if kind is not EventKind.COMMAND_FINISHED)
"""What the feed tells of. A busy session ends hundreds of commands a second: those are in the audit record."""
_ID: Final = re.compile(r"([0-9a-f]{16})-([0-9]{1,15})")
_FRAME_BYTES: Final = 64 * 1024
_KEEPALIVE: Final = b": keep-alive\n\n"


def event_text(event: Event) -> str:
    """The event as JSON, with the same fields as a webhook's message."""
    moment = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    values: dict[str, Any] = {
        "id": event.id,
        "type": str(event.kind),
        "timestamp": moment,
        "tenant": event.tenant,
        "session_id": event.session_id,
        "data": event.json_data(),
    }
    return json.dumps(values, allow_nan=False)


class FeedEntry:
    """An event with its number; `text` is its JSON, or the event from which that is made when it is first needed."""

    __slots__ = ("_frame", "_text", "kind", "number", "session_id", "tenant")

    def __init__(self, number: int, tenant: str, kind: str, session_id: str, text: Event | str) -> None:
        self.number, self.tenant, self.kind, self.session_id = number, tenant, kind, session_id
        self._text: Event | str | None = text
        self._frame = b""

    def frame(self, run: str) -> bytes:
        if self._text is not None:
            text = self._text if isinstance(self._text, str) else event_text(self._text)
            self._frame = _frame(self.kind, f"{run}-{self.number}", text)
            self._text = None
        return self._frame


class _Ring:
    """The newest events of one tenant. `lost` is the number of the last one that was removed."""

    __slots__ = ("entries", "lost")

    def __init__(self, lost: int) -> None:
        self.entries: deque[FeedEntry] = deque()
        self.lost = lost


class EventFeed:
    """`publish` neither waits nor raises. `refresh` is called before a stream begins: it brings in what other processes
    have published. `run` names the counting: numbers of another run mean nothing here."""

    def __init__(
        self,
        *,
        ring: int = RING,
        all_rings: int = ALL_RINGS,
        max_streams: int = MAX_STREAMS,
        rest_s: float = REST_S,
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._most, self._most_in_all, self._max_streams, self._rest_s = ring, all_rings, max_streams, rest_s
        self.run = secrets.token_hex(8)
        self.last = 0
        self._refresh = refresh
        self._rings: OrderedDict[str, _Ring] = OrderedDict()
        self._in_all = 0
        self._lost = 0  # the last event of a tenant that has no ring any more
        self._streams: dict[str, set[_Stream]] = {}  # by the tenant whose events they tell
        self._readers = FairShare(each=max_streams)
        self._closed = False

    def __repr__(self) -> str:
        return f"<EventFeed: {self._in_all} events of {len(self._rings)} tenants, {self.streams} streams>"

    @property
    def streams(self) -> int:
        return self._readers.in_all

    def publish(self, event: Event) -> None:
        if event.kind is not EventKind.COMMAND_FINISHED:
            self.add(FeedEntry(self.last + 1, event.tenant, str(event.kind), event.session_id, event))

    def add(self, entry: FeedEntry) -> None:
        """Adds an entry; its number must be higher than that of every entry before."""
        self.last = entry.number
        for name in (entry.tenant, ANY_TENANT):
            self._keep(name, entry)
            for stream in self._streams.get(name, ()):
                if stream.takes(entry):
                    stream.wake.set()

    def _keep(self, name: str, entry: FeedEntry) -> None:
        ring = self._rings.get(name)
        if ring is None:
            ring = self._rings[name] = _Ring(self._lost)
        ring.entries.append(entry)
        self._in_all += 1
        if len(ring.entries) > self._most:
            ring.lost = ring.entries.popleft().number
            self._in_all -= 1
        self._rings.move_to_end(name)
        for other in list(self._rings) if self._in_all > self._most_in_all else ():
            if self._in_all > self._most_in_all and other not in (name, ANY_TENANT):
                gone = self._rings.pop(other)
                self._in_all -= len(gone.entries)
                self._lost = max(self._lost, gone.entries[-1].number)

    def lose(self, number: int) -> None:
        """Notes that events up to this number are missing here. Every stream, and whoever resumes from before them, is
        told of a gap."""
        self._rings.clear()
        self._in_all, self._lost, self.last = 0, number, number
        for stream in self._all_streams():
            stream.wake.set()

    def begin_again(self, run: str, last: int) -> None:
        """Forgets all events: another process counts them from now on, or the one that does has started again."""
        self.run, self.last = run, last
        self._rings.clear()
        self._in_all, self._lost = 0, last
        for stream in self._all_streams():
            stream.is_broken = True
            stream.wake.set()

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for stream in self._all_streams():
            stream.wake.set()

    def _all_streams(self) -> list["_Stream"]:
        return [stream for streams in self._streams.values() for stream in streams]

    async def stream(
        self,
        tenant: str,
        *,
        of: str = "",
        kinds: Collection[str] = (),
        session_id: str = "",
        after: str = "",
        keepalive_s: float = 15.0,
    ) -> AsyncGenerator[bytes, None]:
        """Yields server-sent events, encoded: `ready`, then what came since `after` (the id of an event), then events
        as they happen. `of` names the tenant whose events they are, `tenant` the one that reads them. Raises
        RateLimited if that one has too many streams, and Stopping."""
        if self._closed:
            raise Stopping("the server is being stopped", retry_after_s=5)
        if not self._readers.try_take(tenant):
            raise RateLimited(
                f"{self._max_streams} streams of events of this tenant are open",
                remedy="close some of them",
                retry_after_s=5,
            )
        name, reader = of or tenant, _Stream(kinds, session_id)
        mine = self._streams.setdefault(name, set())
        mine.add(reader)
        try:
            if self._refresh is not None:
                await self._refresh()
            place = self._place(after)
            resumed = place is not None and self._has_all_since(name, place)
            reader.cursor = place if place is not None and resumed else self.last
            reader.is_broken = bool(after) and not resumed
            yield _frame("ready", f"{self.run}-{reader.cursor}", json.dumps({"resumed": resumed}))
            while not self._closed:
                reader.wake.clear()  # before reading, so that an event that comes meanwhile wakes the stream again
                is_told = False
                while data := self._next(name, reader):
                    yield data
                    is_told = True
                if is_told:
                    await asyncio.sleep(min(self._rest_s * self.streams, _LONGEST_REST_S) * random.uniform(0.5, 1.5))
                with suppress(TimeoutError):
                    async with asyncio.timeout(keepalive_s):
                        await reader.wake.wait()
                if not reader.wake.is_set():
                    yield _KEEPALIVE
        finally:
            self._readers.give_back(tenant)
            mine.discard(reader)
            if not mine and self._streams.get(name) is mine:
                del self._streams[name]

    def _next(self, name: str, reader: "_Stream") -> bytes:
        """Returns the next events for the reader, up to a bound of bytes, and moves its cursor behind them; empty if
        there are none. So a slow reader holds no more than what is being sent to it."""
        if reader.is_broken or not self._has_all_since(name, reader.cursor):
            reader.is_broken, reader.cursor = False, self.last
            return self._gap()
        ring, found = self._rings.get(name), []
        for entry in reversed(ring.entries if ring is not None else ()):
            if entry.number <= reader.cursor:
                break
            if reader.takes(entry):
                found.append(entry)
        frames: list[bytes] = []
        size = 0
        for entry in reversed(found):
            frame = entry.frame(self.run)
            if size + len(frame) > _FRAME_BYTES and frames:
                return b"".join(frames)
            frames.append(frame)
            size += len(frame)
            reader.cursor = entry.number
        reader.cursor = self.last
        return b"".join(frames)

    def _gap(self) -> bytes:
        return _frame("gap", f"{self.run}-{self.last}", json.dumps({"detail": "some events are not known any more"}))

    def _place(self, event_id: str) -> int | None:
        match = _ID.fullmatch(event_id)
        if match is None or match[1] != self.run or int(match[2]) > self.last:
            return None
        return int(match[2])

    def _has_all_since(self, name: str, number: int) -> bool:
        ring = self._rings.get(name)
        return number >= (self._lost if ring is None else ring.lost)


class _Stream:
    """One reader. `is_broken`: it has missed something, and is told so next."""

    __slots__ = ("_kinds", "_session_id", "cursor", "is_broken", "wake")

    def __init__(self, kinds: Collection[str], session_id: str) -> None:
        self._kinds, self._session_id = frozenset(kinds), session_id
        self.cursor = 0
        self.is_broken = False
        self.wake = asyncio.Event()

    def takes(self, entry: FeedEntry) -> bool:
        return (not self._kinds or entry.kind in self._kinds) and self._session_id in ("", entry.session_id)


def _frame(kind: str, event_id: str, text: str) -> bytes:
    return f"event: {kind}\nid: {event_id}\ndata: {text}\n\n".encode()
