"""One connection to the agent of one sandbox, and the requests that share it.

`AgentLink` is the protocol object that the event loop calls: it splits what arrives into frames, checks them and
puts them into the inboxes of its channels. It never waits and never raises into the loop. A `Channel` is one
request and what comes back; the rest of the worker opens one with `AgentLink.open`.

The worker trusts nothing that the agent sends. A frame of an unknown type, for a channel that was never opened, too
long, beyond the window or malformed ends the link with ProtocolError. Losing the connection ends it with
SandboxLost. Either way every open channel and every later call raises that error at once; what had arrived before
can still be taken.

Receiving uses one scratch buffer per thread, so an idle link owns no buffer: the loop fills the scratch buffer and
the link parses it at once. Only a frame that is cut off at the end of the buffer is copied into a buffer of the
link's own, and the rest of that frame is received directly into it.

The inbox of a channel holds at most one window of data: taking data grants the agent as much again, in steps of
half a window. Many tiny outputs are packed together, so that the inbox also stays small in memory, however the
agent spreads the bytes over frames.

So the agent can send only as much as somebody takes. What it sends on a channel that was closed here is what was on its
way, at most the rest of the window; more than that, and frames that carry nothing, would keep the worker busy although
nobody asked for anything, and end the link.
"""

import asyncio
import os
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

from warren.model import errors
from warren.model.errors import InvalidRequest, ProtocolError, SandboxLost, WarrenError
from warren.sandboxes.agent.wire import (
    HEADER,
    MAX_FRAME_IN,
    MAX_FRAME_OUT,
    OUTPUT_WINDOW,
    STDIN_WINDOW,
    VERSION,
    Code,
    Fields,
    FileOp,
    Request,
    Response,
    StreamNumber,
    Tag,
    credit,
    credit_frame,
    fields,
    frame,
)
from warren.sandboxes.agent.wire import output as parse_output

SCRATCH_BYTES = 256 * 1024
_FRAMES_AT_ONCE = 1000
SOCKET_NAME = "agent.sock"

_MAX_CHANNEL = (1 << 32) - 1
_HEADER_SIZE = HEADER.size
_RESPONSE_TYPES = {int(kind): kind for kind in Response}
_FLUSH_S = 1.0
_REDIAL_S = (0.0005, 0.005)
_local = threading.local()
SEND_BYTES = 128 * 1024
_STRAYS = 1024  # bytes of an answer that nobody awaits
_STRAY_HEAD = 9  # of OUTPUT, which does not count
_SMALL = 1024
_BLOCK = 64 * 1024

_GRANT_BYTES = OUTPUT_WINDOW // 2

_ACCEPTED: dict[Request, frozenset[int]] = {
    Request.START: frozenset({Response.STARTED, Response.OUTPUT, Response.EXIT, Response.ERROR, Response.CREDIT}),
    Request.ATTACH: frozenset({Response.OUTPUT, Response.EXIT, Response.DONE, Response.ERROR, Response.CREDIT}),
    Request.FILE: frozenset({Response.DATA, Response.DONE, Response.ERROR, Response.CREDIT}),
    Request.LIST: frozenset({Response.DATA, Response.DONE, Response.ERROR}),
    Request.CONTROL: frozenset({Response.DONE, Response.ERROR}),
    Request.PING: frozenset({Response.DONE, Response.ERROR}),
}
_STREAMS = frozenset(int(number) for number in StreamNumber)
_IS_OUTPUT = int(Response.OUTPUT)

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
    """STARTED, or what ends a channel: EXIT or DONE."""

    kind: int
    fields: Fields


