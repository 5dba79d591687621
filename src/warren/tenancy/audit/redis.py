"""The audit record in Redis: one stream for the deeds of all who share it, found again newest first.

The newest is what came to Redis last, a fraction of a second after it was recorded. While Redis is away deeds wait, up
to the bound of the queue; those that come then are counted as lost. A batch whose answer got lost is brought again,
and Redis knows it by its number: it is in the stream once. kill -9 loses what had not yet been brought.

Each entry also says where it ends, in bytes since the stream began: from the first and the last follows how much there
is, and with every batch the oldest go that are too much.
"""

import asyncio
import logging
import secrets
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from warren.interfaces.audit import AuditPage, Query
from warren.model.audit import CommandText, Deed
from warren.model.errors import Unavailable
from warren.shielding import run_shielded
from warren.stores.redis_link import RedisLink
from warren.stores.redis_lua import script
from warren.tenancy.audit.journal import Appended, groups
from warren.tenancy.audit.reading import LOOK_THROUGH_BYTES, Gathering, read_place
from warren.tenancy.audit.writer import QUEUE_MOST, AuditWriter

MAX_BYTES: Final = 256 * 1024 * 1024
RETRY_S: Final = 1.0
_AT_ONCE: Final = 64 * 1024  # bytes in one batch, and about what one step of reading gives
_ANSWER_MOST_S: Final = 30.0  # far more than the link allows itself
_FLUSH_MOST_S: Final = 5.0
_CLOSE_MOST_S: Final = 5.0

_APPEND: Final = script(
    body="""
local EXTRA, ROUNDS, STEP, KNOWN_MS = 32, 20, 50, 86400000
local writer, batch, most = key('audited', ARGV[3]), ARGV[4], tonumber(ARGV[5])
local name = key('audit')
if call('GET', writer) == batch then return 1 end

local function start_of(entry) return tonumber(entry[2][4]) - #entry[2][2] - EXTRA end

local last = call('XREVRANGE', name, '+', '-', 'COUNT', 1)[1]
local ends = last and tonumber(last[2][4]) or 0
for at = 6, #ARGV do
  ends = ends + #ARGV[at] + EXTRA
  call('XADD', name, '*', 'deed', ARGV[at], 'end', string.format('%.0f', ends))
end
call('SET', writer, batch, 'PX', KNOWN_MS)

for _ = 1, ROUNDS do
  local first = call('XRANGE', name, '-', '+', 'COUNT', 1)[1]
  if not first or ends - start_of(first) <= most then break end
  local gone = {}
  for _, entry in ipairs(call('XRANGE', name, '-', '+', 'COUNT', STEP)) do
    if ends - start_of(entry) > most then gone[#gone + 1] = entry[1] end
  end
  call('XDEL', name, unpack(gone))
end
return 1
"""
)

_READ: Final = script(
    body="""
local STEP = 20
local before, most = ARGV[3] == '' and '+' or '(' .. ARGV[3], tonumber(ARGV[4])
local found, size, some = {}, 0, nil
repeat
  some = call('XREVRANGE', key('audit'), before, '-', 'COUNT', STEP)
  for _, entry in ipairs(some) do
    found[#found + 1] = entry[1]
    found[#found + 1] = entry[2][2]
    size = size + #entry[2][2]
    before = '(' .. entry[1]
  end
until #some < STEP or size >= most
return found
"""
)

_log = logging.getLogger("warren.audit")


class RedisAudit:
    """Use `open`. The link stays open when this is closed. `max_bytes` is what the whole stream may take, of all who
    write to it; what Redis itself needs for an entry is counted as a few bytes."""

    @classmethod
    async def open(
        cls,
        link: RedisLink,
        *,
        commands: CommandText = CommandText.REDACTED,
        max_bytes: int = MAX_BYTES,
        queue_most: int = QUEUE_MOST,
    ) -> "RedisAudit":
        stream = _Stream(link, asyncio.get_running_loop(), max_bytes)
        return cls(link, stream, AuditWriter(stream, commands, queue_most))

    def __init__(self, link: RedisLink, stream: "_Stream", writer: AuditWriter) -> None:
        self._link = link
        self._stream = stream
        self._writer = writer
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="warren-audit-wait")
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._writer.waiting} waiting"
        return f"<RedisAudit {self._link.address}: {state}, {self._writer.dropped} dropped>"

    @property
    def dropped(self) -> int:
        """How many deeds were lost since it was opened."""
        return self._writer.dropped

    def record(self, deed: Deed, secrets: Iterable[str] = ()) -> None:
        self._writer.give(deed, secrets)

    async def find(self, query: Query) -> AuditPage:
        if self._closed:
            raise Unavailable("the audit record is closed")
        if query.after and read_place(query.after) == (0, 0):
            return AuditPage([])  # nothing stands before the beginning
        if not self._stream.trouble:
            await asyncio.get_running_loop().run_in_executor(self._waiter, self._writer.flush, _FLUSH_MOST_S)
        return await self._page(query)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not await run_shielded(asyncio.to_thread(self._writer.close, _CLOSE_MOST_S)):
            self._stream.give_up()
            await run_shielded(asyncio.to_thread(self._writer.close, _CLOSE_MOST_S))
        self._waiter.shutdown(wait=False)

    async def _page(self, query: Query) -> AuditPage:
        page, place = Gathering(query, LOOK_THROUGH_BYTES), query.after
        while found := await self._link.run(_READ, place, _AT_ONCE):
            for name, line in zip(found[::2], found[1::2], strict=True):
                place = name.decode()
                if page.take(line):
                    return AuditPage(page.found, place)
        return AuditPage(page.found)


class _Stream:
    """The stream, for the thread that writes: what Redis does not take is tried again until it does, or until
    `give_up`. `trouble` says why it does not, as long as that is so."""

    def __init__(self, link: RedisLink, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self.trouble = ""
        self._link = link
        self._loop = loop
        self._max_bytes = max_bytes
        self._name = secrets.token_hex(8)
        self._batch = 0
        self._given_up = threading.Event()

    def append(self, lines: Sequence[bytes]) -> Appended:
        count = 0
        for group in groups(lines, _AT_ONCE):
            self._batch += 1
            if not self._brought(group):
                return Appended(count, self.trouble)
            count += len(group)
        return Appended(count)

    def close(self) -> None:
        """There is nothing of its own to close."""

    def give_up(self) -> None:
        self._given_up.set()

    def _brought(self, group: Sequence[bytes]) -> bool:
        while not (self.trouble and self._given_up.is_set()):
            trouble = self._tried(group)
            self._tell(trouble)
            if not trouble:
                return True
            self._given_up.wait(RETRY_S)
        return False

    def _tried(self, group: Sequence[bytes]) -> str:
        """Why it did not work; empty if it did."""
        work = self._link.run(_APPEND, self._name, self._batch, self._max_bytes, *group)
        try:
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as exc:  # the loop was closed without us
            work.close()
            return str(exc)
        try:
            answer.result(_ANSWER_MOST_S)
        except Exception as exc:  # whatever it is, the deeds wait for this thread
            answer.cancel()
            return str(exc) or type(exc).__name__
        return ""

    def _tell(self, trouble: str) -> None:
        if trouble and not self.trouble:
            _log.warning("the audit record cannot be written, deeds wait for this to be over: %s", trouble)
        elif self.trouble and not trouble:
            _log.warning("the audit record is written again")
        self.trouble = trouble
