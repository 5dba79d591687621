"""Work inside the network namespaces of sandboxes.

A socket belongs to the namespace in which it was made; binding, connecting and accepting may happen anywhere later. So
one thread enters a sandbox's namespace just long enough to make a socket or to send one netlink message, and everything
else uses the descriptor. `SandboxPorts.dial` and `Egress` use it.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final, TypeVar

from warren.kernel.shielding import run_shielded
from warren.model.errors import SandboxLost
from warren.sandboxes.host.record import SandboxRecord

T = TypeVar("T")

_CLONE_NEWNET: Final = 0x40000000
_libc: Final = ctypes.CDLL(None, use_errno=True)


class NamespaceThread:
    """One thread that runs short functions inside network namespaces, in the order of the calls.

    Between two functions it is in the namespace of this process. A thread that cannot return is never used again.
    """

    def __init__(self) -> None:
        self._executor = self._new_executor()

    def _new_executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="network-namespace")

    async def run(self, namespace_fd: int, function: Callable[[], T]) -> T:
        """Runs the function inside the namespace. When cancelled, it still waits for the function, and drops the
        result: so a function that makes sockets must store them where its caller can close them."""
        executor = self._executor
        try:
            return await run_shielded(_in_executor(executor, namespace_fd, function))
        except _Stranded:
            if self._executor is executor:
                self._executor = self._new_executor()
                executor.shutdown(wait=False)
            raise

    def close(self) -> None:
        self._executor.shutdown(wait=False)


async def _in_executor(executor: ThreadPoolExecutor, namespace_fd: int, function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, _run_inside, namespace_fd, function)


class _Stranded(OSError):
    """The thread could not return to the namespace of this process."""


def _run_inside(namespace_fd: int, function: Callable[[], T]) -> T:
    with open("/proc/thread-self/ns/net", "rb", buffering=0) as own:
        # Only this thread moves. It must be back before the next function runs, or that would make its socket in the
        # wrong sandbox.
        _enter(namespace_fd)
        try:
            return function()
        finally:
            try:
                _enter(own.fileno())
            except OSError as exc:
                raise _Stranded(exc.errno, exc.strerror) from exc


def _enter(namespace_fd: int) -> None:
    if _libc.setns(namespace_fd, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"entering a network namespace: {os.strerror(code)}")


@cache
def namespace_thread() -> NamespaceThread:
    """Returns this process's only namespace thread."""
    return NamespaceThread()


def open_namespace(record: SandboxRecord) -> int:
    """Returns a descriptor of the sandbox's network namespace, which the caller closes. Raises SandboxLost."""
    try:
        fd = os.open(f"/proc/{record.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise SandboxLost("the sandbox's first process has ended") from None
    if not record.alive():  # checked after opening: the pid may belong to another process by now
        os.close(fd)
        raise SandboxLost("the sandbox's first process has ended")
    return fd
