"""The audit log in Redis: one stream for all processes that share it, read newest first.

An entry reaches the stream a fraction of a second after it was recorded, or seconds where very many write. While Redis
is away entries wait in a bounded queue; further ones are counted as lost. If the answer to a batch gets lost the writer
sends it again, and Redis recognises it by its number: it is in the stream once. kill -9 loses what was not yet sent.

Each entry also holds where it ends, in bytes since the stream began: the first and the last tell the size of the
stream, and every batch deletes the oldest entries beyond the bound. And it holds its hash (chain.py): Redis takes a
batch only if it follows the last entry, so all processes together make one chain. Where many write, each writes less
often: a writer whom others forestall again and again pauses longer, for up to PAUSE_MAX_S.
"""

import asyncio
import random
import secrets
import threading
from collections.abc import Sequence
from typing import Final

from warren.governance.audit.chain import BEGINNING, Verification, chain, split_groups
from warren.governance.audit.entries import SEARCH_BYTES, PageBuilder, parse_position
from warren.governance.audit.rotating_files import Appended
from warren.governance.audit.writer import MAX_QUEUE, AuditWriter
from warren.governance.audit.written_log import FLUSH_S, WrittenLog
from warren.interfaces.audit import AuditPage, Query
from warren.kernel.logs import get_log
from warren.model.audit import CommandText
from warren.stores.redis_link import RedisLink
from warren.stores.redis_lua import script

MAX_BYTES: Final = 256 * 1024 * 1024
RETRY_S: Final = 1.0
PAUSE_MAX_S: Final = 2.0
_PAUSE_S: Final = 0.1
_TRIES: Final = 200
_FEW_TRIES: Final = 2  # the first one is in vain whenever another process has written meanwhile
_AT_ONCE: Final = 64 * 1024  # bytes in one batch, and about what one step of reading gives
_ANSWER_MAX_S: Final = 30.0  # far longer than the link waits

