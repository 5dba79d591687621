"""What a maker does: makes and ends sandboxes for the server at the other end of its socket, several at once.

It ends when the server does, because the socket is closed then; the kernel then kills the launchers that it has
started. What it had half made is undone by whoever sweeps next, as after every crash: the records name the server as
their maker.
"""

import asyncio
import os
import socket
from typing import Final, Protocol

from warren.kernel.logs import get_log
from warren.model.errors import ProviderUnavailable, WarrenError
from warren.model.spec import SandboxSpec
from warren.sandboxes.makers.messages import MAX_MESSAGE, Answer, Cancel, End, Made, Make, Ready, packed, receive, send

_RETRY_S: Final = 0.001
_log = get_log(__name__)


class MakingProvider(Protocol):
    async def make_for_server(self, sandbox_id: str, spec: SandboxSpec) -> tuple[Made, socket.socket]:
        """Makes a sandbox, proves its isolation and connects to its agent. What is left if that fails is undone by the
        server."""

    async def end_for_server(self, sandbox_id: str) -> None: ...


class Maker:
    def __init__(self, control: socket.socket, provider: MakingProvider) -> None:
        self._loop = asyncio.get_running_loop()
        self._control, self._provider = control, provider
        self._buffer = bytearray(MAX_MESSAGE)
        self._jobs: dict[int, asyncio.Task[None]] = {}
        control.setblocking(False)

    async def run(self) -> None:
        """Returns never: the process ends with its server."""
        await self._send(packed(0, Ready()))
        self._loop.add_reader(self._control.fileno(), self._read)
        await self._loop.create_future()

    def _read(self) -> None:
        try:
            message = receive(self._control, self._buffer)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            os._exit(0)  # nobody waits for the jobs, and none may go on
        number, request, _ = message
        if isinstance(request, Cancel):
            if (job := self._jobs.get(request.number)) is not None:
                job.cancel()
            return
        self._jobs[number] = self._loop.create_task(self._answer(number, request))

    async def _answer(self, number: int, request: Make | End) -> None:
        answer: Answer = None
        link: socket.socket | None = None
        try:
            if isinstance(request, Make):
                answer, link = await self._provider.make_for_server(request.sandbox_id, request.spec)
            else:
                await self._provider.end_for_server(request.sandbox_id)
        except asyncio.CancelledError:
            answer = ProviderUnavailable("the work was cancelled")
        except WarrenError as exc:
            answer = exc
        except Exception as exc:
            _log.error("maker_failed", sandbox=request.sandbox_id, exc=exc)
            answer = ProviderUnavailable(f"a maker of sandboxes failed: {type(exc).__name__}")
        del self._jobs[number]
        try:
            await self._send(packed(number, answer), link.fileno() if link is not None else -1)
        finally:
            if link is not None:
                link.close()

    async def _send(self, data: bytes, fd: int = -1) -> None:
        while True:
            try:
                return send(self._control, data, fd)
            except BlockingIOError:  # the server is slow to read
                await asyncio.sleep(_RETRY_S)
            except OSError:
                os._exit(0)
