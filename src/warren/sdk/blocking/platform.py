"""What differs between the two clients beyond `await`: here, the one that blocks."""

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import IO, ParamSpec, TypeVar

from warren.sdk.blocking.backend import Backend
from warren.sdk.blocking.remote import Remote
from warren.sdk.blocking.transport import Transport
from warren.sdk.discovery import find_key, find_url
from warren.sdk.pieces import read_in_pieces

P = ParamSpec("P")
T = TypeVar("T")

Lock = threading.Lock
Pieces = Iterable[bytes] | IO[bytes]


def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return call(*args, **kwargs)


def pieces_of(source: Pieces) -> Generator[bytes, None, None]:
    yield from read_in_pieces(source)


def before_long(work: Callable[[], None], at_most_s: float) -> None:
    """It takes what it takes: whoever does not want to wait interrupts it."""
    work()


def all_of(calls: Sequence[Callable[[], T]], at_once: int) -> list[T]:
    """The results in order; so many run at a time."""
    if at_once <= 1 or len(calls) <= 1:
        return [call() for call in calls]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(at_once, len(calls))) as threads:
        return list(threads.map(lambda call: call(), calls))


def open_backend(mode: str, server_url: str, api_key: str) -> Backend:
    if mode == "local":
        from warren.local import Local

        return Local()
    url = server_url or find_url()
    return Remote(Transport(url, api_key or find_key(url)))