_APPEND: Final = script(
    body="""
local EXTRA, ROUNDS, STEP, KNOWN_MS = 32, 20, 50, 86400000
local writer, batch, most = key('audited', ARGV[3]), ARGV[4], tonumber(ARGV[5])
local name, follows = key('audit'), ARGV[6]
if call('GET', writer) == batch then return 1 end

local function start_of(entry) return tonumber(entry[2][4]) - #entry[2][2] - EXTRA end

local last = call('XREVRANGE', name, '+', '-', 'COUNT', 1)[1]
local ends = last and tonumber(last[2][4]) or 0
local head = last and last[2][6] or ''
if head ~= follows then return {head} end
for at = 7, #ARGV do
  ends = ends + #ARGV[at] + EXTRA
  local hash = string.sub(ARGV[at], -67, -4)
  call('XADD', name, '*', 'deed', ARGV[at], 'end', string.format('%.0f', ends), 'hash', hash)
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

_FORWARD: Final = script(
    body="""
local found, after = {}, ARGV[3] == '' and '-' or '(' .. ARGV[3]
for _, entry in ipairs(call('XRANGE', key('audit'), after, '+', 'COUNT', 200)) do
  found[#found + 1] = entry[1]
  found[#found + 1] = entry[2][2]
end
return found
"""
)

_log = get_log("warren.audit")


async def verify_stream(link: RedisLink, head: str = "") -> Verification:
    """Follows the chain of hashes through the stream, the oldest first. `head`: a hash that must be part of it."""
    verification, place = Verification(), ""
    verification.look_for(head)
    while found := await link.run(_FORWARD, place):
        for name, line in zip(found[::2], found[1::2], strict=True):
            place = name.decode()
            verification.take(line.rstrip(b"\n"), f"entry {place}")
    verification.end()
    return verification


class RedisAudit(WrittenLog):
    """Use `open`. `close` leaves the link open. `max_bytes` bounds the whole stream, whoever writes to it; what Redis
    itself needs for an entry counts as a few bytes."""

    @classmethod
    async def open(
        cls,
        link: RedisLink,
        *,
        commands: CommandText = CommandText.REDACTED,
        max_bytes: int = MAX_BYTES,
        queue_most: int = MAX_QUEUE,
    ) -> "RedisAudit":
        stream = _StreamLines(link, asyncio.get_running_loop(), max_bytes)
        return cls(link, stream, AuditWriter(stream, commands, queue_most))

    def __init__(self, link: RedisLink, stream: "_StreamLines", writer: AuditWriter) -> None:
        super().__init__(link.address, writer, hurry=stream.give_up)
        self._link = link
        self._stream = stream

    async def _find(self, query: Query) -> AuditPage:
        if query.after and parse_position(query.after) == (0, 0):
            return AuditPage([])  # there is nothing before the beginning
        if not self._stream.trouble:
            await asyncio.get_running_loop().run_in_executor(self._queries, self._writer.flush, FLUSH_S)
        return await self._page(query)

    async def _page(self, query: Query) -> AuditPage:
        page, place = PageBuilder(query, SEARCH_BYTES), query.after
        while found := await self._link.run(_READ, place, _AT_ONCE):
            for name, line in zip(found[::2], found[1::2], strict=True):
                place = name.decode()
                if page.take(line):
                    return AuditPage(page.found, place)
        return AuditPage(page.found)


class _StreamLines:
    """Appends lines to the stream, in the thread of the writer. It sends a batch again until Redis takes it, or until
    `give_up`. While Redis takes none, `trouble` says why."""

    def __init__(self, link: RedisLink, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self.trouble = ""
        self._link = link
        self._loop = loop
        self._max_bytes = max_bytes
        self._name = secrets.token_hex(8)
        self._batch = 0
        self._head = ""  # the hash of the last entry in the stream, as far as is known here; empty: it has none
        self._pause_s = 0.0
        self._given_up = threading.Event()

    def append(self, lines: Sequence[bytes]) -> Appended:
        count = 0
        for group in split_groups(lines, _AT_ONCE):
            self._batch += 1
            if not self._append_surely(group):
                return Appended(count, self.trouble)
            count += len(group)
        return Appended(count)

    def close(self) -> None:
        """The link is not ours to close."""

    def give_up(self) -> None:
        self._given_up.set()

    def _append_surely(self, group: Sequence[bytes]) -> bool:
        while not (self.trouble and self._given_up.is_set()):
            trouble = self._try_to_append(group)
            self._log_change(trouble)
            if not trouble:
                return True
            self._given_up.wait(RETRY_S)
        return False

    def _try_to_append(self, group: Sequence[bytes]) -> str:
        """Sends a batch, again and again while other processes are first. Returns why that failed; empty if Redis has
        taken it. Then it lets others have their turn, the longer the more of them there are."""
        for tries in range(_TRIES):
            trouble = self._send(group)
            if trouble is not None:
                if tries < _FEW_TRIES:
                    self._pause_s = self._pause_s / 2 if self._pause_s > _PAUSE_S else 0.0
                else:
                    self._pause_s = min(PAUSE_MAX_S, 2 * self._pause_s + _PAUSE_S)
                self._given_up.wait(random.uniform(0.5, 1) * self._pause_s)
                return trouble
        return "others keep adding entries"

    def _send(self, group: Sequence[bytes]) -> str | None:
        """Returns None if another process was first; else why it failed, or an empty text."""
        linked, head = chain(group, self._head or BEGINNING)
        work = self._link.run(_APPEND, self._name, self._batch, self._max_bytes, self._head, *linked)
        try:
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as exc:  # the loop is closed
            work.close()
            return str(exc)
        try:
            other = answer.result(_ANSWER_MAX_S)
        except Exception as exc:  # the entries depend on this thread: it must survive
            answer.cancel()
            return str(exc) or type(exc).__name__
        if isinstance(other, list):
            self._head = other[0].decode()
            return None
        self._head = head
        return ""

    def _log_change(self, trouble: str) -> None:
        if trouble and not self.trouble:
            _log.warning("audit_not_written", action="retry", error=trouble)
        elif self.trouble and not trouble:
            _log.warning("audit_written_again")
        self.trouble = trouble
