"""One request to the agent of a sandbox, and what comes back.

The inbox of a channel holds at most one window of data: taking data grants the agent as much again, in steps of half a
window. Many tiny outputs are packed together, so that the inbox also stays small in memory, however the agent spreads
the bytes over frames. So the agent can send only as much as somebody takes.
"""

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from warren.model import errors
from warren.model.errors import ProtocolError, WarrenError
from warren.sandboxes.agent.agent_errors import parse_error
from warren.sandboxes.agent.wire import (
    OUTPUT_WINDOW,
    STDIN_WINDOW,
    StreamNumber,
    WireFields,
    WireRequest,
    WireResponse,
    credit,
    credit_frame,
    frame,
)
from warren.sandboxes.agent.wire import output as parse_output

SEND_BYTES = 128 * 1024
STRAYS = 1024  # bytes of an answer that nobody awaits
_SMALL = 1024
_BLOCK = 64 * 1024
_GRANT_BYTES = OUTPUT_WINDOW // 2

_ACCEPTED: dict[WireRequest, frozenset[int]] = {
    WireRequest.START: frozenset(
        {WireResponse.STARTED, WireResponse.OUTPUT, WireResponse.EXIT, WireResponse.ERROR, WireResponse.CREDIT}
    ),
    WireRequest.ATTACH: frozenset(
        {WireResponse.OUTPUT, WireResponse.EXIT, WireResponse.DONE, WireResponse.ERROR, WireResponse.CREDIT}
    ),
    WireRequest.FILE: frozenset({WireResponse.DATA, WireResponse.DONE, WireResponse.ERROR, WireResponse.CREDIT}),
    WireRequest.LIST: frozenset({WireResponse.DATA, WireResponse.DONE, WireResponse.ERROR}),
    WireRequest.CONTROL: frozenset({WireResponse.DONE, WireResponse.ERROR}),
    WireRequest.PING: frozenset({WireResponse.DONE, WireResponse.ERROR}),
}
_STREAMS = frozenset(int(number) for number in StreamNumber)
_IS_OUTPUT = int(WireResponse.OUTPUT)


class Output(NamedTuple):
    stream: int
    offset: int
    data: bytes


class AgentReply(NamedTuple):
    """STARTED, or what ends a channel: EXIT or DONE."""

    kind: int
    fields: WireFields


