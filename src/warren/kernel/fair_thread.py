"""One thread for long work that callers ask for, such as reading thousands of network rules. Tenants take turns.

Threads that compute share the interpreter with the event loop: beside six of them each turn of the loop comes 100 ms
late. So all such work of a process has one thread, however many requests ask for it.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

from warren.kernel.fair_share import Turns

T = TypeVar("T")


class FairThread:
    """The thread is there while there is work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = Turns[tuple[Future[Any], Callable[[], Any]]]()
        self._is_running = False

    async def run(self, owner: str, work: Callable[[], T]) -> T:
        """Runs the work when it is the owner's turn, and returns or raises what it does. Work whose caller is cancelled
        before that is not run."""
        done: Future[T] = Future()
        with self._lock:
            self._waiting.add(owner, (done, work))
            must_start, self._is_running = not self._is_running, True
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
            self._is_running = bool(self._waiting)
            return self._waiting.next()[1] if self._waiting else None


@cache
def fair_thread() -> FairThread:
    """Returns the thread of this process."""
    return FairThread()