class Channel:
    """One request to the agent and what comes back. One task may take and one may send at a time."""

    __slots__ = (
        "_accepts", "_credit", "_discard", "_end", "_inbox", "_link",
        "_owed", "_reader", "_request", "_room", "_started", "_writer", "number",
    )  # fmt: skip

    def __init__(self, link: "AgentLink", number: int, kind: Request, *, discard_output: bool = False) -> None:
        self.number = number
        self._link = link
        self._request = kind
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

    async def last(self) -> Reply:
        """Waits for the end of the channel and drops the data before it."""
        while True:
            item = await self.take()
            if type(item) is Reply and item.kind != Response.STARTED:
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
            self._link.send(Request.DATA, self.number, part)
            view = view[len(part) :]
            await self._link.drain()
        return self._end is None

    def send_eof(self) -> None:
        if self._end is None:
            self._link.send(Request.EOF, self.number)

    def close(self) -> None:
        """Closes the channel; what still arrives is ignored. Closing an ended channel does nothing."""
        if self._end is None:
            self.give_up(errors.Conflict("the channel was closed here"))
        self._inbox.clear()

    def give_up(self, error: WarrenError) -> None:
        """Closes the channel; whoever takes from it gets the error."""
        if self._end is None:
            self._link.forget(self.number, may_follow=self._room + STDIN_WINDOW + _STRAYS)
            self._link.send(Request.CLOSE, self.number)
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
        if kind == Response.DATA:
            self._receive_data(payload)
        elif kind == Response.CREDIT:
            granted = credit(payload)
            self._credit += granted
            if not granted or self._credit > STDIN_WINDOW:
                raise ProtocolError("credit for nothing, or for more than was sent")
        elif kind == Response.STARTED:
            if self._started:
                raise ProtocolError("a command was started twice")
            self._started = True
            self._inbox.append(Reply(kind, Fields(payload)))
        elif kind == Response.ERROR:
            self._finish(parse_error(Fields(payload)))
            self._link.forget(self.number)
        else:
            self._finish(Reply(kind, Fields(payload)))
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

    def _finish(self, end: Reply | WarrenError) -> None:
        self._end = end
        self._wake()

    def _reply_or_raise(self, end: Reply | WarrenError) -> Reply:
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
    """The outputs of a block, last first."""
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


def parse_error(reply: Fields) -> WarrenError:
    """The exception that an ERROR stands for, with its message made safe to print."""
    kind = ERRORS.get(reply.number(Tag.CODE))
    if kind is None:
        raise ProtocolError(f"an error with the unknown code {reply.number(Tag.CODE)}")
    message = printable(reply.text(Tag.MESSAGE)) or kind.code
    if kind is errors.UnknownUser and message.startswith("there is no user root "):
        return kind(message, remedy="root needs an environment with `sudo: true` in its file, on the provider oci")
    return kind(message)


