"""What differs between the two clients beyond `await`: this is the blocking version."""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import IO, Any, ParamSpec, TypeVar

from warren.sdk.blocking.backend import Backend
from warren.sdk.blocking.remote import Remote
from warren.sdk.blocking.transport import Transport
from warren.sdk.discovery import find_key, find_url
from warren.sdk.protocol import read_chunks

P = ParamSpec("P")
T = TypeVar("T")

Lock = threading.Lock
sleep = time.sleep
ByteSource = Iterable[bytes] | IO[bytes]


def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return call(*args, **kwargs)


def call_back(function: Callable[[Any], Any], value: Any) -> None:
    function(value)


def iterate_source(source: ByteSource) -> Generator[bytes, None, None]:
    yield from read_chunks(source)


def run_at_most(work: Callable[[], None], timeout_s: float) -> None:
    """Runs `work` to its end: a caller who does not want to wait interrupts it."""
    work()


def run_parallel(calls: Sequence[Callable[[], T]], limit: int) -> list[T]:
    """Returns the results in order; runs `limit` calls at a time."""
    if limit <= 1 or len(calls) <= 1:
        return [call() for call in calls]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(limit, len(calls))) as threads:
        return list(threads.map(lambda call: call(), calls))


def remind_to_close(client: object, name: str) -> Callable[[], object]:
    """Does not warn: the connections of a blocking client are closed with it."""
    return lambda: None


def open_backend(mode: str, server_url: str, api_key: str | None, *, direct: bool = False) -> Backend:
    if mode == "local":
        from warren.local import Local

        return Local()
    url = server_url or find_url()
    key = find_key(url) if api_key is None else api_key
    main = Remote(Transport(url, key))
    if not direct:
        return main
    from warren.sdk.blocking.direct import Direct

    return Direct(main, lambda url: Remote(Transport(url, key)))
