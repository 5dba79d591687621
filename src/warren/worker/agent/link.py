"""One connection to the agent of one sandbox.

`AgentLink` is the protocol object the event loop calls: it cuts what arrives into frames, checks
them and puts them into the inboxes of its channels. It never waits and never raises into the loop.
`Channel` (agent_channel.py) is the side the rest of the worker sees.

Nothing the agent says is believed. A frame of an unknown type, for a channel that never was, too
long, beyond the window or with garbage in it ends the link with ProtocolError. Losing the
connection ends it with SandboxLost. Either way every open channel and every later call hears of it
at once, and what had arrived before can still be taken.

Receiving uses one scratch buffer per thread, so an idle link owns none: the loop fills it and hands
it over in one go. Only a frame cut short at its end is copied into a buffer of the link's own, and
the rest of that frame is then received straight into there.
"""

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

from warren.model.errors import InvalidRequest, ProtocolError, SandboxLost, WarrenError
from warren.worker.agent.channel import Channel
from warren.worker.agent.wire import (
    HEADER,
    MAX_FRAME_IN,
    MAX_FRAME_OUT,
    VERSION,
    Ask,
    Fields,
    FileOp,
    Say,
    Tag,
    fields,
    frame,
)

SCRATCH_BYTES = 256 * 1024
SOCKET_NAME = "agent.sock"

_MAX_CHANNEL = (1 << 32) - 1
_HEADER_SIZE = HEADER.size
_KINDS = {int(kind): kind for kind in Say}
_FLUSH_S = 1.0
_REDIAL_S = (0.0005, 0.005)
_local = threading.local()


def _scratch() -> memoryview:
    try:
        view: memoryview = _local.scratch
    except AttributeError:
        view = _local.scratch = memoryview(bytearray(SCRATCH_BYTES))
    return view


