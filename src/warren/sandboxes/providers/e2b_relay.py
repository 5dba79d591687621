"""Carries the bytes between a link and an agent on another machine, through a program of the far side (agent/relay.c).

    link ══ socket pair ══ Relay ══ HTTP: SendInput, and a stream of events ══ relay ══ socket ══ agent

If the network breaks, the stream is opened again, and the program inside repeats what has not arrived; what was sent
and not answered is sent again, and the program skips what it knows. So the link loses nothing, and does not notice the
outage unless it lasts too long, or the sandbox is gone.
"""

import asyncio
import random
import secrets
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final

import aiohttp

from warren.kernel.logs import get_log
from warren.model.errors import WarrenError
from warren.sandboxes.agent.agent_errors import printable
from warren.sandboxes.providers.e2b_api import E2bApi, FarFailure, FarSandbox, Json, decoded

OUTAGE_S: Final = 120.0
_FRAME: Final = struct.Struct("<cQI")
_SEND_BYTES: Final = 256 * 1024
_ACK_BYTES: Final = 128 * 1024  # well below the window of the program inside
_PAUSES_S: Final = (0.05, 3.0)
_GONE: Final = "the far side does not have it any more"
_BROKEN: Final = (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError)
_log = get_log(__name__)


class RelayEnded(Exception):
    """There is no way to the agent any more."""


