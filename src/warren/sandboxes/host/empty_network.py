"""Makes the unix sockets between the worker and its agents in a network namespace in which there is nothing.

A unix socket belongs to a network namespace too, for ever: that of the thread that made it. A socket that is accepted
belongs to the namespace of the one that connected. Whoever holds such a socket may ask it for the interfaces of its
namespace (SIOCGIFCONF and the like), and agents hold one that the worker listens on for them, and those of the worker's
connections. So the worker makes both kinds in a namespace of its own that has no interface but a loopback that is down;
it belongs to no sandbox, so it is there before the first and needs nothing from any.
"""

import asyncio
import ctypes
import os
import socket
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_AT_ONCE: Final = 16
_libc: Final = ctypes.CDLL(None, use_errno=True)
_stock: Final = deque[int]()  # descriptors of sockets made ahead: a thread is slow to ask


async def unix_socket() -> socket.socket:
    """Returns a stream socket. Raises OSError."""
    while True:
        try:
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=_stock.popleft())
        except IndexError:
            await asyncio.get_running_loop().run_in_executor(_thread(), _make)


@cache
def _thread() -> ThreadPoolExecutor:
    """One thread, which enters the namespace with its first socket and stays there. Other threads stay where they
    are."""
    return ThreadPoolExecutor(1, thread_name_prefix="empty-network")


def _make() -> None:
    _enter()
    while len(_stock) < _AT_ONCE:
        _stock.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach())


@cache  # an error is not kept: the next socket tries again
def _enter() -> None:
    if _libc.unshare(_CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"making a network namespace: {os.strerror(code)}")


def _empty_stock() -> None:
    """In a child: its parent uses the sockets."""
    while _stock:
        os.close(_stock.popleft())
    _enter.cache_clear()
    _thread.cache_clear()


os.register_at_fork(after_in_child=_empty_stock)
