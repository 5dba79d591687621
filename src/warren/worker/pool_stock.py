"""The sandboxes of a pool that are ready, and who waits for one."""

import asyncio
import bisect
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from warren.interfaces.sandbox import Sandbox
from warren.kernel.logs import get_log
from warren.model.environment import Environment
from warren.model.errors import MachineFull, NoCapacity

_log = get_log(__name__)


@dataclass(slots=True, eq=False)
class PoolMember:
    sandbox: Sandbox
    version: str
    lost: bool = False


@dataclass(slots=True, eq=False)
class Waiter:
    tenant: str
    ticket: int
    since: float
    deadline: float
    member: asyncio.Future[PoolMember]


class PoolStock:
    """`ready` has sandboxes of the image's present version, `stale` those of another one. Both are taken oldest first,
    so none stays for long and a bad one is found soon."""

    def __init__(self, environment: Environment, destroy: Callable[[str], object], wake: asyncio.Event) -> None:
        self._environment = environment
        self._destroy = destroy
        self._wake = wake
        self._version: str | None = None  # the image's version when last looked at; None before the first look
        self.ready: dict[str, PoolMember] = {}
        self.stale: dict[str, PoolMember] = {}

    def __len__(self) -> int:
        return len(self.ready) + len(self.stale)

    def add(self, member: PoolMember) -> None:
        members = self.ready if member.version == self._version else self.stale
        members[member.sandbox.id] = member

    def take(self) -> PoolMember:
        """Removes and returns the oldest sandbox, of the present version if there is one."""
        members = self.ready or self.stale
        return members.pop(next(iter(members)))

    def remove(self, sandbox_id: str) -> bool:
        return (self.ready.pop(sandbox_id, None) or self.stale.pop(sandbox_id, None)) is not None

    def note_version(self, version: str) -> None:
        """Makes all ready sandboxes stale if the image has another version than before."""
        if version == self._version:
            return
        if self._version is not None:
            environment = self._environment
            _log.info("image_changed", pool=environment.name, image=environment.image, version=version)
        self._version = version
        self.stale.update(self.ready)
        self.ready.clear()
        self._wake.set()

    def give_up(self, ready: int, stale: int) -> None:
        """Destroys the oldest sandboxes: `ready` of those that are ready, `stale` of those that are stale."""
        for members, count in ((self.ready, ready), (self.stale, stale)):
            for name in list(itertools.islice(members, count)):
                del members[name]
                self._destroy(name)


class WaitQueue:
    """`waiters` are in the order of their tickets. The future of a waiter is done when it was served or has failed."""

    def __init__(self) -> None:
        self.waiters: list[Waiter] = []

    def join(self, waiter: Waiter) -> None:
        bisect.insort(self.waiters, waiter, key=lambda other: other.ticket)

    def leave(self, waiter: Waiter) -> PoolMember | None:
        """Removes a waiter. Returns the sandbox that it was given and will not take, or None."""
        with suppress(ValueError):
            self.waiters.remove(waiter)
        member = waiter.member
        return member.result() if member.done() and not member.cancelled() and member.exception() is None else None

    def waiting(self) -> list[Waiter]:
        self.waiters = [waiter for waiter in self.waiters if not waiter.member.done()]
        return self.waiters

    def serve(self, waiter: Waiter, member: PoolMember) -> None:
        self.waiters.remove(waiter)
        waiter.member.set_result(member)

    def fail_overdue(self, now: float, error: Callable[[Waiter, int], Exception]) -> int:
        """Fails the waiters whose time is over, and returns their number. `error` gets the waiter and its position."""
        failed = 0
        for position, waiter in enumerate(list(self.waiters), 1):
            if waiter.deadline <= now and not waiter.member.done():
                failed += 1
                self.waiters.remove(waiter)
                waiter.member.set_exception(error(waiter, position))
        return failed

    def fail_all(self, error: Callable[[], Exception]) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.member.done():
                waiter.member.set_exception(error())


def no_capacity(
    pool: str, waited_s: float, position: int, waiting: int, failure: Exception | None, parallel: int
) -> NoCapacity:
    """Returns the error that says why a waiter at this position gets nothing."""
    after = f"; the last one could not be made: {failure}" if failure else ""
    kind = MachineFull if isinstance(failure, MachineFull) else NoCapacity
    return kind(
        f"no sandbox of {pool} became free in {max(0.0, waited_s):.1f} s, "
        f"place {position} of {max(position, waiting)} in the queue{after}",
        remedy="try again later, or raise the pool's size",
        retry_after_s=float(min(30, 1 + position // parallel)),
    )
