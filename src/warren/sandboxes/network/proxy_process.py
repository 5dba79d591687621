"""Starts this worker's `warren-egress` process, sends it requests, and notices its end.

The process reads what sandboxes send, so an attacker may control it: the worker trusts none of its answers, and kills
it if it does not answer in time. It ends by itself when the worker ends, because its socket is closed then.
"""

import asyncio
import base64
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.errors import ProviderUnavailable
from warren.model.network import EgressPolicy
from warren.sandboxes.egress.messages import MAX_ANSWER, MAX_MESSAGE, BrokenMessage, MessageReader, pack
from warren.sandboxes.host.passed_files import close_in_thread, keep_urgent_bytes, receive, refuse_descriptors
from warren.sandboxes.host.processes import ENVIRONMENT
from warren.sandboxes.network import call_filter

_START_S: Final = 20.0
_ANSWER_S: Final = 5.0
_GRACE_S: Final = 1.0
_END_S: Final = 2.0
_log = get_log(__name__)


class ProxyGone(Exception):
    """The process has ended, or was killed because it did not answer. `is_suspect`: this request was the one it worked
    on, so it may be the reason."""

    def __init__(self, *, is_suspect: bool = False) -> None:
        super().__init__("the process of the network has ended")
        self.is_suspect = is_suspect


class ProxyProcess:
    """The running process. `ask` raises ProxyGone, and ProviderUnavailable if the process refuses. `when_gone` is
    called once, when the process ends after it was started and before it is closed."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", control: socket.socket, when_gone: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process, self._control = process, control
        self._reader, self._buffer = MessageReader(MAX_ANSWER), bytearray(1 << 16)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._sending = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        self._reaping: asyncio.Future[int] | None = None
        self.is_gone = False
        self._when_gone = when_gone
        self._is_in_use = False
        control.setblocking(False)
        keep_urgent_bytes(control)
        self._loop.add_reader(control.fileno(), self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(
        cls, policy: EgressPolicy, within: Sequence[str] = (), *, when_gone: Callable[[], None] = lambda: None
    ) -> Self:
        """Starts the process. `within` is a command prefix that runs it elsewhere, such as in another namespace. Raises
        ProviderUnavailable."""
        ours, theirs = socket.socketpair()
        refuse_descriptors(ours)
        with theirs:
            try:
                process = _spawn(within, theirs.fileno())
            except OSError as exc:
                ours.close()
                raise ProviderUnavailable(f"the process of the network cannot be started: {exc.strerror}") from exc
        proxy = cls(process, ours, when_gone)
        try:
            program = base64.b64encode(call_filter.compiled()).decode()
            await proxy.ask("start", filter=program, policy=asdict(policy), timeout_s=_START_S)
        except BaseException as exc:
            await run_shielded(proxy.close())
            if isinstance(exc, ProxyGone):
                raise ProviderUnavailable("the process of the network ended when it was started") from exc
            raise
        proxy._is_in_use = True
        return proxy

    async def ask(
        self, do: str, *, descriptors: Sequence[int] = (), timeout_s: float = _ANSWER_S, **values: Any
    ) -> dict[str, Any]:
        self._number += 1
        number = self._number
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._asked[number] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await self._send({"do": do, "number": number, **values}, descriptors)
                await asyncio.wait([answer])
        except TimeoutError:
            # The answer may wait in the socket: perhaps it was this process that had no time.
            await asyncio.wait([answer], timeout=_GRACE_S)
            if not answer.done():
                _log.error("egress_does_not_answer", action="kill", doing=do)
                # Killed rather than asked again: a process that hangs may be in an attacker's hands.
                self._lose()
        finally:
            self._asked.pop(number, None)
            if answer.done():
                answer.exception()
        got = answer.result()
        if "error" in got:
            raise ProviderUnavailable(f"the process of the network refuses: {str(got['error'])[:400]}")
        return got

    async def close(self) -> None:
        self._is_in_use = False
        if not self.is_gone:
            # Closing our end asks the process to end; it is killed only if it does not.
            self._stop_listening()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await asyncio.shield(self._reap())
            self._process.kill()
        await self._reap()

    async def _send(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        head, body = pack(message)
        if len(body) > MAX_MESSAGE:  # the process would not read on
            raise ProviderUnavailable(f"the process of the network takes no message of {len(body)} bytes")
        async with self._sending:
            if self.is_gone:
                raise ProxyGone
            writing = self._writing = self._loop.create_task(self._write(head, body, descriptors))
            try:
                await asyncio.wait([writing])
            except asyncio.CancelledError:
                # It is sent to its end all the same: the process would take the next message for the rest of this one.
                await run_shielded(asyncio.wait([writing], timeout=_GRACE_S))
                if not writing.done():
                    self._lose()
                raise

    async def _write(self, head: bytes, body: bytes, descriptors: Sequence[int]) -> None:
        try:
            if descriptors:  # sent with the head, so that they arrive with their message
                while True:
                    with contextlib.suppress(BlockingIOError):
                        socket.send_fds(self._control, [head], list(descriptors))
                        break
                    await asyncio.sleep(0.001)
                head = b""
            await self._loop.sock_sendall(self._control, head + body)
        except OSError:
            self._lose()

    def _read(self) -> None:
        try:
            count, descriptors = receive(self._control, self._buffer)
        except BlockingIOError:
            return
        except OSError:
            count, descriptors = 0, None
        if descriptors is not None:
            _log.error("egress_sends_open_files", action="kill")
        if descriptors is not None or not count:
            self._lose(descriptors or ())
            return
        try:
            for message in self._reader.feed(bytes(self._buffer[:count])):
                number = message.get("number")
                future = self._asked.get(number) if isinstance(number, int) else None
                if future is not None and not future.done():
                    future.set_result(message)
        except BrokenMessage as exc:
            _log.error("egress_talks_nonsense", action="kill", error=exc)
            self._lose()

    def _lose(self, descriptors: Sequence[int] = ()) -> None:
        if self.is_gone:
            return
        self._stop_listening(descriptors)
        self._process.kill()
        self._reap()
        if self._is_in_use:
            self._when_gone()

    def _stop_listening(self, descriptors: Sequence[int] = ()) -> None:
        self.is_gone = True
        if self._writing is not None:
            self._writing.cancel()
        self._loop.remove_reader(self._control.fileno())
        self._loop.remove_writer(self._control.fileno())
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # the process hears of it, however long the close lasts
        close_in_thread(self._control, descriptors)
        # It does what it is asked in order, so it worked on the oldest request.
        oldest = min(self._asked, default=0)
        for number, future in self._asked.items():
            if not future.done():
                future.set_exception(ProxyGone(is_suspect=number == oldest))

    def _reap(self) -> "asyncio.Future[int]":
        if self._reaping is None:
            self._reaping = self._loop.run_in_executor(None, self._process.wait)
        return self._reaping


def _spawn(within: Sequence[str], control: int) -> "subprocess.Popen[bytes]":
    """Starts the process with an empty environment, because ours may hold keys. It finds the same packages as this
    one."""
    path = os.pathsep.join((str(Path(__file__).parents[3]), *filter(os.path.isabs, sys.path)))
    resolver = {"RES_OPTIONS": "timeout:3 attempts:2"}
    return subprocess.Popen(
        [*within, sys.executable, "-P", "-m", "warren.sandboxes.egress", str(control)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        env={**ENVIRONMENT, **resolver, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "UV_USE_IO_URING": "0"},
        pass_fds=(control,),
        start_new_session=True,
    )
