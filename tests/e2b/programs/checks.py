"""What the programs share: the version of the SDK, errors that must come, waiting, and plain HTTP."""

import contextlib
import importlib.metadata
import os
import time
import uuid
from collections.abc import Callable, Iterator

import httpx

VERSION = tuple(int(part) for part in importlib.metadata.version("e2b").split("."))
ONE_PORT = "E2B_API_URL" in os.environ
UNKNOWN = "0" * 32
"""The id of a sandbox that nobody has."""


def since(*version: int) -> bool:
    return version <= VERSION


class Refusal:
    error: Exception


@contextlib.contextmanager
def refused(*kinds: type[Exception], says: str = "") -> Iterator[Refusal]:
    refusal = Refusal()
    try:
        yield refusal
    except kinds as exc:
        refusal.error = exc
    else:
        raise AssertionError(f"{' or '.join(kind.__name__ for kind in kinds)} was expected")
    assert says in str(refusal.error), f"{says!r} is not in: {refusal.error!r}"


def wait_until(holds: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def new_mark() -> dict[str, str]:
    """Metadata that nothing else on the server has."""
    return {"mark": uuid.uuid4().hex}


def web_url(host: str) -> str:
    """The address of what `get_host` names: the test's server speaks TLS in domain mode only."""
    return f"{'http' if ONE_PORT else 'https'}://{host}"


def fetch(url: str, **headers: str) -> httpx.Response:
    """As a browser would: with nothing but the address."""
    with httpx.Client(timeout=30, follow_redirects=False, verify=os.environ.get("SSL_CERT_FILE", True)) as client:
        return client.get(url, headers=headers)


def done() -> None:
    """The last line of a program, which ends here: threads of native libraries may crash an interpreter that ends."""
    print(f"ok, e2b {'.'.join(map(str, VERSION))}", flush=True)
    os._exit(0)
