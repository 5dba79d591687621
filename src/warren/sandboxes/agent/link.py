"""One connection to the agent of one sandbox, and the requests that share it.

`AgentLink` is the protocol object that the event loop calls: it splits what arrives into frames (frames.py), checks
them and puts them into the inboxes of its channels. It never waits and never raises into the loop. A `Channel` is one
request and what comes back; the rest of the worker opens one with `AgentLink.open`.

The worker trusts nothing that the agent sends. A frame of an unknown type, for a channel that was never opened, too
long, beyond the window or malformed ends the link with ProtocolError. Losing the connection ends it with
SandboxLost. Either way every open channel and every later call raises that error at once; what had arrived before
can still be taken.

What the agent sends on a channel that was closed here is what was on its way, at most the rest of the window; more than
that, and frames that carry nothing, would keep the worker busy although nobody asked for anything, and end the link.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from warren.model.errors import InvalidRequest, ProtocolError, SandboxLost, WarrenError
from warren.sandboxes.agent.channel import STRAYS, AgentChannel
from warren.sandboxes.agent.descriptor_guard import GuardedTransport
from warren.sandboxes.agent.dialling import connect
from warren.sandboxes.agent.frames import FrameStream
from warren.sandboxes.agent.wire import (
    MAX_FRAME_OUT,
    VERSION,
    ControlOp,
    WireFields,
    WireRequest,
    WireResponse,
    WireTag,
    fields,
    frame,
)
from warren.sandboxes.host.passed_files import refuse_descriptors

_MAX_CHANNEL = (1 << 32) - 1
_FLUSH_S = 1.0
_SEND_TURNS = 5
_STRAY_HEAD = 9  # bytes that OUTPUT begins with, which do not count

WhyLost = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Waking:
    """For an agent that stands still: `thaw` is called when it has been told, if `paused_s` is known, how long."""

    thaw: Callable[[], None]
    paused_s: float | None = None


def _connection_gone() -> str:
    return "the connection to its agent is gone"


@dataclass(slots=True)
class _Losing:
    """Says why a link has ended: the agent broke the protocol, or what `why_lost` says. `calls` are called once, unless
    the link was `closed` here."""

    why_lost: WhyLost = _connection_gone
    violation: str = ""
    closed: bool = False
    calls: list[Callable[[str], None]] = field(default_factory=list)

    def error(self) -> WarrenError:
        if self.violation:
            return ProtocolError(f"the link to the agent was cut: {self.violation}")
        return SandboxLost(f"the sandbox is lost: {self._call_why_lost()}")

    def reason(self) -> str:
        return f"the link to its agent was cut: {self.violation}" if self.violation else self._call_why_lost()

    def _call_why_lost(self) -> str:
        try:
            return self.why_lost()
        except Exception as exc:
            return f"{_connection_gone()} ({exc})"

    def report(self) -> None:
        calls, self.calls = self.calls, []
        if calls and not self.closed:
            why = self.reason()
            for call in calls:
                call(why)


class AgentLink(FrameStream):
    """Made by `dial`. `why_lost` is called when a greeted link is lost; it tells what became of the sandbox."""

    def __init__(self, why_lost: WhyLost = _connection_gone) -> None:
        super().__init__()
        self._losing = _Losing(why_lost)
        self._channels: dict[int, AgentChannel] = {}
        self._next = 1
        self._highest = 0
        self._strays_left = 64 * STRAYS
        self._hello: asyncio.Future[WireFields] = self._loop.create_future()
        self.controls = 0  # the last ControlOp that the agent knows
        self.lost = asyncio.Event()

    def __repr__(self) -> str:
        violation = self._losing.violation
        state = f"broken: {violation}" if violation else "lost" if self._ended else "open"
        return f"<AgentLink {state}, {len(self._channels)} channels>"

    @classmethod
    async def dial(
        cls,
        directory: Path,
        *,
        timeout_s: float,
        why_lost: WhyLost = _connection_gone,
        waking: Waking | None = None,
    ) -> "AgentLink":
        """Connects to the agent that listens in `directory` and greets it. With `waking` it may stand still: that the
        kernel lets a caller connect needs no agent.

        Waits for an agent that does not listen yet. Raises SandboxLost if no agent answers in time, and
        ProtocolError if the agent speaks another version.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await cls.greet(await connect(directory), why_lost, waking)
        except TimeoutError:
            raise SandboxLost(f"the agent did not answer within {timeout_s:g} s") from None

    @classmethod
    async def greet(
        cls, sock: socket.socket, why_lost: WhyLost = _connection_gone, waking: Waking | None = None
    ) -> "AgentLink":
        """Greets the agent at the other end of a connected socket, which the link owns. Raises as `dial` does."""
        link = await cls.over(sock)
        try:
            link.write_frame(frame(WireRequest.HELLO, 0, fields([(WireTag.VERSION, VERSION)])))
            if waking is not None:
                if waking.paused_s is not None:
                    link.note_pause(waking.paused_s)
                await link.sent()
                waking.thaw()
            hello = await link._hello
            if (version := hello.number(WireTag.VERSION)) != VERSION:
                raise ProtocolError(
                    f"the agent speaks version {version} of the protocol, this worker version {VERSION}",
                    remedy="the sandbox was made by another release of Warren: destroy it and create a new one",
                )
            link._losing.why_lost = why_lost
            link.controls = hello.number(WireTag.CONTROL, ControlOp.KILL_ALL)
        except BaseException:
            link.abort()
            raise
        return link

    @classmethod
    async def over(cls, sock: socket.socket, why_lost: WhyLost = _connection_gone) -> "AgentLink":
        """Returns a link over a connected socket, before the greeting. The link owns the socket."""
        try:
            if not refuse_descriptors(sock):
                return cls.guarded(sock, why_lost)
            _, link = await asyncio.get_running_loop().create_connection(lambda: cls(why_lost), sock=sock)
        except BaseException:
            sock.close()
            raise
        return link

    @classmethod
    def guarded(cls, sock: socket.socket, why_lost: WhyLost = _connection_gone) -> "AgentLink":
        """Like `over`, for a socket that cannot refuse open files."""
        link = cls(why_lost)
        GuardedTransport(sock, link)
        return link

    async def open(self, kind: WireRequest, payload: bytes = b"", *, discard_output: bool = False) -> AgentChannel:
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
        channel = AgentChannel(self, number, kind, discard_output=discard_output)
        self._channels[number] = channel
        self.write_frame(frame(kind, number, payload))
        return channel

    def post(self, kind: WireRequest, payload: bytes) -> None:
        """Sends a request and ignores the response; on an ended link it does nothing."""
        self._strays_left += STRAYS
        self.write_frame(frame(kind, self._new_number(), payload))

    def note_pause(self, paused_s: float) -> None:
        """Tells the agent how long it stood still. It does not answer: it may stand still yet."""
        ms = max(0, round(paused_s * 1000))
        payload = fields([(WireTag.OP, int(ControlOp.RESUMED)), (WireTag.AGE_MS, ms)])
        self.post(WireRequest.CONTROL, payload)

    async def sent(self) -> None:
        """Gives the transport the turns in which it hands what was written to the kernel; a full socket waits on."""
        for _ in range(_SEND_TURNS):
            if self._transport is not None and self._transport.get_write_buffer_size():
                await asyncio.sleep(0)

    def check(self) -> None:
        if self._ended:
            raise self.loss()

    def loss(self) -> WarrenError:
        """Returns why the link has ended, as a new exception for each caller."""
        return self._losing.error()

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Calls back once, with the reason, when the link ends (at once if it has ended); never after `close`."""
        if not self._ended:
            self._losing.calls.append(call)
        elif not self._losing.closed:
            call(self._losing.reason())

    async def drain(self) -> None:
        """Waits until the transport accepts more data. Raises `loss` if the link has ended."""
        await self._wait_until_writable()
        self.check()

    async def close(self) -> None:
        """Closes the connection; the sandbox and its commands continue."""
        self._losing.closed = True
        if not self._ended:
            self._losing.why_lost = lambda: "this link to it was closed"
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
            self._losing.violation = what
            self.abort()

    def forget(self, number: int, may_follow: int = 0) -> None:
        """Removes a channel. `may_follow`: bytes that the agent may have sent before it hears that the channel is
        closed."""
        self._channels.pop(number, None)
        self._strays_left += may_follow

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
        self._losing.report()

    # Called by the event loop.

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self.lost.set()

    def _receive(self, number: int, kind: int, payload: memoryview) -> None:
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
        if kind == WireResponse.ERROR:
            raise ProtocolError("the agent refused the greeting")
        if kind != WireResponse.HELLO or self._hello.done():
            raise ProtocolError(f"a frame of type {kind} where only a greeting may be")
        self._hello.set_result(WireFields(payload))
