"""Splits what arrives on a connection to an agent into frames, and sends frames.

Receiving uses one scratch buffer per thread, so an idle connection owns no buffer: the loop fills the scratch buffer
and the reader parses it at once. Only a frame that is cut off at the end of the buffer is copied into a buffer of the
reader's own, and the rest of that frame is received directly into it.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import cast

from warren.model.errors import ProtocolError
from warren.sandboxes.agent.wire import HEADER, MAX_FRAME_IN, WireResponse

SCRATCH_BYTES = 256 * 1024
_FRAMES_AT_ONCE = 1000
_SHORT_READ = 4096
_SHORT_READS, _SHORT_READS_S = 500, 0.1  # no more of them in that time
_HEADER_SIZE = HEADER.size
_RESPONSE_TYPES = frozenset(int(kind) for kind in WireResponse)
_local = threading.local()


def _scratch() -> memoryview:
    try:
        view: memoryview = _local.scratch
    except AttributeError:
        view = _local.scratch = memoryview(bytearray(SCRATCH_BYTES))
    return view


class FrameStream(asyncio.BufferedProtocol, ABC):
    """The protocol object that the event loop calls. It never waits and never raises into the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._scratch = _scratch()
        self._part = memoryview(b"")
        self._part_filled = 0
        self._put_off = memoryview(b"")
        self._short_reads, self._short_since = 0, 0.0
        self._ended = False
        self._paused = False
        self._drained: list[asyncio.Future[None]] = []

    @property
    def is_open(self) -> bool:
        return not self._ended

    def write_frame(self, data: bytes) -> None:
        """Does nothing on a connection that has ended."""
        if not self._ended and self._transport is not None:
            self._transport.write(data)

    async def _wait_until_writable(self) -> None:
        """Waits until the transport accepts more data, or the connection has ended."""
        while self._paused and not self._ended:
            waiter = self._loop.create_future()
            self._drained.append(waiter)
            await waiter

    @abstractmethod
    def _receive(self, number: int, kind: int, payload: memoryview) -> None:
        """Takes a frame for a channel. Raises ProtocolError for one that must not be."""

    @abstractmethod
    def cut_off(self, what: str) -> None:
        """Ends the connection because the agent broke the protocol."""

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=512 * 1024, low=128 * 1024)

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
        if nbytes < _SHORT_READ:
            self._short_reads += 1
        if not self._part:
            self._parse(self._scratch[:nbytes])
        else:
            self._part_filled += nbytes
            if self._part_filled == len(self._part):
                part, self._part = self._part, memoryview(b"")
                self._parse(part)
        if self._short_reads >= _SHORT_READS:
            self._let_bytes_gather()

    def _let_bytes_gather(self) -> None:
        """Stops reading for a moment if an agent sends a byte at a time: each read costs the loop a turn."""
        now = self._loop.time()
        wait_s = self._short_since + _SHORT_READS_S - now
        self._short_reads, self._short_since = 0, max(now, now + wait_s)
        if wait_s > 0 and not self._ended and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_later(wait_s, self._read_again)

    def _read_again(self) -> None:
        # Frames that are put off come first; reading goes on after them.
        if not self._put_off and not self._ended and self._transport is not None:
            self._transport.resume_reading()

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
            self._receive(number, kind, data[at + _HEADER_SIZE : after])
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