def printable(text: str, limit: int = 2000) -> str:
    """Untrusted text for messages: bounded, control characters and broken bytes escaped."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut)


def _scratch() -> memoryview:
    try:
        view: memoryview = _local.scratch
    except AttributeError:
        view = _local.scratch = memoryview(bytearray(SCRATCH_BYTES))
    return view


class AgentLink(asyncio.BufferedProtocol):
    """Made by `dial`. `why_lost` is called when the connection is lost and explains what became of the sandbox.

    `last_file_op` is the last file operation that the agent knows; an agent of an older release knows fewer.
    """

    def __init__(self) -> None:
        self.why_lost: Callable[[], str] = lambda: "the connection to its agent is gone"
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._channels: dict[int, Channel] = {}
        self._next = 1
        self._highest = 0
        self._strays_left = 64 * _STRAYS
        self._scratch = _scratch()
        self._part = memoryview(b"")
        self._part_filled = 0
        self._put_off = memoryview(b"")
        self._hello: asyncio.Future[Fields] = self._loop.create_future()
        self.last_file_op = int(FileOp.WATCH)
        self._violation = ""
        self._ended = False
        self._closed = False
        self._when_lost: list[Callable[[str], None]] = []
        self._paused = False
        self._drained: list[asyncio.Future[None]] = []
        self.lost = asyncio.Event()

    def __repr__(self) -> str:
        state = f"broken: {self._violation}" if self._violation else "lost" if self._ended else "open"
        return f"<AgentLink {state}, {len(self._channels)} channels>"

    @classmethod
    async def dial(cls, directory: Path, *, timeout_s: float) -> "AgentLink":
        """Connects to the agent that listens in `directory` and greets it.

        Waits for an agent that does not listen yet. Raises SandboxLost if no agent answers in time, and
        ProtocolError if the agent speaks another version.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await cls.greet(await _connect(directory))
        except TimeoutError:
            raise SandboxLost(f"the agent did not answer within {timeout_s:g} s") from None

    @classmethod
    async def greet(cls, sock: socket.socket) -> "AgentLink":
        """Greets the agent at the other end of a connected socket, which the link owns. Raises as `dial` does."""
        link = await cls.over(sock)
        try:
            link.write_frame(frame(Request.HELLO, 0, fields([(Tag.VERSION, VERSION)])))
            link._check_hello(await link._hello)
        except BaseException:
            link.abort()
            raise
        return link

    @classmethod
    async def over(cls, sock: socket.socket) -> "AgentLink":
        """A link over a connected socket, before the greeting. The link owns the socket."""
        try:
            _, link = await asyncio.get_running_loop().create_connection(cls, sock=sock)
        except BaseException:
            sock.close()
            raise
        return link

    def _check_hello(self, hello: Fields) -> None:
        version = hello.number(Tag.VERSION)
        self.last_file_op = hello.number(Tag.OP, self.last_file_op)
        if version != VERSION:
            raise ProtocolError(
                f"the agent speaks version {version} of the protocol, this worker version {VERSION}",
                remedy="the sandbox was made by another release of Warren: destroy it and create a new one",
            )

    @property
    def is_open(self) -> bool:
        return not self._ended

    async def open(self, kind: Request, payload: bytes = b"", *, discard_output: bool = False) -> Channel:
        """Sends a request. The caller owns the channel and takes from it to the end, or closes it."""
        if len(payload) > MAX_FRAME_OUT:
            raise InvalidRequest(
                f"the request is {len(payload)} bytes long, at most {MAX_FRAME_OUT} fit",
                remedy="use fewer or smaller environment variables and arguments",
            )
        if self._paused:
            await self.drain()
        self.check()
        number = self._new_number()
        channel = Channel(self, number, kind, discard_output=discard_output)
        self._channels[number] = channel
        self.write_frame(frame(kind, number, payload))
        return channel

    def post(self, kind: Request, payload: bytes) -> None:
        """Sends a request and ignores the response; on an ended link it does nothing."""
        self._strays_left += _STRAYS
        self.write_frame(frame(kind, self._new_number(), payload))

    def check(self) -> None:
        if self._ended:
            raise self.loss()

    def loss(self) -> WarrenError:
        """Why the link has ended, as a new exception for each caller."""
        if self._violation:
            return ProtocolError(f"the link to the agent was cut: {self._violation}")
        return SandboxLost(f"the sandbox is lost: {self._call_why_lost()}")

    def _call_why_lost(self) -> str:
        try:
            return self.why_lost()
        except Exception as exc:
            return f"the connection to its agent is gone ({exc})"

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Calls back once, with the reason, when the link ends (at once if it has ended); never after `close`."""
        if not self._ended:
            self._when_lost.append(call)
        elif not self._closed:
            call(self._loss_reason())

    def _loss_reason(self) -> str:
        return f"the link to its agent was cut: {self._violation}" if self._violation else self._call_why_lost()

    async def drain(self) -> None:
        """Waits until the transport accepts more data."""
        while self._paused and not self._ended:
            waiter = self._loop.create_future()
            self._drained.append(waiter)
            await waiter
        self.check()

    async def close(self) -> None:
        """Closes the connection; the sandbox and its commands continue."""
        self._closed = True
        if not self._ended:
            self.why_lost = lambda: "this link to it was closed"
        if self._transport is not None:
            self._transport.close()
        self._end()
        try:
            await asyncio.wait_for(self.lost.wait(), _FLUSH_S)
        except TimeoutError:
            self.abort()
            await self.lost.wait()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def cut_off(self, what: str) -> None:
        """Ends the link because the agent broke the protocol."""
        if not self._ended:
            self._violation = what
            self.abort()

    def forget(self, number: int, may_follow: int = 0) -> None:
        """`may_follow`: bytes that the agent may have sent before it hears that the channel is closed."""
        self._channels.pop(number, None)
        self._strays_left += may_follow

    def send(self, kind: Request, number: int, payload: bytes | memoryview = b"") -> None:
        self.write_frame(b"".join((HEADER.pack(len(payload), number, kind), payload)))

    def write_frame(self, data: bytes) -> None:
        if not self._ended and self._transport is not None:
            self._transport.write(data)

    def _new_number(self) -> int:
        number = self._next
        while number in self._channels:
            number = number % _MAX_CHANNEL + 1
        self._next = number % _MAX_CHANNEL + 1
        self._highest = max(self._highest, number)
        return number

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._part = memoryview(b"")
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.link_lost()
        if not self._hello.done():
            self._hello.set_exception(self.loss())
            self._hello.exception()  # marks it as retrieved: perhaps no task waits for it
        self._wake_writers()
        self._report_loss()

    def _report_loss(self) -> None:
        calls, self._when_lost = self._when_lost, []
        if calls and not self._closed:
            why = self._loss_reason()
            for call in calls:
                call(why)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=512 * 1024, low=128 * 1024)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self.lost.set()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake_writers()

    def _wake_writers(self) -> None:
        waiters, self._drained = self._drained, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._part[self._part_filled :] if self._part else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        if not self._part:
            self._parse(self._scratch[:nbytes])
            return
        self._part_filled += nbytes
        if self._part_filled == len(self._part):
            part, self._part = self._part, memoryview(b"")
            self._parse(part)

    def _parse(self, data: memoryview) -> None:
        try:
            self._split_frames(data)
        except ProtocolError as exc:
            self.cut_off(exc.message)
        except Exception as exc:
            self.cut_off(f"a frame could not be handled ({type(exc).__name__}: {exc})")

    def _split_frames(self, data: memoryview) -> None:
        at, end, frames = 0, len(data), 0
        while end - at >= _HEADER_SIZE:
            if frames == _FRAMES_AT_ONCE:
                self._continue_later(data[at:])
                return
            frames += 1
            length, number, kind = HEADER.unpack_from(data, at)
            if length > MAX_FRAME_IN:
                raise ProtocolError(f"a frame of {length} bytes, at most {MAX_FRAME_IN} are allowed")
            if kind not in _RESPONSE_TYPES:
                raise ProtocolError(f"a frame of unknown type {kind}")
            after = at + _HEADER_SIZE + length
            if after > end:
                self._keep_part(data[at:], _HEADER_SIZE + length)
                return
            self._dispatch(number, kind, data[at + _HEADER_SIZE : after])
            if self._ended:
                return
            at = after
        if at < end:
            self._keep_part(data[at:], _HEADER_SIZE)

    def _continue_later(self, data: memoryview) -> None:
        """Puts frames off until others had their turn: thousands of tiny ones fit into the buffer."""
        assert self._transport is not None
        self._put_off = memoryview(bytes(data))
        self._transport.pause_reading()
        self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        data, self._put_off = self._put_off, memoryview(b"")
        if self._ended:
            return
        self._parse(data)
        if not self._put_off and not self._ended and self._transport is not None:
            self._transport.resume_reading()

    def _keep_part(self, data: memoryview, size: int) -> None:
        part = memoryview(bytearray(size))
        part[: len(data)] = data
        self._part, self._part_filled = part, len(data)

    def _dispatch(self, number: int, kind: int, payload: memoryview) -> None:
        channel = self._channels.get(number)
        if channel is not None:
            channel.receive(kind, payload)
        elif number == 0:
            self._receive_hello(kind, payload)
        elif number > self._highest:
            raise ProtocolError(f"a frame for channel {number}, which was never opened")
        else:
            self._strays_left -= max(1, len(payload) - _STRAY_HEAD)
            if self._strays_left < 0:
                raise ProtocolError("frames without end for channels that are closed")

    def _receive_hello(self, kind: int, payload: memoryview) -> None:
        if kind == Response.ERROR:
            raise ProtocolError("the agent refused the greeting")
        if kind != Response.HELLO or self._hello.done():
            raise ProtocolError(f"a frame of type {kind} where only a greeting may be")
        self._hello.set_result(Fields(payload))


async def _connect(directory: Path) -> socket.socket:
    """Connects to the agent's socket without following a symbolic link that may have replaced it.

    The socket is opened through descriptors, so neither the length of the path nor a change of the path in the
    meantime matters.
    """
    pause = _REDIAL_S[0]
    while True:
        try:
            return _connect_once(directory)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            if not directory.is_dir():
                raise SandboxLost("the sandbox is lost: its directory is gone") from None
        except OSError as exc:
            raise SandboxLost(f"the agent cannot be reached: {exc.strerror or exc}") from exc
        await asyncio.sleep(pause)
        pause = min(pause * 2, _REDIAL_S[1])


def _connect_once(directory: Path) -> socket.socket:
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        target = os.open(SOCKET_NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISSOCK(os.fstat(target).st_mode):
            raise SandboxLost(f"{SOCKET_NAME} is not a socket: somebody put something else in its place")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.connect(f"/proc/self/fd/{target}")
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(target)
