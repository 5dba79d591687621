"""One request to the agent and what comes back.

The link calls `receive` and `link_lost`; everything else is for the one who opened the channel.
The inbox holds at most a window of data: taking data grants the agent as much again, in steps of
half a window. Many tiny outputs are packed together, so the inbox stays small in memory as well,
however the bytes are spread over frames.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from warren.model import errors
from warren.model.errors import ProtocolError, WarrenError
from warren.worker.agent.wire import (
    OUTPUT_WINDOW,
    STDIN_WINDOW,
    Ask,
    Code,
    Fields,
    Say,
    StreamNumber,
    Tag,
    credit,
    credit_frame,
)
from warren.worker.agent.wire import output as parse_output

if TYPE_CHECKING:
    from warren.worker.agent.link import AgentLink

SEND_BYTES = 128 * 1024
MAX_CREDIT = 1 << 32
_SMALL = 1024
_BLOCK = 64 * 1024

_ACCEPTED: dict[Ask, frozenset[int]] = {
    Ask.START: frozenset({Say.STARTED, Say.OUTPUT, Say.EXIT, Say.ERROR, Say.CREDIT}),
    Ask.ATTACH: frozenset({Say.OUTPUT, Say.EXIT, Say.DONE, Say.ERROR, Say.CREDIT}),
    Ask.FILE: frozenset({Say.DATA, Say.DONE, Say.ERROR, Say.CREDIT}),
    Ask.LIST: frozenset({Say.DATA, Say.DONE, Say.ERROR}),
    Ask.CONTROL: frozenset({Say.DONE, Say.ERROR}),
    Ask.PING: frozenset({Say.DONE, Say.ERROR}),
}
_STREAMS = frozenset(int(number) for number in StreamNumber)

ERRORS: dict[int, type[WarrenError]] = {
    Code.NOT_FOUND: errors.FileNotFound,
    Code.PERMISSION_DENIED: errors.PermissionDenied,
    Code.IS_DIRECTORY: errors.IsDirectory,
    Code.NOT_A_DIRECTORY: errors.NotADirectory,
    Code.EXISTS: errors.FileExists,
    Code.INVALID_PATH: errors.InvalidPath,
    Code.NO_SPACE: errors.NoSpace,
    Code.UNKNOWN_USER: errors.UnknownUser,
    Code.NO_PROCESS: errors.ProcessNotFound,
    Code.INVALID: errors.InvalidRequest,
    Code.LIMIT: errors.LimitReached,
    Code.IO: errors.FileProblem,
    Code.CONFLICT: errors.Conflict,
    Code.NO_CWD: errors.InvalidPath,
}


class Output(NamedTuple):
    stream: int
    offset: int
    data: bytes


class Reply(NamedTuple):
    """STARTED, or the last word on a channel: EXIT or DONE."""

    kind: int
    fields: Fields


class Channel:
    """One may take and one may send at a time."""

    __slots__ = (
        "_accepts", "_asked", "_credit", "_discard", "_end", "_inbox", "_link",
        "_owed", "_reader", "_room", "_started", "_writer", "number",
    )  # fmt: skip

    def __init__(self, link: "AgentLink", number: int, kind: Ask, *, discard_output: bool = False) -> None:
        self.number = number
        self._link = link
        self._asked = kind
        self._accepts = _ACCEPTED[kind]
        self._discard = discard_output
        self._inbox: deque[Output | bytes | bytearray | list[Output] | Reply] = deque()
        self._room = OUTPUT_WINDOW
        self._owed = 0
        self._credit = STDIN_WINDOW
        self._started = False
        self._end: Reply | WarrenError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        return self._end is not None

    async def take(self) -> Output | bytes | Reply:
        """What came next. The last word stays: taking again gives it again. An ERROR is raised."""
        while not self._inbox:
            if self._end is not None:
                return self._last_word(self._end)
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        item = self._inbox[0]
        if type(item) is list:
            first = item.pop()
            if not item:
                self._inbox.popleft()
            self._grant(len(first.data))
            return first
        self._inbox.popleft()
        if type(item) is Output:
            self._grant(len(item.data))
        elif type(item) is bytearray:
            return self._unpack(item)
        elif type(item) is bytes:
            self._grant(len(item))
        assert not isinstance(item, bytearray | list)
        return item

    async def last(self) -> Reply:
        """The last word; data before it is dropped."""
        while True:
            item = await self.take()
            if type(item) is Reply and item.kind != Say.STARTED:
                return item

    async def send(self, data: bytes | memoryview) -> bool:
        """Sends DATA as the agent can take it. False: the channel has ended, nobody wants it."""
        view = memoryview(data)
        while view:
            while self._credit == 0 and self._end is None:
                self._writer = asyncio.get_running_loop().create_future()
                await self._writer
            if self._end is not None:
                return False
            part = view[: min(self._credit, SEND_BYTES)]
            self._credit -= len(part)
            self._link.send(Ask.DATA, self.number, part)
            view = view[len(part) :]
            await self._link.drain()
        return self._end is None

    def send_eof(self) -> None:
        if self._end is None:
            self._link.send(Ask.EOF, self.number)

    def close(self) -> None:
        """Lets go. What still arrives is ignored; harmless after the end."""
        if self._end is None:
            self._link.forget(self.number)
            self._link.send(Ask.CLOSE, self.number)
            self._finish(errors.Conflict("the channel was closed here"))
        self._inbox.clear()

    def violated(self, what: str) -> ProtocolError:
        """For what only the reader of a channel can tell: cuts the link, gives the error to raise."""
        self._link.violated(what)
        return ProtocolError(f"the link to the agent was cut: {what}")

    # What the link calls.

    def receive(self, kind: int, payload: memoryview) -> None:
        if kind not in self._accepts:
            raise ProtocolError(f"a frame of type {kind} in answer to {self._asked.name}")
        if kind == Say.OUTPUT:
            self._receive_output(payload)
        elif kind == Say.DATA:
            self._receive_data(payload)
        elif kind == Say.CREDIT:
            self._credit += credit(payload)
            if self._credit > MAX_CREDIT:
                raise ProtocolError("more credit than anybody can use")
        elif kind == Say.STARTED:
            if self._started:
                raise ProtocolError("a command was started twice")
            self._started = True
            self._inbox.append(Reply(kind, Fields(payload)))
        elif kind == Say.ERROR:
            self._finish(error_of(Fields(payload)))
            self._link.forget(self.number)
        else:
            self._finish(Reply(kind, Fields(payload)))
            self._link.forget(self.number)
        self._wake()

    def link_lost(self) -> None:
        self._finish(self._link.loss())

    def _receive_output(self, payload: memoryview) -> None:
        stream, offset, data = parse_output(payload)
        size = len(data)
        self._spend(size)
        if stream not in _STREAMS or offset + size > 1 << 63:
            raise ProtocolError(f"output of stream {stream} at offset {offset}")
        if self._discard or not size:
            return
        last = self._inbox[-1] if self._inbox else None
        if size >= _SMALL or last is None:
            self._inbox.append(Output(stream, offset, data))
        elif type(last) is bytearray and len(last) < _BLOCK:
            last += _packed(payload)
        else:
            self._inbox.append(_packed(payload))

    def _receive_data(self, payload: memoryview) -> None:
        size = len(payload)
        self._spend(size)
        last = self._inbox[-1] if self._inbox else None
        if type(last) is bytes and len(last) + size < _SMALL:
            self._inbox[-1] = last + bytes(payload)
        elif size:
            self._inbox.append(bytes(payload))

    def _spend(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise ProtocolError("more bytes than the window allows")

    def _unpack(self, block: bytearray) -> Output:
        """The first of a block of packed outputs; the others stand ready, last first."""
        outputs: list[Output] = []
        at = 0
        while at < len(block):
            size = int.from_bytes(block[at : at + 2], "little")
            outputs.append(Output(*parse_output(memoryview(block)[at + 2 : at + 2 + size])))
            at += 2 + size
        outputs.reverse()
        first = outputs.pop()
        if outputs:
            self._inbox.appendleft(outputs)
        self._grant(len(first.data))
        return first

    def _grant(self, size: int) -> None:
        self._owed += size
        if self._owed >= OUTPUT_WINDOW // 2 and self._end is None:
            self._room += self._owed
            self._link.post_raw(credit_frame(self.number, self._owed))
            self._owed = 0

    def _finish(self, end: Reply | WarrenError) -> None:
        self._end = end
        self._wake()

    def _last_word(self, end: Reply | WarrenError) -> Reply:
        if isinstance(end, WarrenError):
            raise type(end)(end.message, remedy=end.remedy)
        return end

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


def _packed(payload: memoryview) -> bytearray:
    block = bytearray(len(payload).to_bytes(2, "little"))
    block += payload
    return block


def error_of(reply: Fields) -> WarrenError:
    """The exception an ERROR stands for, its message made safe to print."""
    kind = ERRORS.get(reply.number(Tag.CODE))
    if kind is None:
        raise ProtocolError(f"an error with the unknown code {reply.number(Tag.CODE)}")
    return kind(printable(reply.text(Tag.MESSAGE)) or kind.code)


def printable(text: str, limit: int = 2000) -> str:
    """Untrusted text for messages: bounded, control characters and broken bytes escaped."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut)
