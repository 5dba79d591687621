"""Resolves names for sandboxes, in threads, and caches the addresses for a few seconds."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Final

from warren.kernel.bounded_dict import BoundedDict
from warren.model.addresses import Address

_THREADS: Final = 32
_WAITING: Final = 512
_KEPT_S: Final = 5.0
_KEPT: Final = 2048
_TIMEOUT_S: Final = 15.0


class NotResolved(Exception):
    """The name has no address now; the message says why."""


class Resolver:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")
        self._found = BoundedDict[str, tuple[float, tuple[Address, ...]]](_KEPT)
        self._asking: dict[str, asyncio.Future[tuple[Address, ...]]] = {}

    async def resolve(self, name: str) -> tuple[Address, ...]:
        """Returns at least one address. Raises NotResolved."""
        loop = asyncio.get_running_loop()
        kept = self._found.get(name)
        if kept is not None and kept[0] > loop.time():
            return kept[1]
        asking = self._asking.get(name)
        if asking is None:
            if len(self._asking) >= _WAITING:
                raise NotResolved("too many names are looked up at the same time")
            asking = self._asking[name] = loop.run_in_executor(self._threads, _look_up, name)
            asking.add_done_callback(lambda done: self._keep(name, done))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                # Shielded: other connections wait for the same look-up.
                return await asyncio.shield(asking)
        except TimeoutError:
            raise NotResolved("its name was not found in time") from None
        except OSError:
            raise NotResolved("its name cannot be found") from None

    def _keep(self, name: str, done: "asyncio.Future[tuple[Address, ...]]") -> None:
        del self._asking[name]
        if done.cancelled() or done.exception() is not None:
            return
        self._found[name] = (asyncio.get_running_loop().time() + _KEPT_S, done.result())


def _look_up(name: str) -> tuple[Address, ...]:
    # getaddrinfo applies the slow IDNA codec to a str, but not to bytes.
    found = socket.getaddrinfo(name.encode(), None, type=socket.SOCK_STREAM)
    addresses = tuple(dict.fromkeys(ip_address(str(each[4][0])) for each in found))
    if not addresses:
        raise OSError("no address")
    return addresses
