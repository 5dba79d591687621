"""Bounds the memory of long answers, from the moment their content is collected until their callers have read them.

The output of a command stays in its sandbox until a request asks for it. Then the server holds it for as long as the
caller takes to read the answer, so slow readers could fill the memory. `Admission` gives each request an `AnswerRoom`.
What is about to collect more than SHORT_BYTES calls `make_room` first, for all of it at once: requests never wait for
each other while each holds a part of what it needs.

A tenant may hold as much as it leaves free. So one tenant alone gets half of the memory, two get a third each, and a
tenant that comes later finds room. A request that finds none waits until other answers have been read, for WAIT_S at
most; then it makes do with a short answer and says so. Without a request, as in the local mode, there is no bound.

The pieces of the WebSockets of previews that one side has sent and the other has not taken are counted here, too, and
so are messages of other WebSockets while they come and until the app asks for the next one.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from warren.kernel.fair_share import FairShare, Turns
from warren.model.errors import NoCapacity

MIB: Final = 1024 * 1024
SHORT_BYTES: Final = 256 * 1024
WAIT_S: Final = 20.0  # less than a command's agent may be silent, see sandboxes/agent/process.py


class AnswerMemory:
    def __init__(self, total_bytes: int = 512 * MIB, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._held = FairShare(total_bytes, of_rest=1)
        self._waiting = Turns[tuple[int, asyncio.Future[None]]]()

    def __repr__(self) -> str:
        held, waiting = self._held, len(self._waiting)
        return f"<AnswerMemory: {held.in_all} of {held.total} bytes held by {len(held.owners)}, {waiting} waiting>"

    def take_now(self, tenant: str, size: int) -> bool:
        return tenant not in self._waiting and self._held.try_take(tenant, size)

    async def take(self, tenant: str, size: int) -> bool:
        """Waits for room, up to `wait_s`. Returns whether it got it."""
        if self.take_now(tenant, size):
            return True
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(tenant, (size, given))
        try:
            await asyncio.wait([given], timeout=self._wait_s)
        except asyncio.CancelledError:
            if given.done():  # the room came together with the cancellation: nobody will use it
                self.give_back(tenant, size)
            raise
        finally:
            if not given.done():
                self._waiting.remove(tenant, (size, given))
                self._admit()  # a smaller request that waited behind this one may fit
        return given.done()

    def hold_now(self, tenant: str, size: int) -> bool:
        """Takes room at once, before those of the tenant's requests that wait for more; returns whether there was."""
        return self._held.try_take(tenant, size)

    def count(self, tenant: str, size: int) -> None:
        """Counts what is held already, even if there is no room for it."""
        self._held.take(tenant, size)

    def give_back(self, tenant: str, size: int) -> None:
        self._held.give_back(tenant, size)
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        """Gives room to waiting requests: first to the tenants that hold the least, and to the requests of each in
        turn."""
        for tenant in self._held.smallest_first(self._waiting):
            while tenant in self._waiting and self._held.try_take(tenant, self._waiting.of(tenant)[0][0]):
                _, given = self._waiting.take(tenant)
                given.set_result(None)


class AnswerRoom:
    """The room that one request has taken. After `release` the request gets no more."""

    __slots__ = ("_memory", "_size", "_tenant", "waits")

    def __init__(self, memory: AnswerMemory, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant
        self._size: int | None = 0
        self.waits = False

    async def make(self, size: int) -> bool:
        if self._size is None:
            return False
        self.waits = True
        try:
            taken = await self._memory.take(self._tenant, size)
        finally:
            self.waits = False
        if taken:
            self._own(size)
        return taken

    def make_now(self, size: int) -> bool:
        if self._size is None or not self._memory.take_now(self._tenant, size):
            return False
        self._own(size)
        return True

    def hold_now(self, size: int) -> bool:
        if self._size is None or not self._memory.hold_now(self._tenant, size):
            return False
        self._own(size)
        return True

    def count(self, size: int) -> None:
        self._memory.count(self._tenant, size)
        self._own(size)

    def give_back(self, size: int) -> None:
        if self._size is not None:
            self._size -= size
            self._memory.give_back(self._tenant, size)

    def release(self) -> None:
        size, self._size = self._size, None
        if size:
            self._memory.give_back(self._tenant, size)

    def another(self) -> "AnswerRoom":
        return AnswerRoom(self._memory, self._tenant)

    def _own(self, size: int) -> None:
        if self._size is None:  # the request ended while it waited: nobody else would give this back
            self._memory.give_back(self._tenant, size)
        else:
            self._size += size


_room: ContextVar[AnswerRoom | None] = ContextVar("answer_room", default=None)


def set_answer_room(room: AnswerRoom) -> None:
    _room.set(room)


def answer_room() -> AnswerRoom | None:
    """Returns the room of this request, for code that runs outside of it."""
    return _room.get()


async def make_room(size: int) -> bool:
    """Returns whether the answer to this request may hold `size` more bytes. Waits if other answers hold too much."""
    room = _room.get()
    return room is None or await room.make(size)


def give_back_room(size: int) -> None:
    """Gives back room from `make_room` that the answer does not need."""
    room = _room.get()
    if room is not None:
        room.give_back(size)


def require_room(size: int) -> None:
    """Raises NoCapacity if there is no room now; for answers that the caller can ask for again."""
    room = _room.get()
    if size > SHORT_BYTES and room is not None and not room.make_now(size):
        raise NoCapacity(
            "the answers that wait to be read take all the memory there is for them",
            remedy="read the answers that were asked for before, or ask for less at once",
            retry_after_s=1,
        )


@contextmanager
def hold_room(size: int) -> Iterator[None]:
    """Counts a piece of a stream while it waits to be taken. Raises NoCapacity if there is no room for it."""
    room = _room.get()
    if room is None:
        yield
        return
    if not room.hold_now(size):
        raise NoCapacity(
            "the pieces that wait to be taken use all the memory there is for them",
            remedy="read what was sent before, or keep fewer connections that nobody reads",
            retry_after_s=1,
        )
    try:
        yield
    finally:
        room.give_back(size)


def count_held(size: int) -> None:
    """Counts what another task has collected for this request."""
    room = _room.get()
    if size > SHORT_BYTES and room is not None:
        room.count(size)


def waits_for_room() -> bool:
    room = _room.get()
    return room is not None and room.waits


@contextmanager
def separate_room() -> Iterator[None]:
    """Gives a task that outlives its request room of its own, for the duration of the block."""
    first = _room.get()
    if first is None:
        yield
        return
    own = first.another()
    token = _room.set(own)
    try:
        yield
    finally:
        own.release()
        _room.reset(token)
