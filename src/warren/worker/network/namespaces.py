"""Does something inside of another network namespace, in one thread that is there for nothing else.

A socket belongs to the namespace it was made in, wherever its descriptor goes later. The thread comes back each time:
a namespace lives as long as a thread is in it.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final, TypeVar

_CLONE_NEWNET: Final = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


async def inside(namespace: int, work: Callable[[], T]) -> T:
    """What `work` returns; `namespace` is a descriptor. It is short: others wait for it. Raises OSError."""
    return await asyncio.get_running_loop().run_in_executor(_thread(), _visit, namespace, work)


def open_namespace(pid: int) -> int:
    """A descriptor of the process's network namespace, which lives as long as the descriptor does. Raises OSError."""
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="namespaces")


def _visit(namespace: int, work: Callable[[], T]) -> T:
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(namespace)
        try:
            return work()
        finally:
            _enter(home)
    finally:
        os.close(home)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
