"""The processes that make and end sandboxes for this one, so that making them takes no time of its event loop.

    server ── seqpacket ── maker    a provider of its own for the same state directory: it launches, reads the
           ── seqpacket ── maker    isolation back, judges it, and hands over a connection to the agent

A request goes to the maker with the fewest. The first is started ahead, another one each time all are busy, up to
`count`. What a maker has made belongs to the server: its death is the failure of the requests that it worked on, and
the next request starts another.

Shared by tenants: every maker works for all. How many requests there are at once is bounded by the provider, which
makes and ends a fixed number of sandboxes at a time, in the order in which they were asked for.
"""

import asyncio
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.errors import ProviderUnavailable, WarrenError
from warren.model.spec import SandboxSpec
from warren.sandboxes.makers.messages import (
    MAX_MESSAGE,
    Answer,
    Cancel,
    End,
    Made,
    Make,
    Ready,
    Request,
    packed,
    receive,
    send,
    socket_pair,
)

_START_S: Final = 60.0
_LONGEST_S: Final = 120.0  # for one request: the launcher has a limit of its own, which is shorter
_BUSY: Final = 2  # requests at once, from which on another maker is better
_AGAIN_S: Final = 5.0  # after one could not be started
_log = get_log(__name__)

Spawn = Callable[[int], "subprocess.Popen[bytes]"]
"""Starts a maker that is to use this descriptor."""


class MakerGone(Exception):
    """The maker ended before it answered: what it was asked for may be half done."""


class MakerProcess:
    """One maker, as the server sees it."""

    def __init__(self, spawn: Spawn, when_gone: "Callable[[MakerProcess], None]", longest_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._when_gone, self._longest_s = when_gone, longest_s
        self._buffer = bytearray(MAX_MESSAGE)
        self._asked: dict[int, asyncio.Future[tuple[Answer, int]]] = {}
        self._number = 0
        self._reaping: asyncio.Future[int] | None = None
        ready: asyncio.Future[tuple[Answer, int]] = self._loop.create_future()
        self._asked[0] = self._ready = ready
        self._control, theirs = socket_pair()
        try:
            with theirs:
                self._process = spawn(theirs.fileno())
        except BaseException:
            self._control.close()
            raise
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._read)

    def __repr__(self) -> str:
        return f"<MakerProcess {self.pid}, {self.load} requests{', gone' if self.is_gone else ''}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        return self._reaping is not None

    @property
    def load(self) -> int:
        return len(self._asked)

    async def started(self) -> None:
        """Raises MakerGone."""
        async with asyncio.timeout(_START_S):
            await asyncio.shield(self._ready)

    async def ask(self, request: Make | End) -> tuple[Answer, int]:
        """Returns the answer, and the descriptor that came with it. Raises MakerGone, ProviderUnavailable, and what the
        maker raised. When cancelled, waits until the maker has left it."""
        number = self._number = self._number + 1
        answered = self._asked[number] = self._loop.create_future()
        try:
            await self._send(number, request)
            return await self._answer_of(answered)
        except asyncio.CancelledError:
            await run_shielded(self._cancel(number, answered))
            raise
        finally:
            self._asked.pop(number, None)
            if answered.done() and not answered.cancelled():
                answered.exception()

    async def _answer_of(self, answered: "asyncio.Future[tuple[Answer, int]]") -> tuple[Answer, int]:
        done, _ = await asyncio.wait([answered], timeout=self._longest_s)
        if not done:
            _log.error("maker_does_not_answer", pid=self.pid, action="kill")
            self.lose()
        answer, fd = answered.result()
        if isinstance(answer, WarrenError):
            raise answer
        return answer, fd

    async def _cancel(self, number: int, answered: "asyncio.Future[tuple[Answer, int]]") -> None:
        with suppress(MakerGone, WarrenError):
            await self._send(number, Cancel(number))
            _, fd = await self._answer_of(answered)
            if fd >= 0:
                socket.close(fd)

    async def _send(self, number: int, request: Request) -> None:
        try:
            data = packed(number, request)
        except ValueError:
            raise ProviderUnavailable("the sandbox's description is too long") from None
        while not self.is_gone:
            try:
                return send(self._control, data)
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError:
                self.lose()
        raise MakerGone

    def _read(self) -> None:
        try:
            message = receive(self._control, self._buffer)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self.lose()
            return
        number, answer, fd = message
        asked = self._asked.get(number)
        if asked is not None and not asked.done():
            asked.set_result((answer, fd))
            if isinstance(answer, Ready):
                del self._asked[0]
        elif fd >= 0:
            socket.close(fd)

    def lose(self) -> None:
        """Ends it now, if it has not ended, and fails what it was asked for."""
        if self._reaping is not None:
            return
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self._process.kill()
        self._reaping = self._loop.run_in_executor(None, self._process.wait)
        for asked in [*self._asked.values()]:
            if not asked.done():
                asked.set_exception(MakerGone())
                asked.exception()
        self._when_gone(self)

    async def close(self) -> None:
        self.lose()
        assert self._reaping is not None
        await self._reaping