class FarRelay:
    """`open` returns the socket for the link. `why` says why the connection has ended; it is empty until then."""

    def __init__(
        self, api: E2bApi, far: FarSandbox, argv: tuple[str, ...], *, name: str, outage_s: float = OUTAGE_S
    ) -> None:
        self._api, self._far, self._argv = api, far, argv
        self._name, self._outage_s = name, outage_s
        self._pid = self._marks = 0
        self._started = asyncio.Event()
        self._received = self._acknowledged = 0
        self._to_acknowledge = asyncio.Event()
        self._sending = asyncio.Lock()
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self.why = ""

    def __repr__(self) -> str:
        return f"<Relay {self._name}, {self.why or 'open'}>"

    def open(self) -> socket.socket:
        self._socket, for_link = socket.socketpair()
        self._socket.setblocking(False)
        for_link.setblocking(False)
        self._task = asyncio.create_task(self._run(self._socket), name=f"relay-{self._name}")
        return for_link

    async def close(self) -> None:
        self._end("the connection to its agent was closed")
        if self._task is not None:
            await asyncio.wait([self._task])

    def _end(self, why: str) -> None:
        """Asks the task to end. It is not cancelled, because it must not be while it cleans up."""
        self.why = self.why or why
        self._ending.set()

    async def _run(self, sock: socket.socket) -> None:
        work = (self._receive_all(sock), self._send_all(sock), self._acknowledge_all(), self._ending.wait())
        parts = [asyncio.ensure_future(part) for part in work]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for failure in (part.exception() for part in parts if part.done()):
                if failure is not None:
                    self._end(str(failure))
                    if not isinstance(failure, RelayEnded):
                        _log.error("relay_failed", sandbox=self._name, error=failure)
        finally:
            self._end("the connection to its agent was closed")
            for part in parts:
                part.cancel()
            await asyncio.wait(parts)
            sock.close()

    # -- from the agent

    async def _receive_all(self, sock: socket.socket) -> None:
        outage = _Outage(self._outage_s, self._is_gone)
        while True:
            try:
                async with self._stream() as events:
                    await self._receive(events, sock, outage)
                await outage.wait(EOFError("the stream has ended"))
            except FarFailure as exc:
                if exc.status == 200 and exc.kind != "unavailable":
                    raise RelayEnded(f"the far side says of its agent: {exc.said or exc.kind}") from exc
                if self._pid and exc.kind == "not_found":
                    raise RelayEnded("the connection to its agent was ended by the far side") from exc
                await outage.wait(exc, exc.retry_after_s)
            except _BROKEN as exc:
                await outage.wait(exc)

    def _stream(self) -> AbstractAsyncContextManager[AsyncIterator[Json]]:
        if self._pid:
            return self._api.connect(self._far, self._pid)
        return self._api.start(self._far, self._argv, stdin=True)

    async def _receive(self, events: AsyncIterator[Json], sock: socket.socket, outage: "_Outage") -> None:
        """Hands on what comes after a new mark. Asks for the mark as soon as the stream runs, with the offset from
        which the program inside is to go on."""
        self._marks += 1
        mark = struct.pack(">Q", self._marks) + secrets.token_bytes(16)
        before, found, said, marking = b"", False, b"", None
        try:
            async for event in events:
                if "start" in event and marking is None:
                    self._pid = self._pid or int(event["start"].get("pid") or 0)
                    self._started.set()
                    outage.is_over()
                    marking = asyncio.ensure_future(self._send(b"R", self._received, mark))
                    marking.add_done_callback(self._end_if_failed)
                if "end" in event:
                    raise RelayEnded(await self._why_left(said))
                output = event.get("data") or {}
                said = (said + decoded(output.get("stderr")))[-400:]
                data = decoded(output.get("stdout"))
                if not found:
                    before += data
                    at = before.find(mark)
                    found, data = at >= 0, before[at + len(mark) :] if at >= 0 else b""
                    before = b"" if found else before[-len(mark) :]
                if data:
                    await asyncio.get_running_loop().sock_sendall(sock, data)
                    self._note_received(len(data))
        finally:
            if marking is not None:
                marking.cancel()
                await asyncio.wait([marking])

    async def _why_left(self, said: bytes) -> str:
        with suppress(WarrenError):
            if await self._is_gone():
                return _GONE
        text = printable(said.decode(errors="replace"), 200).strip()
        return f"the connection to its agent was ended inside the sandbox ({text or 'without a word'})"

    def _end_if_failed(self, marking: "asyncio.Task[None]") -> None:
        if not marking.cancelled() and (failure := marking.exception()) is not None:
            self._end(str(failure))

    def _note_received(self, count: int) -> None:
        self._received += count
        if self._received - self._acknowledged >= _ACK_BYTES:
            self._to_acknowledge.set()

    async def _acknowledge_all(self) -> None:
        while True:
            await self._to_acknowledge.wait()
            self._to_acknowledge.clear()
            upto = self._received
            await self._send(b"A", upto)
            self._acknowledged = max(upto, self._acknowledged)

    # -- to the agent

    async def _send_all(self, sock: socket.socket) -> None:
        sent = 0
        await self._started.wait()
        while data := await asyncio.get_running_loop().sock_recv(sock, _SEND_BYTES):
            await self._send(b"D", sent, data)
            sent += len(data)

    async def _send(self, kind: bytes, offset: int, data: bytes = b"") -> None:
        """Sends a frame, again if necessary, and returns when it has arrived."""
        outage = _Outage(self._outage_s, self._is_gone)
        async with self._sending:
            while True:
                try:
                    await self._api.send_input(self._far, self._pid, _FRAME.pack(kind, offset, len(data)) + data)
                    return
                except FarFailure as exc:
                    if exc.kind == "not_found":
                        raise RelayEnded("the connection to its agent was ended by the far side") from exc
                    await outage.wait(exc, exc.retry_after_s)
                except _BROKEN as exc:
                    await outage.wait(exc)

    async def _is_gone(self) -> bool:
        return await self._api.size(self._far.id) is None


class _Outage:
    """The time since the far side was last reached. `wait` pauses before the next attempt, a little longer each time;
    it raises RelayEnded if the sandbox is gone, or has been out of reach for too long."""

    def __init__(self, longest_s: float, is_gone: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        self._longest_s, self._is_gone = longest_s, is_gone
        self._since: float | None = None
        self._pause = _PAUSES_S[0]

    def is_over(self) -> None:
        self._since, self._pause = None, _PAUSES_S[0]

    async def wait(self, error: Exception, retry_after_s: float | None = None) -> None:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if isinstance(error, FarFailure) and error.is_gone:
            with suppress(WarrenError):
                if await self._is_gone():
                    raise RelayEnded(_GONE) from error
        if now - self._since > self._longest_s:
            raise RelayEnded(f"it was out of reach for {self._longest_s:g} s: {error}") from error
        await asyncio.sleep(max(self._pause * random.uniform(0.8, 1.2), min(retry_after_s or 0, 10.0)))
        self._pause = min(self._pause * 2, _PAUSES_S[1])
