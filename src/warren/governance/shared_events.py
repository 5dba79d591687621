"""The event feed of a cluster: every process writes its events into one list in Redis, coordinators read them there.

`publish` puts an event into memory, and a task writes what has come together. A coordinator reads the list twice a
second while somebody has a stream open, and when one is opened, so that a stream can go on at another coordinator. The
list holds the last EVENTS_KEPT events and is gone after a day without any. Redis counts the events; if it loses its
data it begins anew, under another name, and the streams say `gap`.

Nothing waits for Redis. Events that it does not take are lost, and an entry `gap` in the list says so.
"""

import asyncio
import secrets
from collections import deque
from contextlib import suppress
from typing import Final

from warren.governance.event_feed import KINDS, EventFeed, FeedEntry, event_text
from warren.kernel.logs import get_log
from warren.model.errors import WarrenError
from warren.model.events import Event
from warren.stores.redis_link import RedisLink, Value
from warren.stores.redis_lua import script

EVENTS_KEPT: Final = 5000
POLL_S: Final = 0.5
_GATHER_S: Final = 0.05  # in which events come together
_RETRY_S: Final = 1.0
_MAX_WAITING: Final = 1000
_AT_ONCE: Final = 100
_READ_AT_ONCE: Final = 500
_GAP: Final = "gap"

# The hash has the name of the counting and the number of the last event; four texts in the list are one event.
_APPEND: Final = script(
    body=f"""
local KEPT, DAY_S = {EVENTS_KEPT}, 86400
local count, list = key('events'), key('feed')
if call('HSETNX', count, 'run', ARGV[3]) == 1 then call('DEL', list) end
for at = 4, #ARGV, 4 do
  call('RPUSH', list, unpack(ARGV, at, at + 3))
  call('HINCRBY', count, 'last', 1)
end
call('LTRIM', list, -4 * KEPT, -1)
call('EXPIRE', list, DAY_S)
"""
)

# Returns the name of the counting, the events after a number, and the number of the event before the first of them.
_READ: Final = script(
    body="""
if call('HSETNX', key('events'), 'run', ARGV[6]) == 1 then call('DEL', key('feed')) end
local run, last = unpack(call('HMGET', key('events'), 'run', 'last'))
last = tonumber(last or 0)
local kept, most = call('LLEN', key('feed')) / 4, tonumber(ARGV[5])
local after = last - kept
if run == ARGV[3] and tonumber(ARGV[4]) > after then after = tonumber(ARGV[4]) end
local first = (after - (last - kept)) * 4
return {run, after, call('LRANGE', key('feed'), first, first + most * 4 - 1)}
"""
)

_log = get_log("warren.events")


class SharedEvents:
    """Only a coordinator calls `run` and reads; workers just write. `close` writes what was published before."""

    def __init__(self, link: RedisLink, *, poll_s: float = POLL_S) -> None:
        self._link = link
        self.feed = EventFeed(refresh=self._refresh)
        self._poll_s = poll_s
        self._waiting: deque[Event] = deque()
        self._has_lost = False
        self._writing: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._closed = False
        self._is_away = False

    def __repr__(self) -> str:
        return f"<SharedEvents: {len(self._waiting)} to be written{', Redis is away' if self._is_away else ''}>"

    def publish(self, event: Event) -> None:
        if self._closed or event.kind not in KINDS:
            return
        if len(self._waiting) >= _MAX_WAITING:
            self._waiting.popleft()
            self._has_lost = True
        self._waiting.append(event)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="writing events")

    async def run(self) -> None:
        """Reads while there are streams, until it is cancelled."""
        while True:
            await asyncio.sleep(self._poll_s)
            if self.feed.streams:
                await self._refresh()

    async def _refresh(self) -> None:
        """Brings the feed up to date, as far as Redis can be asked."""
        with suppress(WarrenError):
            async with self._reading:
                while await self._read_some():
                    pass

    async def close(self) -> None:
        self._closed = True
        if self._writing is not None:
            await self._writing

    async def _read_some(self) -> bool:
        """Reads the next events into the feed. Returns whether there may be more."""
        feed = self.feed
        run, after, texts = await self._link.run(_READ, feed.run, feed.last, _READ_AT_ONCE, _new_run())
        if run.decode() != feed.run:
            feed.begin_again(run.decode(), after)
        elif after > feed.last:
            feed.lose(after)
        number = int(after)
        for at in range(0, len(texts), 4):
            number += 1
            tenant, kind, session_id, text = (each.decode() for each in texts[at : at + 4])
            if kind == _GAP:
                feed.lose(number)
            else:
                feed.add(FeedEntry(number, tenant, kind, session_id, text))
        return len(texts) >= 4 * _READ_AT_ONCE

    async def _write(self) -> None:
        while self._waiting or self._has_lost:
            if not self._closed:
                await asyncio.sleep(_GATHER_S)
            some = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            texts: list[Value] = ["", _GAP, "", ""] if self._has_lost else []
            for event in some:
                texts += [event.tenant, str(event.kind), event.session_id, event_text(event)]
            try:
                await self._link.run(_APPEND, _new_run(), *texts)
            except WarrenError as exc:
                self._log_away(exc)
                if self._closed:
                    return
                self._has_lost = True
                await asyncio.sleep(_RETRY_S)
            else:
                self._has_lost = self._is_away = False

    def _log_away(self, exc: WarrenError) -> None:
        if not self._is_away:
            _log.warning("events_not_shared", action="streams_say_gap", error=exc)
        self._is_away = True


def _new_run() -> str:
    """The name of the counting, should this process be the one that begins it."""
    return secrets.token_hex(8)