class Makers:
    """At most `count` makers, which `spawn` starts. One that does not answer within `longest_s` is killed."""

    def __init__(self, count: int, spawn: Spawn, longest_s: float = _LONGEST_S) -> None:
        self.count, self._spawn, self._longest_s = count, spawn, longest_s
        self._running: list[MakerProcess] = []
        self._starting: asyncio.Task[MakerProcess] | None = None
        self._not_before = 0.0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Makers, {len(self._running)} of {self.count} run>"

    @property
    def pids(self) -> Sequence[int]:
        return [maker.pid for maker in self._running]

    async def make(self, sandbox_id: str, spec: SandboxSpec) -> tuple[Made, socket.socket]:
        """Returns what was made, and the connection to its agent. Raises what making it raised; ProviderUnavailable if
        the maker has ended meanwhile. Whatever is left then has to be undone."""
        maker = await self._free_maker()
        try:
            answer, fd = await maker.ask(Make(sandbox_id, spec))
        except MakerGone:
            raise ProviderUnavailable(
                "a process that makes sandboxes has ended while it made this one", remedy="try again"
            ) from None
        assert isinstance(answer, Made)
        assert fd >= 0
        return answer, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=fd)

    async def end(self, sandbox_id: str) -> bool:
        """Ends a sandbox, and removes what it leaves. Returns False if the maker has ended meanwhile. Raises what
        ending it raised."""
        try:
            await (await self._free_maker()).ask(End(sandbox_id))
        except MakerGone:
            return False
        return True

    def start(self) -> None:
        """Starts the first maker, in the background."""
        if not self._running:
            self._start_another()

    async def close(self) -> None:
        self._is_closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await asyncio.gather(*(maker.close() for maker in [*self._running]))

    async def _free_maker(self) -> MakerProcess:
        """Raises ProviderUnavailable if there is none and none can be started."""
        while True:
            maker = min(self._running, key=lambda each: each.load, default=None)
            if (maker is None or maker.load >= _BUSY) and len(self._running) < self.count:
                self._start_another()
            if maker is not None:
                return maker
            if self._starting is None:
                raise ProviderUnavailable("no process that makes sandboxes can be started", remedy="see the log")
            await asyncio.wait([self._starting])

    def _start_another(self) -> None:
        if self._is_closed or self._starting is not None or asyncio.get_running_loop().time() < self._not_before:
            return
        self._starting = asyncio.create_task(self._start(), name="maker")
        self._starting.add_done_callback(self._note_started)

    async def _start(self) -> MakerProcess:
        maker = MakerProcess(self._spawn, self._note_gone, self._longest_s)
        try:
            await maker.started()
        except BaseException:
            await run_shielded(maker.close())
            raise
        return maker

    def _note_started(self, starting: "asyncio.Task[MakerProcess]") -> None:
        self._starting = None
        if starting.cancelled():
            return
        if (error := starting.exception()) is not None:
            self._not_before = asyncio.get_running_loop().time() + _AGAIN_S
            _log.error("maker_not_started", error=repr(error))
        elif not (maker := starting.result()).is_gone:
            self._running.append(maker)
            _log.info("maker_started", pid=maker.pid, makers=len(self._running))

    def _note_gone(self, maker: MakerProcess) -> None:
        if maker in self._running:
            self._running.remove(maker)
            if not self._is_closed:
                _log.error("maker_ended", pid=maker.pid, requests=maker.load)