class AgentLink(asyncio.BufferedProtocol):
    """Made by `dial`. `why_lost`, if set, says what became of the sandbox when the connection is gone."""

    def __init__(self) -> None:
        self.why_lost: Callable[[], str] = lambda: "the connection to its agent is gone"
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._channels: dict[int, Channel] = {}
        self._next = 1
        self._highest = 0
        self._part = memoryview(b"")
        self._part_filled = 0
        self._hello: asyncio.Future[Fields] = self._loop.create_future()
        self.last_file_op = int(FileOp.WATCH)
        self._violation = ""
        self._gone = False
        self._let_go = False
        self._when_lost: list[Callable[[str], None]] = []
        self._paused = False
        self._drained: list[asyncio.Future[None]] = []
        self.lost = asyncio.Event()

    def __repr__(self) -> str:
        state = f"broken: {self._violation}" if self._violation else "lost" if self._gone else "open"
        return f"<AgentLink {state}, {len(self._channels)} channels>"

    @classmethod
    async def dial(cls, directory: Path, *, timeout_s: float) -> "AgentLink":
        """Connects to the agent that listens in `directory` and greets it.

        An agent that does not listen yet is waited for. Raises SandboxLost when nobody answers in
        time, ProtocolError when what answers speaks another version.
        """
        try:
            async with asyncio.timeout(timeout_s):
                sock = await _connect(directory)
                link = await cls.over(sock)
                try:
                    link.post_raw(frame(Ask.HELLO, 0, fields([(Tag.VERSION, VERSION)])))
                    link._check_hello(await link._hello)
                except BaseException:
                    link.abort()
                    raise
                return link
        except TimeoutError:
            raise SandboxLost(f"the agent in {directory} did not answer within {timeout_s:g} s") from None

    @classmethod
    async def over(cls, sock: socket.socket) -> "AgentLink":
        """A link over a connected socket, not greeted yet; the link owns the socket."""
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
        return not self._gone

    async def open(self, kind: Ask, payload: bytes = b"", *, discard_output: bool = False) -> Channel:
        """Asks for something. The channel is the caller's: take from it to the end, or close it."""
        if len(payload) > MAX_FRAME_OUT:
            raise InvalidRequest(
                f"the request is {len(payload)} bytes long, at most {MAX_FRAME_OUT} fit",
                remedy="use fewer or smaller environment variables and arguments",
            )
        if self._paused:
            await self.drain()
        self.check()
        number = self._number()
        channel = Channel(self, number, kind, discard_output=discard_output)
        self._channels[number] = channel
        self.post_raw(frame(kind, number, payload))
        return channel

    def post(self, kind: Ask, payload: bytes) -> None:
        """Asks for something and does not want to hear the answer; on a dead link it does nothing."""
        self.post_raw(frame(kind, self._number(), payload))

    def check(self) -> None:
        if self._gone:
            raise self.loss()

    def loss(self) -> WarrenError:
        """Why nothing can be asked any more, as an exception of its own for each who asks."""
        if self._violation:
            return ProtocolError(f"the link to the agent was cut: {self._violation}")
        return SandboxLost(f"the sandbox is lost: {self._why()}")

    def _why(self) -> str:
        try:
            return self.why_lost()
        except Exception as exc:
            return f"the connection to its agent is gone ({exc})"

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Calls once, with the reason, when the link ends (at once if it has); never after `close`."""
        if not self._gone:
            self._when_lost.append(call)
        elif not self._let_go:
            call(self._reason())

    def _reason(self) -> str:
        return f"the link to its agent was cut: {self._violation}" if self._violation else self._why()

    async def drain(self) -> None:
        """Waits until the transport takes more."""
        while self._paused and not self._gone:
            waiter = self._loop.create_future()
            self._drained.append(waiter)
            await waiter
        self.check()

    async def close(self) -> None:
        """Lets go: the sandbox and its commands go on."""
        self._let_go = True
        if not self._gone:
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

    def violated(self, what: str) -> None:
        """The agent broke the rules: cut the link."""
        if not self._gone:
            self._violation = what
            self.abort()

    def forget(self, number: int) -> None:
        self._channels.pop(number, None)

    def send(self, kind: Ask, number: int, payload: bytes | memoryview = b"") -> None:
        self.post_raw(b"".join((HEADER.pack(len(payload), number, kind), payload)))

    def post_raw(self, data: bytes) -> None:
        if not self._gone and self._transport is not None:
            self._transport.write(data)

    def _number(self) -> int:
        number = self._next
        while number in self._channels:
            number = number % _MAX_CHANNEL + 1
        self._next = number % _MAX_CHANNEL + 1
        self._highest = max(self._highest, number)
        return number

    def _end(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._part = memoryview(b"")
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.link_lost()
        if not self._hello.done():
            self._hello.set_exception(self.loss())
            self._hello.exception()  # nobody may be waiting
        self._wake_writers()
        self._tell_loss()

    def _tell_loss(self) -> None:
        calls, self._when_lost = self._when_lost, []
        if calls and not self._let_go:
            why = self._reason()
            for call in calls:
                call(why)

    # What the event loop calls.

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
        return self._part[self._part_filled :] if self._part else _scratch()

    def buffer_updated(self, nbytes: int) -> None:
        if self._gone:
            return
        try:
            if self._part:
                self._part_filled += nbytes
                if self._part_filled == len(self._part):
                    part, self._part = self._part, memoryview(b"")
                    self._cut(part)
            else:
                self._cut(_scratch()[:nbytes])
        except ProtocolError as exc:
            self.violated(exc.message)
        except Exception as exc:
            self.violated(f"a frame could not be handled ({type(exc).__name__}: {exc})")

    def _cut(self, data: memoryview) -> None:
        at, end = 0, len(data)
        while end - at >= _HEADER_SIZE:
            length, number, kind = HEADER.unpack_from(data, at)
            if length > MAX_FRAME_IN:
                raise ProtocolError(f"a frame of {length} bytes, at most {MAX_FRAME_IN} are allowed")
            if kind not in _KINDS:
                raise ProtocolError(f"a frame of unknown type {kind}")
            after = at + _HEADER_SIZE + length
            if after > end:
                self._keep_part(data[at:], _HEADER_SIZE + length)
                return
            self._dispatch(number, kind, data[at + _HEADER_SIZE : after])
            if self._gone:
                return
            at = after
        if at < end:
            self._keep_part(data[at:], _HEADER_SIZE)

    def _keep_part(self, data: memoryview, size: int) -> None:
        part = memoryview(bytearray(size))
        part[: len(data)] = data
        self._part, self._part_filled = part, len(data)

    def _dispatch(self, number: int, kind: int, payload: memoryview) -> None:
        channel = self._channels.get(number)
        if channel is not None:
            channel.receive(kind, payload)
        elif number == 0:
            self._greeted(kind, payload)
        elif number > self._highest:
            raise ProtocolError(f"a frame for channel {number}, which was never opened")

    def _greeted(self, kind: int, payload: memoryview) -> None:
        if kind == Say.ERROR:
            raise ProtocolError("the agent refused the greeting")
        if kind != Say.HELLO or self._hello.done():
            raise ProtocolError(f"a frame of type {kind} where only a greeting may be")
        self._hello.set_result(Fields(payload))


async def _connect(directory: Path) -> socket.socket:
    """A connection to the agent's socket; follows no link that somebody may have put in its place.

    The socket is reached through descriptors, so neither the length of the path nor a change of
    it in between matters.
    """
    pause = _REDIAL_S[0]
    while True:
        try:
            return _connect_once(directory)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            if not directory.is_dir():
                raise SandboxLost(f"the sandbox is lost: its directory {directory} is gone") from None
        except OSError as exc:
            raise SandboxLost(f"the agent in {directory} cannot be reached: {exc.strerror or exc}") from exc
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
            raise SandboxLost(f"{SOCKET_NAME} in {directory} is not a socket: somebody put something else in its place")
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
