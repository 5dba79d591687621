"""Threads for long work that callers ask for, such as reading thousands of network rules. Tenants take turns.

Threads that compute share the interpreter with the event loop: beside six of them each turn of the loop comes 100 ms
late. So all such work of a process has one thread, however many requests ask for it. Work that waits for disks has a
few threads of its own: in those of `asyncio.to_thread`, everybody else's short work would wait behind it.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, Final, TypeVar

from warren.kernel.fair_share import Turns

_DISK_THREADS: Final = 4
T = TypeVar("T")


class FairThread:
    """A thread, or `most` of them, that are there while there is work."""

    def __init__(self, most: int = 1) -> None:
        self._most, self._running = most, 0
        self._lock = threading.Lock()
        self._waiting = Turns[tuple[Future[Any], Callable[[], Any]]]()

    async def run(self, owner: str, work: Callable[[], T]) -> T:
        """Runs the work when it is the owner's turn, and returns or raises what it does. Work whose caller is cancelled
        before that is not run."""
        done: Future[T] = Future()
        with self._lock:
            self._waiting.add(owner, (done, work))
            must_start = self._running < self._most
            self._running += must_start
        if must_start:
            threading.Thread(target=self._run_all, name="long-work", daemon=True).start()
        return await asyncio.wrap_future(done)

    def _run_all(self) -> None:
        while (item := self._next()) is not None:
            done, work = item
            if done.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as exc:
                    done.set_exception(exc)
                else:
                    done.set_result(result)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.next()[1]
            self._running -= 1
            return None


@cache
def fair_thread() -> FairThread:
    """Returns the thread of this process for work that computes."""
    return FairThread()


@cache
def disk_threads() -> FairThread:
    """Returns the threads of this process for copying, reading and writing whole disks."""
    return FairThread(_DISK_THREADS)