class ChannelLink(Protocol):
    """What a channel needs of its link. `forget` is told how many bytes the agent may have sent before it hears that
    the channel is closed. `cut_off` ends the link because the agent broke the protocol."""

    def write_frame(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def forget(self, number: int, may_follow: int = 0) -> None: ...
    def cut_off(self, what: str) -> None: ...
    def loss(self) -> WarrenError: ...


class AgentChannel:
    """One request to the agent and what comes back. One task may take and one may send at a time."""

    __slots__ = (
        "_accepts", "_credit", "_discard", "_end", "_inbox", "_link",
        "_owed", "_reader", "_request", "_room", "_started", "_writer", "number",
    )  # fmt: skip

    def __init__(self, link: ChannelLink, number: int, kind: WireRequest, *, discard_output: bool = False) -> None:
        self.number = number
        self._link = link
        self._request = kind
        self._accepts = _ACCEPTED[kind]
        self._discard = discard_output
        self._inbox: deque[Output | bytes | bytearray | list[Output] | AgentReply] = deque()
        self._room = OUTPUT_WINDOW
        self._owed = 0
        self._credit = STDIN_WINDOW
        self._started = False
        self._end: AgentReply | WarrenError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        return self._end is not None

    async def take(self) -> Output | bytes | AgentReply:
        """Returns what came next, or raises the agent's ERROR. After the end, every call gives the end again."""
        while not self._inbox:
            if self._end is not None:
                return self._reply_or_raise(self._end)
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        item = self._inbox.popleft()
        if type(item) is Output:
            self._grant(len(item.data))
        elif type(item) is bytes:
            self._grant(len(item))
        elif type(item) is bytearray:
            return self._take_first(_unpack_outputs(item))
        elif type(item) is list:
            return self._take_first(item)
        assert not isinstance(item, bytearray | list)
        return item

    async def last(self) -> AgentReply:
        """Waits for the end of the channel and drops the data before it."""
        while True:
            item = await self.take()
            if type(item) is AgentReply and item.kind != WireResponse.STARTED:
                return item

    async def send(self, data: bytes | memoryview) -> bool:
        """Sends DATA as fast as the agent takes it. Returns False if the channel has ended."""
        view = memoryview(data)
        while view:
            while self._credit == 0 and self._end is None:
                self._writer = asyncio.get_running_loop().create_future()
                await self._writer
            if self._end is not None:
                return False
            part = view[: min(self._credit, SEND_BYTES)]
            self._credit -= len(part)
            self._link.write_frame(frame(WireRequest.DATA, self.number, part))
            view = view[len(part) :]
            await self._link.drain()
        return self._end is None

    def send_eof(self) -> None:
        if self._end is None:
            self._link.write_frame(frame(WireRequest.EOF, self.number))

    def close(self) -> None:
        """Closes the channel; what still arrives is ignored. Closing an ended channel does nothing."""
        if self._end is None:
            self.give_up(errors.Conflict("the channel was closed here"))
        self._inbox.clear()

    def give_up(self, error: WarrenError) -> None:
        """Closes the channel; whoever takes from it gets the error."""
        if self._end is None:
            # The agent may use up its window, and answer, before it hears of this: only more than that breaks the
            # protocol.
            self._link.forget(self.number, may_follow=self._room + STDIN_WINDOW + STRAYS)
            self._link.write_frame(frame(WireRequest.CLOSE, self.number))
            self._finish(error)

    def violation(self, what: str) -> ProtocolError:
        """Cuts off the link for what only the reader of the channel can see, and returns the error to raise."""
        self._link.cut_off(what)
        return ProtocolError(f"the link to the agent was cut: {what}")

    # Called by the link.

    def receive(self, kind: int, payload: memoryview) -> None:
        if kind not in self._accepts:
            raise ProtocolError(f"a frame of type {kind} in answer to {self._request.name}")
        if kind == _IS_OUTPUT:
            self._receive_output(payload)
            self._wake_reader()
            return
        if kind == WireResponse.DATA:
            self._receive_data(payload)
        elif kind == WireResponse.CREDIT:
            granted = credit(payload)
            self._credit += granted
            if not granted or self._credit > STDIN_WINDOW:
                raise ProtocolError("credit for nothing, or for more than was sent")
        elif kind == WireResponse.STARTED:
            if self._started:
                raise ProtocolError("a command was started twice")
            self._started = True
            self._inbox.append(AgentReply(kind, WireFields(payload)))
        elif kind == WireResponse.ERROR:
            self._finish(parse_error(WireFields(payload)))
            self._link.forget(self.number)
        else:
            self._finish(AgentReply(kind, WireFields(payload)))
            self._link.forget(self.number)
        self._wake()

    def link_lost(self) -> None:
        self._finish(self._link.loss())

    def _receive_output(self, payload: memoryview) -> None:
        stream, offset, data = parsed = parse_output(payload)
        size = len(data)
        self._use_window(size)
        if stream not in _STREAMS or offset + size > 1 << 63:
            raise ProtocolError(f"output of stream {stream} at offset {offset}")
        if self._discard:
            return
        last = self._inbox[-1] if self._inbox else None
        if size >= _SMALL or last is None:
            self._inbox.append(Output._make(parsed))
        elif type(last) is bytearray and len(last) < _BLOCK:
            last += _pack_output(payload)
        else:
            self._inbox.append(_pack_output(payload))

    def _receive_data(self, payload: memoryview) -> None:
        size = len(payload)
        self._use_window(size)
        last = self._inbox[-1] if self._inbox else None
        if type(last) is bytes and len(last) + size < _SMALL:
            self._inbox[-1] = last + bytes(payload)
        else:
            self._inbox.append(bytes(payload))

    def _use_window(self, size: int) -> None:
        self._room -= size
        if self._room < 0 or not size:
            raise ProtocolError("more bytes than the window allows, or none")

    def _take_first(self, outputs: list[Output]) -> Output:
        """Returns the first of some outputs, which come last first, and puts the others back."""
        first = outputs.pop()
        if outputs:
            self._inbox.appendleft(outputs)
        self._grant(len(first.data))
        return first

    def _grant(self, size: int) -> None:
        self._owed += size
        if self._owed >= _GRANT_BYTES and self._end is None:
            self._room += self._owed
            self._link.write_frame(credit_frame(self.number, self._owed))
            self._owed = 0

    def _finish(self, end: AgentReply | WarrenError) -> None:
        self._end = end
        self._wake()

    def _reply_or_raise(self, end: AgentReply | WarrenError) -> AgentReply:
        if isinstance(end, WarrenError):
            raise type(end)(end.message, remedy=end.remedy)
        return end

    def _wake_reader(self) -> None:
        reader = self._reader
        if reader is not None:
            self._reader = None
            if not reader.done():
                reader.set_result(None)

    def _wake(self) -> None:
        self._wake_reader()
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


def _unpack_outputs(block: bytearray) -> list[Output]:
    """Returns the outputs of a block, last first."""
    outputs: list[Output] = []
    at = 0
    while at < len(block):
        size = int.from_bytes(block[at : at + 2], "little")
        outputs.append(Output._make(parse_output(memoryview(block)[at + 2 : at + 2 + size])))
        at += 2 + size
    outputs.reverse()
    return outputs


def _pack_output(payload: memoryview) -> bytearray:
    block = bytearray(len(payload).to_bytes(2, "little"))
    block += payload
    return block
